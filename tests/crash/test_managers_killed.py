"""Three managers, three brokers and four committing clients; managers and brokers are killed repeatedly.

No acknowledged commit is lost. No fetch returns less than was acknowledged before it began, or no offset for a group
that has one: `history` checks the operations that the clients recorded. Every acknowledged commit is in the managers'
log, and no batch of a former owner follows the claim of another one: `raw_log` reads all batches.
"""

import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from committing_client import PARTITIONS, consumer
from confluent_kafka import TopicPartition
from history import COMMIT, FETCH, Operation, violations
from manager_cluster import (
    SHARDS,
    acknowledged,
    addresses_of,
    clients_of,
    fetch_until_answered,
    history_of,
    in_sync,
    managers_of,
    restart,
    served,
    three_brokers,
)
from processes import wait_for
from raw_log import PartitionHistory, RawBatch, RawLogReader

from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import OffsetKey
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY
from offsetmgr.sandbox import ZooKeeperServer

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
KILLS = 200 if SOAK else 6
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
CLIENTS = 4
EACH = 50
MANAGER_PAUSE = (0.1, 4.0) if SOAK else (0.1, 1.5)
"""Seconds between kills of managers: some kills follow within a session timeout, some after the shards have moved."""

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(3000 if SOAK else 900)]


def test_no_kill_of_a_manager_or_broker_loses_or_hides_a_commit(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    sys.stdout.write(f"seed {SEED}, {KILLS} kills\n")
    dice = random.Random(SEED)
    chroot = f"{zookeeper.connect}/{tmp_path.name}-{time.time_ns()}"
    with three_brokers(tmp_path, chroot) as brokers, managers_of(tmp_path, brokers, 3) as managers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        addresses = addresses_of(managers)
        log = {partition: PartitionHistory(partition) for partition in range(SHARDS)}

        def on_batch(batch: RawBatch) -> None:
            log[batch.partition].add(batch)

        with (
            RawLogReader(bootstrap, "__offsetmgr_offsets", log, on_batch),
            clients_of(tmp_path, addresses, CLIENTS, 3) as files,
        ):
            wait_for(lambda: all(acknowledged(file) >= 5 for file in files), "all clients commit")
            killed = {"manager": 0, "broker": 0}
            for number in range(KILLS):
                if number % 4 == 3:
                    # At most one broker may be down, so the one killed before must be in sync again.
                    wait_for(lambda: in_sync(bootstrap, 3), "all brokers are in sync")
                    broker = dice.choice(brokers)
                    broker.kill()
                    restart(broker)
                    killed["broker"] += 1
                else:
                    manager = dice.choice(managers)
                    manager.kill()
                    if dice.random() < 0.3:
                        time.sleep(dice.uniform(0, 1))  # a random pause before the restart
                    manager.start()
                    killed["manager"] += 1
                time.sleep(dice.uniform(*MANAGER_PAUSE))
            before = [acknowledged(file) for file in files]

            def served_again() -> bool:
                for manager in managers:
                    manager.start_if_exited()
                return served(addresses, 3)

            wait_for(served_again, "all shards are served again", 240)
            wait_for(
                lambda: all(acknowledged(file) >= was + EACH for file, was in zip(files, before, strict=True)),
                "all clients commit again", 240,
            )  # fmt: skip
        history = history_of(files)
        found = violations(history) + violations_of_log(log, history)
        assert not found, f"seed {SEED}: {len(found)} violations, the first: {found[:5]}"
        # In the end a fetch returns every last acknowledged commit.
        last: dict[tuple[str, int], int] = {}
        for operation in history:
            if operation.kind == COMMIT and operation.done and operation.value is not None:
                last[operation.key] = max(last.get(operation.key, 0), operation.value)
        for group in sorted({group for group, _ in last}):
            values = fetch_until_answered(reader := consumer(addresses, group))
            reader.close()
            for partition in range(PARTITIONS):
                assert (values[partition] or 0) >= last.get((group, partition), 0), TopicPartition("t", partition)
        done = sum(o.kind == COMMIT and o.done for o in history), sum(o.kind == FETCH and o.done for o in history)
        sys.stdout.write(f"{killed} killed; {done[0]} commits acknowledged, {done[1]} fetches answered, 0 violations\n")
        assert min(done) > 20 * KILLS


def violations_of_log(log: Mapping[int, PartitionHistory], history: Sequence[Operation]) -> list[str]:
    """The violations of the rules of claims, and the acknowledged commits that are not in the log."""
    format_ = AvroRecordFormat()
    stored: set[tuple[str, int, int]] = set()
    for partition in log.values():
        for key, value in zip(partition.keys, partition.values, strict=True):
            if key is None or value is None or key in (CLAIM_KEY, FENCE_KEY):
                continue
            decoded = format_.decode_key(key)
            if isinstance(decoded, OffsetKey):
                stored.add((decoded.group, decoded.partition, format_.decode_value(value).offset))
    lost = [o for o in history if o.kind == COMMIT and o.done and (*o.key, o.value) not in stored]
    return [one for partition in log.values() for one in partition.violations] + [f"not in the log: {o}" for o in lost]
