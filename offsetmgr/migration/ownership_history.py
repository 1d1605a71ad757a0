"""Folding observations of a group into what each partition's owner was seen to do.

Pure. A movement counts for a member only if the very same ownership (the owner node's czxid) was there at both ends of
it, so a change of owner begins a new track. The tracks' conclusions rest on two orders: a dual member writes Kafka
before ZooKeeper and finishes one commit before it begins the next (ZookeeperConsumerConnector.commitOffsets), and one
observation reads ZooKeeper before Kafka.

* *ZooKeeper alone*: ZooKeeper moved to X, and Kafka, read afterwards, is below X. A dual member would have written X
  to Kafka first.
* *Kafka alone*: Kafka moved to X (beyond everything either store held before, so not the offset the member started
  from, which a dual member does not write again), then to Y, and ZooKeeper, read after Y was seen, has not moved. A
  dual member finishes X in ZooKeeper before it writes Y.
* *both*: both moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Absent, Committed, LogRange, Offset, TopicPartition
from offsetmgr.migration.group_snapshot import Observation, PartitionOwner, Reading, clock_time, reading_text


class OffsetChange(NamedTuple):
    """One change of a committed offset between two observations."""

    at_ms: int
    before: Offset
    after: Committed

    def __str__(self) -> str:
        text = f"{reading_text(self.before)} -> {self.after.offset}"
        if self.after.version is not None:
            before = self.before.version if isinstance(self.before, Committed) else "none"
            text += f" (version {before} -> {self.after.version})"
        return f"{text} at {clock_time(self.at_ms)}"


def offset_or(reading: Reading | None, default: int = -1) -> int:
    """Returns the offset, or a number below every offset, for comparisons."""
    return reading.offset if isinstance(reading, Committed) else default


@dataclass(slots=True)
class StoreHistory:
    """One store's offset of one partition under one ownership."""

    first: Offset | None = None
    last: Offset | None = None
    changes: list[OffsetChange] = field(default_factory=list)
    error: OffsetMgrError | None = None
    """The error of the newest read; None if it succeeded."""
    lowered: str | None = None
    """Set if the offset was deleted or went backwards, which no consumer does."""

    def add(self, at_ms: int, reading: Reading | None) -> bool:
        """Records one read; returns True if it shows a movement."""
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
    since_ms: int
    until_ms: int
    zookeeper: StoreHistory = field(default_factory=StoreHistory)
    kafka: StoreHistory = field(default_factory=StoreHistory)
    log: LogRange | None = None
    changed_ms: int = 0
    """When an offset or the log's end last changed; the start of the history before that."""
    zookeeper_alone: str | None = None
    """The proof that a commit went to ZooKeeper and not to Kafka."""
    kafka_alone: str | None = None
    """The proof that a commit went to Kafka and not to ZooKeeper."""

    @property
    def unchanged_ms(self) -> int:
        """Returns for how long neither an offset nor the log's end changed (milliseconds)."""
        return self.until_ms - self.changed_ms

    @property
    def new_kafka_changes(self) -> list[OffsetChange]:
        """Returns Kafka's movements beyond every offset of either store at the start of the history."""
        start = max(offset_or(self.kafka.first), offset_or(self.zookeeper.first))
        return [m for m in self.kafka.changes if m.after.offset > start]

    @property
    def lag(self) -> int | None:
        """Returns the messages that the group has not consumed, by the larger offset; None if unknown."""
        if self.log is None or self.zookeeper.error or self.kafka.error:
            return None
        committed = max(offset_or(self.zookeeper.last), offset_or(self.kafka.last))
        return max(0, self.log.end - max(committed, self.log.start))

    def add(self, observation: Observation) -> None:
        tp = self.partition
        ready_to_prove = len(self.new_kafka_changes) >= 2
        changed = self.zookeeper.add(observation.at_ms, observation.zookeeper.get(tp))
        changed |= self.kafka.add(observation.at_ms, observation.kafka.get(tp))
        log = observation.logs.get(tp)
        if isinstance(log, LogRange):
            changed |= self.log is not None and self.log.end != log.end
            self.log = log
        self.until_ms = observation.at_ms
        if changed:
            self.changed_ms = observation.at_ms
        self._prove(ready_to_prove)

    def _prove(self, second_kafka_move_seen_before: bool) -> None:
        if self.zookeeper.changes and not self.zookeeper_alone and self.kafka.error is None:
            change = self.zookeeper.changes[-1]
            if change.at_ms == self.until_ms and offset_or(self.kafka.last) < change.after.offset:
                self.zookeeper_alone = f"ZooKeeper {change}, Kafka read afterwards: {reading_text(self.kafka.last)}"
        untouched = not self.zookeeper.changes and self.zookeeper.error is None and self.zookeeper.lowered is None
        if second_kafka_move_seen_before and untouched and not self.kafka_alone:
            one, two = self.new_kafka_changes[:2]
            self.kafka_alone = (
                f"Kafka {one}, then {two}, ZooKeeper read afterwards: still {reading_text(self.zookeeper.last)}"
            )


class GroupHistory:
    """A series of observations of one group, folded as they come."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._partitions: dict[TopicPartition, PartitionHistory] = {}
        self.latest: Observation | None = None
        self.began_ms: int | None = None
        self._rebalanced_ms: int | None = None
        for observation in observations:
            self.add(observation)

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionHistory]:
        """Returns the history of each partition under its current ownership; partitions without an owner have none."""
        return self._partitions

    @property
    def steady_ms(self) -> int:
        """Returns for how long neither a registration nor an owner has changed (milliseconds)."""
        if self.latest is None or self._rebalanced_ms is None:
            return 0
        return self.latest.at_ms - self._rebalanced_ms

    def add(self, observation: Observation) -> None:
        """Records one observation; they must come in order."""
        before, self.latest = self.latest, observation
        if (
            before is None
            or _registrations(before) != _registrations(observation)
            or before.owners != observation.owners
        ):
            self._rebalanced_ms = observation.at_ms
        if self.began_ms is None:
            self.began_ms = observation.at_ms
        partitions: dict[TopicPartition, PartitionHistory] = {}
        for tp, owned in observation.owners.items():
            partition = self._partitions.get(tp)
            if partition is None or partition.owned != owned:
                partition = PartitionHistory(
                    tp, owned, observation.at_ms, observation.at_ms, changed_ms=observation.at_ms
                )
            partition.add(observation)
            partitions[tp] = partition
        self._partitions = partitions


def _registrations(observation: Observation) -> dict[str, int]:
    return {member.id: member.czxid for member in observation.members.values()}
