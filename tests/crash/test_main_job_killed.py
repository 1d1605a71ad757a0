"""The main job on each release, with its own consumers, while offsetmgr and the broker are killed at random.

A group of old consumers moves from ZooKeeper to Kafka: plan, apply, dual commit, Kafka alone. Every record is consumed
exactly once, because consumers stop cleanly and no killed process moves an offset. Groups without consumers are applied
and rolled back; their offsets end as they were.
"""

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from committed_offsets import commit, committed
from confluent_kafka import Producer
from old_consumers import old_member
from processes import Commands, wait_for
from release_environment import has_leaders, librdkafka_settings, old_consumer_for, releases, seen

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, create_topic
from offsetmgr.stores.zookeeper import ZookeeperStore

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
ROUNDS = 20 if SOAK else 1
PARTITIONS = 4
GROUPS = 30
"""The number of groups without consumers, which are applied and rolled back alongside the live group."""

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(7200 if SOAK else 900)]


class Cluster:
    """A broker that is killed and restarted on the same port."""

    def __init__(self, directory: Path, zookeeper: str, release: str) -> None:
        config = {"offsets.topic.num.partitions": 4, "offsets.retention.check.interval.ms": 1000}
        self.release, self.zookeeper = release, zookeeper
        self.broker = KafkaBroker(directory, zookeeper=zookeeper, version=release, config=config)

    @contextmanager
    def killed_repeatedly(self, rng: random.Random) -> Iterator[None]:
        """Kills the broker one to four times at random moments of the block, and restarts it each time.

        More kills would keep groups locked whose command was killed: each restart of the broker starts the lock's 10
        seconds again.
        """
        ended = threading.Event()

        def kill() -> None:
            for _ in range(rng.randint(1, 4)):
                if ended.wait(rng.uniform(0.2, 3.0)):
                    return
                self.broker.kill()
                time.sleep(rng.uniform(0.0, 0.5))  # a random downtime
                self.broker.start()

        with ThreadPoolExecutor() as threads:
            killing = threads.submit(kill)
            try:
                yield
            finally:
                ended.set()
                killing.result()  # raises if the broker could not be restarted


@pytest.mark.parametrize("release", releases("0.8.2.2"))
def test_every_record_is_consumed_once_and_rollback_is_exact(zookeeper, release: str, unique, tmp_path) -> None:
    seed = int(os.environ.get("OFFSETMGR_SEED", "1"))
    where = f"{zookeeper.connect}/{unique}"
    cluster = Cluster(tmp_path / "broker", where, release)
    with cluster.broker:
        for number in range(ROUNDS):
            one_round(cluster, random.Random(f"{seed}-{release}-{number}"), f"{unique}-{number}", tmp_path)


def one_round(cluster: Cluster, rng: random.Random, name: str, directory: Path) -> None:
    broker = cluster.broker
    zk, kafka = f"zookeeper://{cluster.zookeeper}", f"kafka://{broker.bootstrap}"
    create_topic(name, PARTITIONS, zookeeper=cluster.zookeeper, bootstrap=broker.bootstrap, version=cluster.release)
    wait_for(lambda: has_leaders(broker.bootstrap, name, PARTITIONS), f"{name} has leaders")
    group, commands = f"{name}-live", Commands(directory)
    idle = [f"{name}-idle-{n}" for n in range(GROUPS)]
    before = {idle[0]: {0: 1}}
    produced = produce(cluster, name, 200)
    commit(f"kafka://{broker.bootstrap}", idle[0], name, {0: 1})
    with ZookeeperStore(cluster.zookeeper) as store:
        for one in idle:
            store.commit(one, {TopicPartition(name, p): OffsetAndMetadata(5 + p) for p in range(PARTITIONS)})
    version = old_consumer_for(cluster.release)
    consumers = [
        old_member(directory / f"{name}-{n}", cluster.zookeeper, group, name, version=version) for n in range(2)
    ]
    with ExitStack() as stack:
        for consumer in consumers:
            stack.enter_context(consumer)
        wait_for(lambda: len(seen(consumers)) == produced, "the first records are consumed")
        for plan, which in (("live", group), ("idle", f"{name}-idle-*")):
            commands.run("migrate", "plan", "--from", zk, "--to", kafka, "--group", which, "-o", f"{name}-{plan}.json")
        with cluster.killed_repeatedly(rng):
            for plan in ("live", "idle"):
                run_until_done(commands, rng, "migrate", "apply", f"{name}-{plan}.json", "--yes")
        commands.run("migrate", "verify", f"{name}-idle.json")
        for storage, dual in (("kafka", True), ("kafka", False)):
            for consumer in consumers:
                consumer.stop()
                consumer.offsets_storage, consumer.dual_commit = "kafka", dual
                assert storage == consumer.offsets_storage
                consumer.start()
            produced += produce(cluster, name, 200)
            wait_for(lambda: len(seen(consumers)) == produced, "the next records are consumed")  # noqa: B023
        commands.run("migrate", "verify", f"{name}-live.json")
        with cluster.killed_repeatedly(rng):
            run_until_done(commands, rng, "migrate", "rollback", f"{name}-idle.json", "--yes")
    assert Counter(seen(consumers).values()) == {1: produced}, "a record was consumed twice"
    assert {one: committed(f"kafka://{broker.bootstrap}", one) for one in idle} == {
        one: before.get(one, {}) for one in idle
    }


def produce(cluster: Cluster, topic: str, records: int) -> int:
    settings = {"bootstrap.servers": cluster.broker.bootstrap, "acks": "all", "log_level": 0}
    producer = Producer({**settings, **librdkafka_settings(cluster.release)})
    for number in range(records):
        producer.produce(topic, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return records


def run_until_done(commands: Commands, rng: random.Random, *arguments: str) -> None:
    """Runs a command repeatedly until its exit code is 0; kills the first three runs at a random moment."""
    deadline = time.monotonic() + 120
    for attempt in itertools.count():
        process = commands.start(*arguments)
        if attempt < 3:
            time.sleep(rng.uniform(0.2, 1.5))  # a random moment of the kill
            process.kill()
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err
        if process.returncode == 0:
            return
        assert time.monotonic() < deadline, f"{arguments[1]} did not succeed within 120 s: {out}{err}"
