"""Combines observations of a group into the history of each partition, which shows where the owner of the partition
commits.

Pure. A change of an offset is attributed to a member only if the same ownership (the czxid of the owner's znode) was
observed before and after the change. Therefore a change of the owner begins a new history. The conclusions rely on two
orders: a dual member writes Kafka before ZooKeeper and finishes one commit before it begins the next
(ZookeeperConsumerConnector.commitOffsets), and an observation reads ZooKeeper before Kafka.

* *ZooKeeper alone*: the offset in ZooKeeper changed to X, and the offset in Kafka, read afterwards, is below X. A dual
  member would have written X to Kafka first.
* *Kafka alone*: the offset in Kafka changed to X and then to Y, and the offset in ZooKeeper, read after Y was observed,
  has not changed. A dual member finishes the commit of X in ZooKeeper before it begins the commit of Y. X must be
  larger than both stores' offsets at the start of the history, because a dual member does not write its starting offset
  again.
* *both*: the offsets in both stores changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Absent, Committed, LogRange, Offset, TopicPartition
from offsetmgr.migration.observation import Observation, OffsetReadResult, PartitionOwner, clock_time, reading_text


class OffsetChange(NamedTuple):
    """A change of a committed offset between two observations."""

    at_ms: int
    before: Offset
    after: Committed

    def __str__(self) -> str:
        text = f"{reading_text(self.before)} -> {self.after.offset}"
        if self.after.version is not None:
            before = self.before.version if isinstance(self.before, Committed) else "none"
            text += f" (version {before} -> {self.after.version})"
        return f"{text} at {clock_time(self.at_ms)}"


def offset_or(reading: OffsetReadResult | None, default: int = -1) -> int:
    """Returns the offset of a read result, for comparisons with other offsets. Returns ``default`` if the read result
    has no offset."""
    return reading.offset if isinstance(reading, Committed) else default


@dataclass(slots=True)
class StoreHistory:
    """The offsets of one partition in one store under one ownership."""

    first: Offset | None = None
    last: Offset | None = None
    changes: list[OffsetChange] = field(default_factory=list)
    error: OffsetMgrError | None = None
    """The error of the latest read; None if the read succeeded."""
    lowered: str | None = None
    """The change, as text, if the offset was deleted or decreased. No consumer makes such a change."""

    def add(self, at_ms: int, reading: OffsetReadResult | None) -> bool:
        """Records one read; returns True if the offset has changed."""
        if reading is None or isinstance(reading, OffsetMgrError):
            self.error = reading if reading is not None else OffsetMgrError("offset", "it was not read")
            return False
        self.error = None
        before, self.last = self.last, reading
        if before is None:
            self.first = reading
            return False
        if _same(before, reading):
            return False
        if isinstance(reading, Absent) or offset_or(reading) < offset_or(before):
            self.lowered = f"{reading_text(before)} -> {reading_text(reading)} at {clock_time(at_ms)}"
        else:
            self.changes.append(OffsetChange(at_ms, before, reading))
        return True


def _same(one: Offset, other: Offset) -> bool:
    if isinstance(one, Committed) and isinstance(other, Committed):
        return one.offset == other.offset and one.version == other.version
    return isinstance(one, Absent) and isinstance(other, Absent)


@dataclass(slots=True)
class PartitionHistory:
    """All observations of one partition under one ownership."""

    partition: TopicPartition
    owned: PartitionOwner
    until_ms: int
    zookeeper: StoreHistory = field(default_factory=StoreHistory)
    kafka: StoreHistory = field(default_factory=StoreHistory)
    log: LogRange | None = None
    changed_ms: int = 0
    """The time at which an offset or the log's end last changed, initially the start of the history."""
    zookeeper_alone: str | None = None
    """The proof, as text, that a commit went to ZooKeeper and not to Kafka."""
    kafka_alone: str | None = None
    """The proof, as text, that a commit went to Kafka and not to ZooKeeper."""

    @property
    def unchanged_ms(self) -> int:
        """The milliseconds since an offset or the log's end last changed."""
        return self.until_ms - self.changed_ms

    @property
    def new_kafka_changes(self) -> list[OffsetChange]:
        """The changes in Kafka to an offset that is larger than both stores' offsets at the start of the history."""
        start = max(offset_or(self.kafka.first), offset_or(self.zookeeper.first))
        return [m for m in self.kafka.changes if m.after.offset > start]

    @property
    def lag(self) -> int | None:
        """The number of messages between the larger of both stores' offsets and the log's end. None if the log's end or
        an offset is unknown."""
        if self.log is None or self.zookeeper.error or self.kafka.error:
            return None
        committed = max(offset_or(self.zookeeper.last), offset_or(self.kafka.last))
        return max(0, self.log.end - max(committed, self.log.start))

    def add(self, observation: Observation) -> None:
        tp = self.partition
        two_kafka_changes_before = len(self.new_kafka_changes) >= 2
        changed = self.zookeeper.add(observation.at_ms, observation.zookeeper.get(tp))
        changed |= self.kafka.add(observation.at_ms, observation.kafka.get(tp))
        log = observation.logs.get(tp)
        if isinstance(log, LogRange):
            changed |= self.log is not None and self.log.end != log.end
            self.log = log
        self.until_ms = observation.at_ms
        if changed:
            self.changed_ms = observation.at_ms
        self._prove(two_kafka_changes_before)

    def _prove(self, two_kafka_changes_before: bool) -> None:
        if self.zookeeper.changes and not self.zookeeper_alone and self.kafka.error is None:
            change = self.zookeeper.changes[-1]
            if change.at_ms == self.until_ms and offset_or(self.kafka.last) < change.after.offset:
                self.zookeeper_alone = f"ZooKeeper {change}, Kafka read afterwards: {reading_text(self.kafka.last)}"
        zookeeper_unchanged = (
            not self.zookeeper.changes and self.zookeeper.error is None and self.zookeeper.lowered is None
        )
        if two_kafka_changes_before and zookeeper_unchanged and not self.kafka_alone:
            one, two = self.new_kafka_changes[:2]
            self.kafka_alone = (
                f"Kafka {one}, then {two}, ZooKeeper read afterwards: still {reading_text(self.zookeeper.last)}"
            )


class GroupHistory:
    """The history of a group: its observations, combined as they arrive."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._partitions: dict[TopicPartition, PartitionHistory] = {}
        self.latest: Observation | None = None
        self.began_ms: int | None = None
        self._last_rebalance_ms: int | None = None
        for observation in observations:
            self.add(observation)

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionHistory]:
        """The history of each partition under its current ownership. Partitions without an owner have no history."""
        return self._partitions

    @property
    def steady_ms(self) -> int:
        """The milliseconds since a registration or an owner last changed."""
        if self.latest is None or self._last_rebalance_ms is None:
            return 0
        return self.latest.at_ms - self._last_rebalance_ms

    def add(self, observation: Observation) -> None:
        """Records one observation. Observations must be added in the order of their times."""
        before, self.latest = self.latest, observation
        if (
            before is None
            or _registrations(before) != _registrations(observation)
            or before.owners != observation.owners
        ):
            self._last_rebalance_ms = observation.at_ms
        if self.began_ms is None:
            self.began_ms = observation.at_ms
        partitions: dict[TopicPartition, PartitionHistory] = {}
        for tp, owned in observation.owners.items():
            partition = self._partitions.get(tp)
            if partition is None or partition.owned != owned:
                partition = PartitionHistory(tp, owned, observation.at_ms, changed_ms=observation.at_ms)
            partition.add(observation)
            partitions[tp] = partition
        self._partitions = partitions


def _registrations(observation: Observation) -> dict[str, int]:
    return {member.id: member.czxid for member in observation.members.values()}
