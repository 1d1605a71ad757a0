"""What the coordinator's nodes hold, and their bytes: JSON with a version in each. Pure.

One node of a member says all that it has finished. The names are those of the original's nodes (`legacy_nodes`), the
form is that of `node_codec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.node_codec import RUN, NodeReader, OffsetRange, node_bytes, ranges_of, runs_of
from offsetmgr.period.schedule import Period, PeriodSchedule


@dataclass(frozen=True, slots=True)
class Rerun:
    """That a run goes through the past, until when, and what then."""

    until_ms: int | None
    """No period beginning at or after this time is a rerun's; None: those that have not passed yet are not."""
    then: PeriodSchedule | None
    """The schedule that it takes on then, at the first of that one's beginnings; None: the run ends."""


@dataclass(frozen=True, slots=True)
class OpenNode:
    """``coordinator``: which period is open."""

    schedule: PeriodSchedule
    number: int
    leader: str
    """The member that opened it."""
    epoch: int
    """The leader's; never goes down."""
    opened_ms: int
    """When, by the leader's clock."""
    stopped: str = ""
    """Why no further period will open; empty while the run goes on."""
    rerun: Rerun | None = None
    done: bool = False
    """Whether it stopped because it was done, with its last period closed."""

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
    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    """The offsets that the newest finished period of a partition had, where its consumer told."""


@dataclass(frozen=True, slots=True)
class MemberNode:
    """``members/MEMBER``: who is there, and for what."""

    host: str
    process: int
    owned: frozenset[TopicPartition]
    """The partitions that it consumes; said so that a stuck one has somebody to ask."""


@dataclass(frozen=True, slots=True)
class ClosedPeriod:
    """``history/NUMBER``: a period that every partition has finished (or that was given up).

    Times by the leaders' clocks, in ms.
    """

    period: Period
    opened_ms: int
    closed_ms: int
    leader: str
    epoch: int
    by: Mapping[str, frozenset[TopicPartition]]
    """Who reported which partitions."""
    idle: frozenset[TopicPartition] = field(default=frozenset())
    """Those that had no record in it."""
    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    """The offsets of those whose consumers told them."""
    abandoned: str = ""
    """Why it was given up instead of being finished; empty for a period that was closed."""


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
    if not node.optional_number("rerun"):
        return None
    first, length = node.optional_number("then_first_ms"), node.optional_number("then_length_ms")
    then = PeriodSchedule(first, length) if first is not None and length is not None else None
    return Rerun(node.optional_number("until_ms"), then)


def decode_open(path: str, data: bytes) -> OpenNode:
    """Raises `CorruptData`, `UnknownVersion`, which name ``path``."""
    node = NodeReader(path, data)
    try:
        schedule = PeriodSchedule(node.number("first_ms"), node.number("length_ms"), node.optional_number("base") or 0)
        found = OpenNode(
            schedule,
            node.number("period"),
            node.text("leader"),
            node.number("epoch"),
            node.number("opened_ms"),
            node.text("stopped"),
            _rerun(node),
            bool(node.optional_number("done")),
        )
        limit = found.limit_ms
    except CorruptData:
        raise
    except OffsetMgrError as error:
        raise node.broken(str(error)) from error
    if limit != node.number("limit_ms"):
        raise node.broken("its limit is not the end of its period")
    return found


def encode_partitions(node: PartitionsNode) -> bytes:
    return node_bytes({"period": node.number, "topics": runs_of(node.partitions)})


def decode_partitions(path: str, data: bytes) -> PartitionsNode:
    """Raises `CorruptData`, `UnknownVersion`, which name ``path``."""
    node = NodeReader(path, data)
    return PartitionsNode(node.number("period"), frozenset(node.partitions("topics")))


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
    """Raises `CorruptData`, `UnknownVersion`, which name ``path``."""
    node = NodeReader(path, data)
    finished: dict[TopicPartition, int] = {}
    for name, topics in node.mapping("finished").items():
        if not RUN.fullmatch(name) or "-" in name:
            raise node.broken(f"{name!r} is not the number of a period")
        for partition in node.runs(topics):
            if partition in finished:
                raise node.broken(f"says of {partition} twice what it has finished")
            finished[partition] = int(name)
    idle = frozenset(node.partitions("idle"))
    return ProgressNode(node.text("member"), node.number("epoch"), finished, idle, node.ranges("ranges"))


def encode_member(node: MemberNode) -> bytes:
    return node_bytes({"host": node.host, "process": node.process, "owned": runs_of(node.owned)})


def decode_member(path: str, data: bytes) -> MemberNode:
    """Raises `CorruptData`, `UnknownVersion`, which name ``path``."""
    node = NodeReader(path, data)
    return MemberNode(node.text("host"), node.number("process"), frozenset(node.partitions("owned")))


def encode_closed(node: ClosedPeriod) -> bytes:
    return node_bytes(
        {
            "period": node.period.number,
            "start_ms": node.period.start_ms,
            "end_ms": node.period.end_ms,
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
    """Raises `CorruptData`, `UnknownVersion`, which name ``path``."""
    node = NodeReader(path, data)
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
        frozenset(node.partitions("idle")),
        node.ranges("ranges"),
        node.text("abandoned"),
    )
