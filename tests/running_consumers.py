"""Consumers of a running group for tests of edits, and the oracle that reads their deliveries and commits."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from offsets_topic import commit_records

from offsetmgr.sandbox import jars
from offsetmgr.sandbox.java import QUICK_START, java_command

REPORTED_LATE_S = 5.0
"""Seconds by which a busy machine may delay the report of a record after its commit."""


class Delivery(NamedTuple):
    """A record that a consumer received, with the time in seconds since 1970."""

    at: float
    partition: int
    offset: int
    member: str


class Assigned(NamedTuple):
    """A partition that a consumer was assigned, with the time in seconds since 1970."""

    at: float
    partition: int
    member: str


@dataclass
class Deliveries:
    """All records that the consumers of one group received, and all assignments of partitions to them."""

    found: list[Delivery] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)

    def assign(self, partition: int, member: str, at: float | None = None) -> None:
        self.assigned.append(Assigned(time.time() if at is None else at, partition, member))

    def add(self, partition: int, offset: int, member: str, at: float | None = None) -> None:
        self.found.append(Delivery(time.time() if at is None else at, partition, offset, member))

    def between(self, begin: float, end: float) -> list[Delivery]:
        """The deliveries in this time, in the order of their times."""
        return sorted(one for one in self.found if begin <= one.at < end)


class Member:
    """A consumer of a running group. Its thread reports the records and the assignments to ``deliveries``.

    ``commit`` is "auto" (automatic commits every 0.5 s), "sync" (the positions after each batch), or "explicit" (the
    offsets of the batch after it was processed, even if the partitions were lost meanwhile). The consumer processes
    each batch for ``work_s`` seconds.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        deliveries: Deliveries,
        *,
        name: str,
        commit: str = "auto",
        work_s: float = 0.0,
        **config: Any,
    ) -> None:
        self.name = name
        self.errors: list[str] = []
        self._topic, self._deliveries, self._commit, self._work_s = topic, deliveries, commit, work_s
        self.start({"bootstrap.servers": bootstrap, "group.id": group, "client.id": name, **config})
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def start(self, settings: dict[str, Any]) -> None:
        """Starts the consumer. The subclasses define it."""
        raise NotImplementedError

    def run(self) -> None:
        """Reports records until the consumer ends. The subclasses define it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the consumer. The subclasses define it."""
        raise NotImplementedError


class RdkafkaMember(Member):
    """A consumer of librdkafka in the thread. It processes up to ``batch`` records at once, a setting of its own."""

    def start(self, settings: dict[str, Any]) -> None:
        self._batch = settings.pop("batch", 20)
        self._consumer = Consumer(
            {
                "auto.offset.reset": "earliest",
                "enable.auto.commit": self._commit == "auto",
                "auto.commit.interval.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        self._consumer.subscribe([self._topic], on_assign=self._on_assign)
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ends the consumer, which leaves the group."""
        self._stop.set()
        self._thread.join()

    def _on_assign(self, _consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        for one in partitions:
            self._deliveries.assign(one.partition, self.name)

    def run(self) -> None:
        while not self._stop.is_set():
            # `consume` would return records of the assignment before a rebalance that it has reported meanwhile.
            offsets: dict[KafkaPartition, None] = {}
            while len(offsets) < self._batch and (message := self._consumer.poll(0 if offsets else 0.1)) is not None:
                if message.error() is not None:
                    self.errors.append(str(message.error()))
                    break
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                self._deliveries.add(partition, offset, self.name)
                offsets[KafkaPartition(message.topic() or "", partition, offset + 1)] = None
            if offsets and self._work_s:
                time.sleep(self._work_s)
            if offsets and self._commit != "auto":
                self._commit_batch(list(offsets))
        self._consumer.close()

    def _commit_batch(self, offsets: list[KafkaPartition]) -> None:
        last: dict[int, KafkaPartition] = {one.partition: one for one in offsets}
        try:
            if self._commit == "explicit":
                self._consumer.commit(offsets=list(last.values()), asynchronous=False)
            else:
                self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError._NO_OFFSET,):
                self.errors.append(str(error))


class Commit(NamedTuple):
    """A commit in the log of the offsets topic, with its time in seconds since 1970."""

    partition: int
    offset: int
    metadata: str
    at: float


def commits_of(bootstrap: str, group: str) -> list[Commit]:
    """All commits of the group in the order of the log."""
    return [
        Commit(key.partition, value.offset, value.metadata or "", at)
        for key, value, at in commit_records(bootstrap)
        if key.group == group
    ]


class Edited(NamedTuple):
    """An edit that was made: the mark in the metadata of its commits, the offsets, and its begin and end."""

    mark: str
    offsets: dict[int, int]
    began: float
    ended: float


def anomalies(edits: list[Edited], deliveries: Deliveries, commits: Iterable[Commit], end: float) -> list[str]:
    """Deliveries and commits which show that the group did not go on at the edit."""
    log: dict[int, list[Commit]] = {}
    for one in commits:
        log.setdefault(one.partition, []).append(one)
    received = {partition: sorted(d for d in deliveries.found if d.partition == partition) for partition in log}
    found: list[str] = []
    for edit, following in zip(edits, [*(one.began for one in edits[1:]), end], strict=True):
        for partition, offset in edit.offsets.items():
            own = [n for n, one in enumerate(log.get(partition, ())) if one.metadata == edit.mark]
            if not own:
                found.append(f"{edit.mark}: no commit of partition {partition}")
                continue
            # A removed consumer receives records that it has fetched already, until it notices its removal.
            written = log[partition][own[-1]].at
            new = min((a for a in deliveries.assigned if a.partition == partition and a.at > written), default=None)
            begin, owner = (end, "") if new is None else (new.at, new.member)
            # A consumer that the machine delays reports a record of an earlier assignment after this one.
            first = next(
                (d.offset for d in between(received[partition], begin, following) if d.member == owner), offset
            )
            if first != offset:
                found.append(f"{edit.mark}: partition {partition} went on at {first}, not {offset}")
            # librdkafka commits a record before the consumer has reported it.
            reported = between(received[partition], begin, following + REPORTED_LATE_S)
            seen = {offset, *(one.offset + 1 for one in reported)}
            for one in log[partition][own[-1] + 1 :]:
                if one.metadata.startswith("edit-"):
                    break
                if one.at < following and one.offset not in seen:
                    found.append(
                        f"{edit.mark}: partition {partition} was committed at {one.offset}, edited to {offset}"
                    )
    return found


def between(deliveries: Sequence[Delivery], begin: float, end: float) -> Sequence[Delivery]:
    """The part of sorted deliveries in this time."""
    return deliveries[bisect_left(deliveries, (begin,)) : bisect_left(deliveries, (end,))]


def longest_pause(deliveries: Sequence[Delivery], begin: float, end: float) -> float:
    """The longest time without a delivery between ``begin`` and ``end``. The deliveries are sorted."""
    times = [begin, *(one.at for one in between(deliveries, begin, end)), end]
    return max(b - a for a, b in itertools.pairwise(times))


class ProcessMember(Member):
    """A consumer in a process of its own, which prints the lines of RunningConsumer.java. With the Java client,
    ``commit`` can also be "transaction"."""

    def start(self, settings: dict[str, Any]) -> None:
        command = self.command([self._topic, self._commit, str(round(self._work_s * 1000))], settings)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def command(self, work: list[str], settings: dict[str, Any]) -> list[str]:
        """Returns the command line. The subclasses define it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the consumer with SIGTERM, so that it leaves the group only when its session times out."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def kill(self) -> None:
        """Ends the consumer with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "E":
                self.errors.append(rest)
            elif kind in ("A", "R"):
                partition, offset, at = map(int, rest.split())
                if kind == "A":
                    self._deliveries.assign(partition, self.name, at / 1000)
                else:
                    self._deliveries.add(partition, offset, self.name, at / 1000)


def texts(settings: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


class JavaMember(ProcessMember):
    """A consumer of the Java client, of the jar set ``release``."""

    def command(self, work: list[str], settings: dict[str, Any]) -> list[str]:
        release = settings.pop("release", "kafka-4.4")
        program = Path(__file__).with_name("RunningConsumer.java")
        return java_command(
            [jars.resolve(release), jars.resolve("janino")],
            "org.codehaus.janino.SimpleCompiler",
            [str(program), "RunningConsumer", *work, *texts(settings)],
            jvm=("-Xmx128m", *QUICK_START),
        )


class PythonMember(ProcessMember):
    """A consumer of kafka-python or aiokafka (``package``)."""

    def command(self, work: list[str], settings: dict[str, Any]) -> list[str]:
        package = settings.pop("package")
        program = Path(__file__).with_name("python_member.py")
        python = str(clients() / "python" / "bin" / "python")
        return [python, str(program), package, *work, *texts({k.replace(".", "_"): v for k, v in settings.items()})]


class FranzMember(ProcessMember):
    """A consumer of franz-go."""

    def command(self, work: list[str], settings: dict[str, Any]) -> list[str]:
        return [str(clients() / "franz_member"), *work, *texts(settings)]


@functools.cache
def clients() -> Path:
    """The directory with the clients that ``scripts/clients`` installs."""
    named = os.environ.get("OFFSETMGR_CLIENTS")
    assert named, "set OFFSETMGR_CLIENTS to the output of scripts/clients"
    return Path(named)
