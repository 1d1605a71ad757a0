"""`ClusterLogs`: the topics and log ranges of the Kafka cluster, for one command."""

from __future__ import annotations

from collections.abc import Iterable

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    CorruptData,
    OffsetMgrError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from offsetmgr.core.log_origin import LogRangeCache
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import Logs, describable_topics
from offsetmgr.migration.plan import MissingTopic, clamp_text


class ClusterLogs:
    """A `LogRangeCache` that distinguishes missing topics from missing partitions.

    Partitions of Kafka 0.7 are not looked up, because their positions belong to no log of this cluster.
    """

    def __init__(self, cluster: Logs | None) -> None:
        self._cluster = cluster
        self._topics: dict[str, int] = {}
        self._requested_topics: set[str] = set()
        self._hidden: dict[str, OffsetMgrError] = {}
        """The error of each topic that the principal may not describe. Such a topic does not count as missing."""
        self._ranges = LogRangeCache(cluster.log_ranges if cluster is not None else lambda _: {})

    def load(
        self, partitions: Iterable[TopicPartition] = (), offsets: Iterable[tuple[TopicPartition, int]] = ()
    ) -> None:
        """Requests the log ranges that `LogRangeCache.load` needs, and the topics that were not requested yet."""
        if self._cluster is None:
            return
        partitions, offsets = set(partitions), list(offsets)
        topics = {tp.topic for tp in partitions if tp.partition >= 0}
        topics.update(tp.topic for tp, _ in offsets if tp.partition >= 0)
        if names := topics - self._requested_topics:
            self._requested_topics |= names
            counts, hidden = describable_topics(self._cluster, names)
            self._topics.update(counts)
            self._hidden.update(hidden)
        self._ranges.load(
            (tp for tp in partitions if self._exists(tp)), ((tp, offset) for tp, offset in offsets if self._exists(tp))
        )

    def _exists(self, tp: TopicPartition) -> bool:
        return 0 <= tp.partition < self._topics.get(tp.topic, 0)

    def get(self, tp: TopicPartition) -> LogRange | MissingTopic | OffsetMgrError | None:
        """Returns the log range of a loaded partition, or the reason why the log range is unknown. Returns None if
        there is no cluster, or if ``tp`` is a partition of Kafka 0.7."""
        if self._cluster is None or tp.partition < 0:
            return None
        if tp.topic in self._hidden:
            return self._hidden[tp.topic]
        if tp.topic not in self._topics:
            return MissingTopic.TOPIC
        return self._ranges.known[tp] if self._exists(tp) else MissingTopic.PARTITION

    def holds(self, tp: TopicPartition, offset: int) -> bool:
        """Returns whether an offset is within the log of its partition (the log's end is allowed). Returns True if
        there is no cluster."""
        found = self._ranges.known.get(tp)
        if isinstance(found, LogRange):
            return found.start <= offset <= found.end
        return self._cluster is None or tp.partition < 0

    def rejection(self, tp: TopicPartition, offset: int) -> OffsetMgrError | None:
        """Returns the error of an offset outside its current log; None if the offset may be written."""
        if self.holds(tp, offset):
            return None
        found = self.get(tp)
        if isinstance(found, LogRange):
            why = f"{offset} is outside its log now; {clamp_text(offset, found)}"
            return OffsetOutOfRange(
                str(tp), why, Advice("make a new plan, with {clamp} if clamping is acceptable"), log_range=found
            )
        if isinstance(found, MissingTopic):
            return UnknownTopicOrPartition(str(tp), found.value, "make a new plan")
        return CorruptData(str(tp), f"its log range could not be read: {found}", "fix the cause, then apply again")

    def end(self, tp: TopicPartition) -> int | None:
        """Returns the log end offset; None if unknown."""
        found = self._ranges.known.get(tp)
        return found.end if isinstance(found, LogRange) else None
