"""Writes to groups that are new in Kafka never overwrite a larger offset that a client without membership committed.

`migrate apply` and `offsets import` write offsets of groups that Kafka does not know yet, while clients commit newer
offsets to the same groups without being group members (`assign()`, the Admin API). The oracle is the log of
``__consumer_offsets``: after a client's commit no record of the same group and partition has a smaller offset.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from offsets_topic import commit_records
from processes import Commands, fill
from repeated import repeated

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, Guard
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
GROUPS, PARTITIONS, ROUNDS = (2000, 20, 10) if SOAK else (250, 5, 1)
OLD = 10
"""The offset of every partition in the snapshot."""
RUNS_S, STOPPED_S = ((0.3, 0.7), (1.5, 12.0)) if SOAK else ((0.03,), (0.15,))
"""Seconds for which the process runs and is stopped, in turn. 12 s exceed the session timeout of the group lock."""


@dataclass
class Client:
    """Commits ever larger offsets to random groups, without membership."""

    store: KafkaStore
    groups: list[str]
    topic: str
    random: random.Random
    offsets: Iterator[int]
    acknowledged: int = 0

    def commit(self) -> None:
        edits = []
        for group in self.random.sample(self.groups, 20):
            change = Change(OffsetAndMetadata(next(self.offsets), "client"), allow_rewind=True)
            tp = TopicPartition(self.topic, self.random.randrange(PARTITIONS))
            edits.append(GroupEdit(group, {tp: change}, Guard.OVERWRITE))
        self.acknowledged += sum(not result.failures for result in self.store.edit(edits))


def overwritten(bootstrap: str, groups: set[str]) -> list[str]:
    """Commits of clients that a later record with a smaller offset overwrote in the offsets topic."""
    largest: dict[Any, int] = defaultdict(lambda: -1)
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


@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize("how", ["moving", "stopped"])
@pytest.mark.parametrize("command", ["apply", "import"])
def test_no_acknowledged_commit_is_overwritten(kafka, make_topic, unique, tmp_path, capsys, command, how: str) -> None:
    target = f"kafka://{kafka.bootstrap}"
    for number in range(ROUNDS):
        topic = make_topic(f"{unique[-40:]}-{number}", PARTITIONS)
        fill(kafka.bootstrap, topic, *[OLD + 10] * PARTITIONS)
        names = [f"{unique[-40:]}-{number}-{n}" for n in range(GROUPS)]
        snapshot = tmp_path / f"{number}.csv"
        snapshot.write_text("".join(f"{name},{topic},{p},{OLD}\n" for name in names for p in range(PARTITIONS)))
        arguments = ["offsets", "import", str(snapshot), "--store", target, "--execute", "--yes"]
        if command == "apply":
            sides = ("--from", f"file:{snapshot}", "--to", target, "--all-groups", "--if-ahead", "keep")
            Commands(tmp_path).run("migrate", "plan", *sides, "-o", f"{number}.json")
            arguments = ["migrate", "apply", f"{number}.json", "--yes"]
        offsets = itertools.count(OLD + 1)
        with ExitStack() as stack:
            stores = [stack.enter_context(KafkaStore(kafka.bootstrap)) for _ in range(2)]
            clients = [
                Client(one, names, topic, random.Random(f"{number}-{n}"), offsets) for n, one in enumerate(stores)
            ]
            stack.enter_context(repeated(*(client.commit for client in clients)))
            process = Commands(tmp_path).start(*arguments)
            with stopped_repeatedly(process) if how == "stopped" else nullcontext():
                out, err = process.communicate(timeout=600)
        acknowledged = sum(client.acknowledged for client in clients)
        assert process.returncode in (0, 1), out + err
        lost = overwritten(kafka.bootstrap, set(names))
        with capsys.disabled():
            counts = f"{acknowledged} acknowledged, {len(lost)} overwritten"
            sys.stderr.write(f"\n{command} {how}, round {number}: {counts}\n" if SOAK else "")
        assert acknowledged > 0
        assert not lost, lost[:5]
