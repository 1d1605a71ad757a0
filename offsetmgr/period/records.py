"""The contents of the coordinator's znodes, and their encoding as JSON with a version. Pure.

The nodes have the same names as the nodes of the original coordinator (`is_legacy`), but their contents are JSON, with
partitions as runs such as ``0-3,7``. A member has one progress node for all its partitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Self

from offsetmgr.core.batches import by_topic
from offsetmgr.core.errors import CorruptData, UsageError
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import runs_of_numbers
from offsetmgr.period.schedule import Period, PeriodSchedule

VERSION: Final = 1
MAX_PARTITIONS: Final = 1_000_000
"""The maximum number of partitions in one field. With this limit a corrupt node cannot exhaust the memory."""

RUN: Final = re.compile("(0|[1-9][0-9]{0,9})(?:-(0|[1-9][0-9]{0,9}))?")


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition: ``first`` is inclusive, ``end`` exclusive.

    >>> OffsetRange(10, 25).end - OffsetRange(10, 25).first
    15
    """

    first: int
    end: int


class NodeReader(FieldReader):
    """Reads the fields of a node. All methods raise `CorruptData`."""

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """Parses a node. Raises `CorruptData`, `UnknownVersion`."""
        node = cls.parse(data, f"ZooKeeper node {path}", CorruptData)
        node.version((VERSION,))
        return node

    def ranges(self, name: str) -> dict[TopicPartition, OffsetRange]:
        """Returns the ranges in a field that `ranges_of` has written; empty if the field is missing."""
        found = {tp: OffsetRange(first, end) for tp, (first, end) in self.offsets(name, ("FIRST", "END")).items()}
        if broken := [tp for tp, offsets in found.items() if offsets.first > offsets.end]:
            raise self.error(f"the offsets of {broken[0].topic} are not PARTITION: [FIRST, END]")
        return found

    def offsets(self, name: str, row: tuple[str, ...]) -> dict[TopicPartition, list[int]]:
        """Returns the lists of offsets in a field that `by_topic` has written; empty if the field is missing. Each list
        must have as many offsets as ``row`` has names."""
        if name not in self:
            return {}
        found: dict[TopicPartition, list[int]] = {}
        for topic, numbers in self.mapping(name).items():
            for number, value in numbers.items() if isinstance(numbers, dict) else [("", None)]:
                offsets = value if isinstance(value, list) and all(type(n) is int for n in value) else []
                known = len(offsets) == len(row) and all(0 <= n < 2**63 for n in offsets)
                if not RUN.fullmatch(number) or "-" in number or not known:
                    raise self.error(f"the offsets of {topic} are not PARTITION: [{', '.join(row)}]")
                found[TopicPartition(topic, int(number))] = offsets
        return found

    def partitions(self, name: str) -> list[TopicPartition]:
        return self.runs(self.mapping(name))

    def runs(self, topics: object) -> list[TopicPartition]:
        """Returns the partitions in an object that `runs_of` has written."""
        if not isinstance(topics, dict):
            raise self.error("has no object where partitions should be")
        found: list[TopicPartition] = []
        for topic, runs in topics.items():
            for run in runs.split(",") if isinstance(runs, str) else [""]:
                match = RUN.fullmatch(run)
                first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
                if not first <= last < first + MAX_PARTITIONS - len(found):
                    raise self.error(f"the partitions of {topic} are not runs of numbers")
                found += (TopicPartition(topic, number) for number in range(first, last + 1))
        return found


def runs_of(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Returns for each topic its partitions as runs, such as ``0-3,7``."""
    return {
        topic: runs_of_numbers(tp.partition for tp in of_topic)
        for topic, of_topic in groupby(sorted(partitions), key=lambda tp: tp.topic)
    }


def ranges_of(ranges: Mapping[TopicPartition, OffsetRange]) -> dict[str, dict[str, list[int]]]:
    """Returns the ranges as ``{"topic": {"partition": [first, end]}}``."""
    return by_topic({tp: [offsets.first, offsets.end] for tp, offsets in ranges.items()})


def period_fields(period: Period) -> dict[str, int]:
    """Returns the fields of a node that hold a period."""
    return {"period": period.number, "start_ms": period.start_ms, "end_ms": period.end_ms}


def node_bytes(fields: Mapping[str, Any]) -> bytes:
    """Encodes a node with these fields and the version."""
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Rerun:
    """A rerun of past periods: the time at which the rerun ends, and the schedule that the run follows afterwards."""

    until_ms: int | None
    """The rerun ends before the first period that begins at or after this time. If the time is `None`, the rerun ends
    before the first period whose end is in the future."""
    then: PeriodSchedule | None
    """The schedule that the run adopts after the rerun; `None` if the run ends with the rerun. The run adopts the
    schedule at a time at which a period of this schedule begins."""


@dataclass(frozen=True, slots=True)
class OpenNode:
    """``coordinator``: the open period."""

    schedule: PeriodSchedule
    number: int
    leader: str
    """The member that opened it."""
    epoch: int
    """The leader's epoch; never decreases."""
    opened_ms: int
    """The time at which the leader opened the period, by the leader's clock."""
    stopped: str = ""
    """The reason why no further period will open; empty while the run continues."""
    rerun: Rerun | None = None
    done: bool = False
    """Whether the run ended because the last period of its rerun was closed."""

    @property
    def limit_ms(self) -> int:
        """The end of the open period: records with this time or a later one must wait."""
        return self.schedule.period(self.number).end_ms


@dataclass(frozen=True, slots=True)
class PartitionsNode:
    """``topic-partitions``: the partitions that must finish the open period."""

    number: int
    """The period that the partitions belong to."""
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ProgressNode:
    """``progress/MEMBER``: the progress of a member and of earlier processes with the same name."""

    member: str
    epoch: int
    """The member's epoch. Every earlier process with this name has a smaller epoch. A process that finds a larger epoch
    in the node does not write the node any more."""
    finished: Mapping[TopicPartition, int]
    idle: frozenset[TopicPartition] = field(default=frozenset())
    """The finished partitions that the leader reported because they had no record in the period."""
    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    """The offset range of each partition's newest finished period, if the partition's consumer reported the range."""


@dataclass(frozen=True, slots=True)
class MemberNode:
    """``members/MEMBER``: a live member and its partitions."""

    host: str
    process: int
    owned: frozenset[TopicPartition]
    """The partitions that the member consumes. An operator can read here which member consumes a partition that makes
    no progress."""
    epoch: int = 0
    """The epoch of the registration (see `state_nodes`), which is no part of the data; 0 before the registration."""


@dataclass(frozen=True, slots=True)
class ClosedPeriod:
    """``history/NUMBER``: a period that every partition has finished, or that was abandoned.

    ``opened_ms`` and ``closed_ms`` are times by the leaders' clocks, in milliseconds since 1970.
    """

    period: Period
    opened_ms: int
    closed_ms: int
    leader: str
    epoch: int
    by: Mapping[str, frozenset[TopicPartition]]
    """For each member the partitions that it reported."""
    idle: frozenset[TopicPartition] = field(default=frozenset())
    """The partitions that the leader reported because they had no record in the period."""
    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    """The offset range of the period, for partitions whose consumers reported it."""
    abandoned: str = ""
    """The reason why the period was abandoned; empty if every partition has finished it."""


def encode_open(node: OpenNode) -> bytes:
    return node_bytes(
        {
            "first_ms": node.schedule.first_ms,
            "length_ms": node.schedule.length_ms,
            "period": node.number,
            "limit_ms": node.limit_ms,
            "leader": node.leader,
            "epoch": node.epoch,
            "opened_ms": node.opened_ms,
            "stopped": node.stopped,
            "base": node.schedule.base,
            "done": int(node.done),
            **_rerun_fields(node.rerun),
        }
    )


def _rerun_fields(rerun: Rerun | None) -> dict[str, object]:
    if rerun is None:
        return {}
    then = rerun.then
    following = {"then_first_ms": then.first_ms, "then_length_ms": then.length_ms} if then else {}
    return {"rerun": 1, "until_ms": rerun.until_ms, **following}


def _rerun(node: NodeReader) -> Rerun | None:
    if not node.optional_integer("rerun"):
        return None
    first, length = node.optional_integer("then_first_ms"), node.optional_integer("then_length_ms")
    then = PeriodSchedule(first, length) if first is not None and length is not None else None
    return Rerun(node.optional_integer("until_ms"), then)


def decode_open(path: str, data: bytes) -> OpenNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
    node = NodeReader.of(path, data)
    try:
        schedule = PeriodSchedule(
            node.integer("first_ms"), node.integer("length_ms"), node.optional_integer("base") or 0
        )
        found = OpenNode(
            schedule,
            node.integer("period"),
            node.text("leader"),
            node.integer("epoch"),
            node.integer("opened_ms"),
            node.text("stopped"),
            _rerun(node),
            bool(node.optional_integer("done")),
        )
        limit = found.limit_ms
    except UsageError as error:
        raise node.error(str(error)) from error
    if limit != node.integer("limit_ms"):
        raise node.error("its limit is not the end of its period")
    return found


def encode_partitions(node: PartitionsNode) -> bytes:
    return node_bytes({"period": node.number, "topics": runs_of(node.partitions)})


def decode_partitions(path: str, data: bytes) -> PartitionsNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
    node = NodeReader.of(path, data)
    return PartitionsNode(node.integer("period"), frozenset(node.partitions("topics")))


def encode_progress(node: ProgressNode) -> bytes:
    numbers = sorted(set(node.finished.values()))
    finished = {str(n): runs_of(tp for tp, number in node.finished.items() if number == n) for n in numbers}
    return node_bytes(
        {
            "member": node.member,
            "epoch": node.epoch,
            "finished": finished,
            "idle": runs_of(node.idle),
            "ranges": ranges_of(node.ranges),
        }
    )


def decode_progress(path: str, data: bytes) -> ProgressNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
    node = NodeReader.of(path, data)
    finished: dict[TopicPartition, int] = {}
    for name, topics in node.mapping("finished").items():
        if not RUN.fullmatch(name) or "-" in name:
            raise node.error(f"{name!r} is not the number of a period")
        for partition in node.runs(topics):
            if partition in finished:
                raise node.error(f"contains {partition} twice among the finished partitions")
            finished[partition] = int(name)
    idle = frozenset(node.partitions("idle"))
    return ProgressNode(node.text("member"), node.integer("epoch"), finished, idle, node.ranges("ranges"))


def encode_member(node: MemberNode) -> bytes:
    return node_bytes({"host": node.host, "process": node.process, "owned": runs_of(node.owned)})


def decode_member(path: str, data: bytes) -> MemberNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
    node = NodeReader.of(path, data)
    return MemberNode(node.text("host"), node.integer("process"), frozenset(node.partitions("owned")))


def encode_closed(node: ClosedPeriod) -> bytes:
    return node_bytes(
        {
            **period_fields(node.period),
            "opened_ms": node.opened_ms,
            "closed_ms": node.closed_ms,
            "leader": node.leader,
            "epoch": node.epoch,
            "by": {member: runs_of(partitions) for member, partitions in node.by.items()},
            "idle": runs_of(node.idle),
            "ranges": ranges_of(node.ranges),
            "abandoned": node.abandoned,
        }
    )


def decode_closed(path: str, data: bytes) -> ClosedPeriod:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
    node = NodeReader.of(path, data)
    period = Period(node.integer("period"), node.integer("start_ms"), node.integer("end_ms"))
    if period.end_ms <= period.start_ms:
        raise node.error("its period ends before it begins")
    return ClosedPeriod(
        period,
        node.integer("opened_ms"),
        node.integer("closed_ms"),
        node.text("leader"),
        node.integer("epoch"),
        {member: frozenset(node.runs(topics)) for member, topics in node.mapping("by").items()},
        frozenset(node.partitions("idle")),
        node.ranges("ranges"),
        node.text("abandoned"),
    )


# Recognises the original coordinator's nodes, which are plain text without a version, and reads the time in
# ``coordinator``. Pure. The members of the original coordinator write the nodes unconditionally, so they must not run
# together with offsetmgr's members. Source: the period coordinator's document, "shared storage".

_TIME: Final = re.compile(rb"[0-9]{1,19}")


def is_legacy(data: bytes) -> bool:
    """Returns whether the original coordinator wrote a node: its content is not empty and does not begin with ``{``."""
    return bool(data.strip()) and not data.lstrip().startswith(b"{")


def parse_limit(data: bytes) -> int | None:
    """Returns the end of the open period in ms, from ``coordinator``; None if the node contains no time, or 0, which
    means that no end was ever set."""
    return int(data) or None if _TIME.fullmatch(data.strip()) else None
