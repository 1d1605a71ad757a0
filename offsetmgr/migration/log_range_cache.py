"""A cache of the Kafka cluster's topics and log ranges, for one command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from offsetmgr.core.errors import CorruptData, OffsetMgrError, OffsetOutOfRange, UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.base import Logs
from offsetmgr.migration.plan import MissingTopic, clamp_text


@dataclass(slots=True)
class LogRangeCache:
    """Topics and log ranges of the Kafka cluster, each requested once.

    Partitions of Kafka 0.7 are not looked up, because their positions belong to no log of this cluster. Memory grows
    with the partitions of the cluster, not with the offsets of the plan.
    """

    cluster: Logs | None
    _topics: dict[str, int] = field(default_factory=dict)
    _requested_topics: set[str] = field(default_factory=set)
    _known: dict[TopicPartition, LogRange | OffsetMgrError] = field(default_factory=dict)

    def load(self, partitions: Iterable[TopicPartition]) -> None:
        """Requests the partitions that are not cached yet, in bulk."""
        if self.cluster is None:
            return
        new = {tp for tp in partitions if tp.partition >= 0} - self._known.keys()
        if names := {tp.topic for tp in new} - self._requested_topics:
            self._topics.update(self.cluster.topics(names))
            self._requested_topics |= names
        if existing := [tp for tp in new if tp.partition < self._topics.get(tp.topic, 0)]:
            self._known.update(self.cluster.log_ranges(existing))

    def refresh(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Requests the log range again for each partition whose offset in ``offsets`` is beyond the cached log end,
        because the log may have grown."""
        stale = {tp for tp, offset in offsets if (end := self.end(tp)) is not None and offset > end}
        if stale and self.cluster is not None:
            self._known.update(self.cluster.log_ranges(stale))

    def get(self, tp: TopicPartition) -> LogRange | MissingTopic | OffsetMgrError | None:
        """Returns the log range of a loaded partition, or the reason why the log range is unknown. Returns None if the
        cache has no cluster, or if ``tp`` is a partition of Kafka 0.7."""
        if self.cluster is None or tp.partition < 0:
            return None
        if tp.topic not in self._topics:
            return MissingTopic.TOPIC
        if not 0 <= tp.partition < self._topics[tp.topic]:
            return MissingTopic.PARTITION
        return self._known[tp]

    def holds(self, tp: TopicPartition, offset: int) -> bool:
        """Returns whether an offset is within the log of its partition (the log's end is allowed). Returns True if the
        cache has no cluster."""
        found = self._known.get(tp)
        if isinstance(found, LogRange):
            return found.start <= offset <= found.end
        return self.cluster is None or tp.partition < 0

    def rejection(self, tp: TopicPartition, offset: int) -> OffsetMgrError | None:
        """Returns the error of an offset outside its current log; None if the offset may be written."""
        if self.holds(tp, offset):
            return None
        found = self.get(tp)
        if isinstance(found, LogRange):
            why = f"{offset} is outside its log now; {clamp_text(offset, found)}"
            return OffsetOutOfRange(
                str(tp), why, "make a new plan, with --clamp if clamping is acceptable", log_range=found
            )
        if isinstance(found, MissingTopic):
            return UnknownTopicOrPartition(str(tp), found.value, "make a new plan")
        return CorruptData(str(tp), f"its log range could not be read: {found}", "fix the cause, then apply again")

    def end(self, tp: TopicPartition) -> int | None:
        """Returns the log end offset; None if unknown."""
        found = self._known.get(tp)
        return found.end if isinstance(found, LogRange) else None
