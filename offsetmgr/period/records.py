"""What the coordinator's nodes hold, and their bytes: JSON with a version in each. Pure.

Sets of partitions are written as runs of numbers (``"0-49,51"``), so that one node of a member says all that it has
finished. The names are those of the original's nodes (`oldform`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from offsetmgr.errors import OffsetMgrError, UnknownVersion, Unreadable
from offsetmgr.model import TopicPartition
from offsetmgr.period.schedule import Period, Schedule

VERSION: Final = 1
MOST_PARTITIONS: Final = 1_000_000
"""Of one run of numbers, so that a broken node cannot fill the memory."""

_RUN: Final = re.compile("(0|[1-9][0-9]{0,9})(?:-(0|[1-9][0-9]{0,9}))?")


@dataclass(frozen=True, slots=True)
class OpenNode:
    """``coordinator``: which period is open."""

    schedule: Schedule
    number: int
    leader: str
    """The member that opened it."""
    epoch: int
    """The leader's; never goes down."""
    opened_ms: int
    """When, by the leader's clock."""
    stopped: str = ""
    """Why no further period will open; empty while the run goes on."""

    @property
    def limit_ms(self) -> int:
        """The open period's end: records from this time on must wait."""
        return self.schedule.period(self.number).end_ms


@dataclass(frozen=True, slots=True)
class PartitionsNode:
    """``topic-partitions``: who must finish the open period."""

    number: int
    """The period that this is said of."""
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ProgressNode:
    """``progress/MEMBER``: what a member, and those of its name before it, have finished."""

    member: str
    epoch: int
    """The member's: larger than that of every earlier one of its name, which can therefore write nothing more."""
    finished: Mapping[TopicPartition, int]
    idle: frozenset[TopicPartition] = field(default=frozenset())
    """Those of them that had no record in the period, known from Kafka's offsets for a time."""


@dataclass(frozen=True, slots=True)
class MemberNode:
    """``members/MEMBER``: who is there, and for what."""

    host: str
    process: int
    owned: frozenset[TopicPartition]
    """The partitions that it consumes; said so that a stuck one has somebody to ask."""


@dataclass(frozen=True, slots=True)
class ClosedPeriod:
    """``history/NUMBER``: a period that every partition has finished. Times by the leaders' clocks, in ms."""

    period: Period
    opened_ms: int
    closed_ms: int
    leader: str
    epoch: int
    by: Mapping[str, frozenset[TopicPartition]]
    """Who reported which partitions."""


def encode_open(node: OpenNode) -> bytes:
    return _bytes(
        {
            "first_ms": node.schedule.first_ms,
            "length_ms": node.schedule.length_ms,
            "period": node.number,
            "limit_ms": node.limit_ms,
            "leader": node.leader,
            "epoch": node.epoch,
            "opened_ms": node.opened_ms,
            "stopped": node.stopped,
        }
    )


def decode_open(path: str, data: bytes) -> OpenNode:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _Node(path, data)
    try:
        schedule = Schedule(node.number("first_ms"), node.number("length_ms"))
        found = OpenNode(
            schedule,
            node.number("period"),
            node.text("leader"),
            node.number("epoch"),
            node.number("opened_ms"),
            node.text("stopped"),
        )
        limit = found.limit_ms
    except Unreadable:
        raise
    except OffsetMgrError as error:
        raise node.broken(str(error)) from error
    if limit != node.number("limit_ms"):
        raise node.broken("its limit is not the end of its period")
    return found


def encode_partitions(node: PartitionsNode) -> bytes:
    return _bytes({"period": node.number, "topics": _runs(node.partitions)})


def decode_partitions(path: str, data: bytes) -> PartitionsNode:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _Node(path, data)
    return PartitionsNode(node.number("period"), frozenset(node.partitions("topics")))


def encode_progress(node: ProgressNode) -> bytes:
    numbers = sorted(set(node.finished.values()))
    finished = {str(n): _runs(tp for tp, number in node.finished.items() if number == n) for n in numbers}
    return _bytes({"member": node.member, "epoch": node.epoch, "finished": finished, "idle": _runs(node.idle)})


def decode_progress(path: str, data: bytes) -> ProgressNode:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _Node(path, data)
    finished: dict[TopicPartition, int] = {}
    for name, topics in node.mapping("finished").items():
        if not _RUN.fullmatch(name) or "-" in name:
            raise node.broken(f"{name!r} is not the number of a period")
        for partition in node.runs(topics):
            if partition in finished:
                raise node.broken(f"says of {partition} twice what it has finished")
            finished[partition] = int(name)
    return ProgressNode(node.text("member"), node.number("epoch"), finished, frozenset(node.partitions("idle")))


def encode_member(node: MemberNode) -> bytes:
    return _bytes({"host": node.host, "process": node.process, "owned": _runs(node.owned)})


def decode_member(path: str, data: bytes) -> MemberNode:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _Node(path, data)
    return MemberNode(node.text("host"), node.number("process"), frozenset(node.partitions("owned")))


def encode_closed(node: ClosedPeriod) -> bytes:
    return _bytes(
        {
            "period": node.period.number,
            "start_ms": node.period.start_ms,
            "end_ms": node.period.end_ms,
            "opened_ms": node.opened_ms,
            "closed_ms": node.closed_ms,
            "leader": node.leader,
            "epoch": node.epoch,
            "by": {member: _runs(partitions) for member, partitions in node.by.items()},
        }
    )


def decode_closed(path: str, data: bytes) -> ClosedPeriod:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _Node(path, data)
    period = Period(node.number("period"), node.number("start_ms"), node.number("end_ms"))
    if period.end_ms <= period.start_ms:
        raise node.broken("its period ends before it begins")
    return ClosedPeriod(
        period,
        node.number("opened_ms"),
        node.number("closed_ms"),
        node.text("leader"),
        node.number("epoch"),
        {member: frozenset(node.runs(topics)) for member, topics in node.mapping("by").items()},
    )


class _Node:
    """A node's object, its fields read one by one; fields that nobody knows are left alone."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.broken("is not JSON") from error
        if not isinstance(fields, dict):
            raise self.broken("is JSON, but not an object")
        self._fields: dict[str, Any] = fields
        version = self.number("version")
        if version != VERSION:
            raise UnknownVersion(f"ZooKeeper node {path}", f"is of version {version}; known: {VERSION}")

    def broken(self, why: str) -> Unreadable:
        return Unreadable(f"ZooKeeper node {self._path}", why)

    def number(self, name: str) -> int:
        value = self._fields.get(name)
        if type(value) is not int or not 0 <= value < 2**63:
            raise self.broken(f"has no number {name!r} of up to 63 bits")
        return value

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise self.broken(f"has no text {name!r}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self.broken(f"has no object {name!r}")
        return value

    def partitions(self, name: str) -> list[TopicPartition]:
        return self.runs(self.mapping(name))

    def runs(self, topics: object) -> list[TopicPartition]:
        """Topic -> runs of numbers, as `_runs` writes them."""
        if not isinstance(topics, dict):
            raise self.broken("has no object where partitions should be")
        found: list[TopicPartition] = []
        for topic, runs in topics.items():
            for run in runs.split(",") if isinstance(runs, str) else [""]:
                match = _RUN.fullmatch(run)
                first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
                if not first <= last < first + MOST_PARTITIONS - len(found):
                    raise self.broken(f"the partitions of {topic} are not runs of numbers")
                found += (TopicPartition(topic, number) for number in range(first, last + 1))
        return found


def _runs(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    return {
        topic: ",".join(_run(numbers) for numbers in _neighbours(sorted({tp.partition for tp in of_topic})))
        for topic, of_topic in groupby(sorted(partitions), key=lambda tp: tp.topic)
    }


def _neighbours(numbers: list[int]) -> Iterable[list[int]]:
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        yield [number for _, number in run]


def _run(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _bytes(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()
