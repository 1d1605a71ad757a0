"""Writes to groups that are new in Kafka never overwrite a larger offset that a client without membership committed.

`migrate apply` and `offsets import` write offsets of groups that Kafka does not know yet, while clients commit newer
offsets to the same groups without being group members (`assign()`, the Admin API). The oracle is the log of
``__consumer_offsets``: after a client's commit no record of the same group and partition has a smaller offset.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from conftest import MakeTopic
from offsets_topic import commit_records
from processes import Commands

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, Guard
from offsetmgr.groups.before_images import header_for
from offsetmgr.records.base import OffsetKey
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.snapshots.base import GroupEntry
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.snapshot import write_snapshot

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
GROUPS, PARTITIONS, ROUNDS = (2000, 20, 10) if SOAK else (250, 5, 1)
OLD = 10
"""The offset of every partition in the snapshot."""
RUNS_S, STOPPED_S = ((0.3, 0.7), (1.5, 12.0)) if SOAK else ((0.03,), (0.15,))
"""Seconds for which the process runs and is stopped, in turn. 12 s exceed the session timeout of the group lock."""


class Clients:
    """Commits ever larger offsets to random groups, without membership, until the block ends."""

    def __init__(self, bootstrap: str, groups: list[str], topic: str, seed: int) -> None:
        self.acknowledged = 0
        self._bootstrap, self._groups, self._topic = bootstrap, groups, topic
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]
        self._next = OLD

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with KafkaStore(self._bootstrap) as store:
            while not self._stopping.is_set():
                edits = []
                for group in self._random.sample(self._groups, 20):
                    self._next += 1
                    tp = TopicPartition(self._topic, self._random.randrange(PARTITIONS))
                    change = Change(OffsetAndMetadata(self._next, "client"), allow_rewind=True)
                    edits.append(GroupEdit(group, {tp: change}, Guard.OVERWRITE))
                for result in store.edit(edits):
                    self.acknowledged += not result.failures


def overwritten(bootstrap: str, groups: set[str]) -> list[str]:
    """Commits of clients that a later record with a smaller offset overwrote in the offsets topic."""
    largest: dict[OffsetKey, int] = defaultdict(lambda: -1)
    found = []
    for key, value, _ in commit_records(bootstrap):
        if key.group not in groups:
            continue
        if value.metadata == "client":
            largest[key] = max(largest[key], value.offset)
        elif value.offset < largest[key]:
            found.append(f"{key}: {largest[key]} was overwritten by {value.offset}")
    return found


@contextmanager
def stopped_repeatedly(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stops (SIGSTOP) and continues the process repeatedly until it exits."""

    def stop() -> None:
        for number in range(10_000):
            time.sleep(RUNS_S[number % len(RUNS_S)])  # the schedule of the test
            if process.poll() is not None:
                return
            process.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_S[number % len(STOPPED_S)])
            process.send_signal(signal.SIGCONT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        yield
    finally:
        stopper.join()


@pytest.mark.servers
@pytest.mark.matrix
@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize("how", ["moving", "stopped"])
@pytest.mark.parametrize("command", ["apply", "import"])
def test_no_acknowledged_commit_is_overwritten(
    kafka: KafkaBroker,
    make_topic: MakeTopic,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    how: str,
) -> None:
    target = f"kafka://{kafka.bootstrap}"
    for number in range(ROUNDS):
        topic = make_topic(f"{unique[-40:]}-{number}", PARTITIONS)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for count in range((OLD + 10) * PARTITIONS):
            producer.produce(topic, "record", partition=count % PARTITIONS)
        assert producer.flush(60) == 0
        names = [f"{unique[-40:]}-{number}-{n}" for n in range(GROUPS)]
        snapshot = tmp_path / f"{number}.avro"
        committed = {TopicPartition(topic, p): Committed(OLD) for p in range(PARTITIONS)}
        with KafkaStore(kafka.bootstrap) as store:
            write_snapshot(snapshot, header_for(store), [GroupEntry(name, committed) for name in names])
        arguments = ["offsets", "import", str(snapshot), "--store", target, "--execute", "--yes"]
        if command == "apply":
            sides = ("--from", f"file:{snapshot}", "--to", target, "--all-groups", "--if-ahead", "keep")
            Commands(tmp_path).run("migrate", "plan", *sides, "-o", f"{number}.json")
            arguments = ["migrate", "apply", f"{number}.json", "--yes"]
        with Clients(kafka.bootstrap, names, topic, seed=number) as clients:
            process = Commands(tmp_path).start(*arguments)
            if how == "stopped":
                with stopped_repeatedly(process):
                    out, err = process.communicate(timeout=600)
            else:
                out, err = process.communicate(timeout=600)
        assert process.returncode in (0, 1), out + err
        lost = overwritten(kafka.bootstrap, set(names))
        with capsys.disabled():
            counts = f"{clients.acknowledged} acknowledged, {len(lost)} overwritten"
            sys.stderr.write(f"\n{command} {how}, round {number}: {counts}\n" if SOAK else "")
        assert clients.acknowledged > 0
        assert not lost, lost[:5]
