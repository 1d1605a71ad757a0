"""`CrossClusterCheck`: decides whether offsets of one store may be written to another.

An offset and a leader epoch are valid in one log only (data rule "numbers belong to one log"). A log belongs to one
Kafka cluster and to one incarnation of a topic: a recreated topic has another log. `offsetmgr.core.log_origin` compares
the clusters of two stores. `CrossClusterCheck` holds the result of the comparison for one command, and detects
recreated topics by their ids (KIP-516) and creation times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import OtherCluster, RecreatedTopic
from offsetmgr.core.log_origin import UNNAMED, LogOrigin, OriginComparison, Relation, TranslationChoice, compare_origins
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetSource, OffsetStore
from offsetmgr.snapshots.base import SnapshotHeader

_CLUSTER_ID: Final = re.compile("[A-Za-z0-9_-]{22}")
"""A cluster id of Kafka: a UUID in URL-safe Base64."""


def origin_of_snapshot(header: SnapshotHeader | None) -> LogOrigin:
    """Returns the origin of a snapshot according to its header; ``header`` is None if the file's format has no
    header."""
    if header is None:
        return replace(UNNAMED, how="the file names no Kafka cluster")
    cluster_id = header.log_cluster_id
    if (
        cluster_id is None
        and header.source_kind in ("kafka", "zookeeper")
        and _CLUSTER_ID.fullmatch(header.cluster_id or "")
    ):
        cluster_id = header.cluster_id  # the store id of a ZooKeeper without a cluster id has another form
    if cluster_id:
        return LogOrigin(cluster_id, "cluster id in the snapshot")
    if header.log_brokers:
        named = frozenset(header.log_brokers)
        return LogOrigin(None, f"the snapshot names the brokers {', '.join(sorted(named)[:3])}", named)
    return replace(UNNAMED, how="the snapshot names no Kafka cluster")


def with_origin(header: SnapshotHeader, origin: LogOrigin, topic_ids: Mapping[str, str]) -> SnapshotHeader:
    """Returns the header with the origin and the topic ids of the store from which the snapshot is taken."""
    return replace(
        header, log_cluster_id=origin.cluster_id, log_brokers=tuple(sorted(origin.brokers)), topic_ids=topic_ids
    )


_WITH_LOGS: Final = ("kafka:", "zookeeper:", "manager:")
_OTHER_HINT: Final = (
    "in the target's logs the same offsets belong to other records: {}reset the group by time (offsets reset "
    "{to_datetime}). If the target's topics are exact copies (the same records at the same offsets), add "
    "{translate=none} to write the offsets unchanged"
)

UNKNOWN_HINT: Final = Advice(
    "check the address and the chroot; if the offsets are positions in the logs of this Kafka cluster, add "
    "{translate=none}"
)


@dataclass
class CrossClusterCheck:
    """The check of one command that writes offsets of ``source`` to ``target``.

    Call in this order: 1. the constructor, which compares the clusters; 2. `check`, which rejects different clusters;
    3. `load_topics` for the topics of each batch; 4. `recreation_error` for each offset, and `adapt` for each value to
    write.
    """

    source: OffsetSource
    target: OffsetStore
    translate: TranslationChoice | None = None
    roles: tuple[str, str] = ("source", "target")
    """The words that messages use for the source and the target."""
    comparison: OriginComparison = field(init=False)
    _source_ids: Mapping[str, str] = field(default_factory=dict, init=False, repr=False)
    _target_ids: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _created: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _loaded: set[str] = field(default_factory=set, init=False, repr=False)
    _snapshot_taken_at_ms: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.source is self.target or self.source.uri == self.target.uri:
            self.comparison = OriginComparison(Relation.SAME, "source and target are one store")
        else:
            self.target.adopt(self.source.log_origin, self.source.topic_ids)
            self.comparison = compare_origins(self.source.log_origin(), self.target.log_origin(), self.roles)

    def check(self, what: str, hint: str = "", *, by_records: bool = False) -> None:
        """Raises `OtherCluster` if source and target are not known to belong to the same cluster, and the user has not
        chosen a translation. ``hint`` replaces the hint of the error. ``by_records`` tells whether the command can
        translate by the records."""
        if self.refused:
            why = self.why("the offsets are positions in the logs of another Kafka cluster")
            raise OtherCluster(
                what, why, hint or (UNKNOWN_HINT if self.comparison.needs_consent else self._hint(by_records))
            )

    def _hint(self, by_records: bool) -> Advice:
        """Names the option or the command that finds the right offsets in the target, if the logs of both clusters can
        be read."""
        source, target = self.source.uri, self.target.uri
        if not (source.startswith(_WITH_LOGS) and target.startswith(_WITH_LOGS)):
            return Advice(_OTHER_HINT, "")
        if by_records:
            return Advice(_OTHER_HINT, Advice("add {translate=auto} to write the offsets of the same records; or "))
        compare = Invocation("offsets diff", (), {"from": source, "to": target, "translate": "auto"})
        return Advice(_OTHER_HINT, Advice("{} shows the right ones, which offsets set writes; ", compare))

    @property
    def refused(self) -> bool:
        """Whether the offsets must not be written unless the user chooses a translation."""
        return (self.other_cluster or self.comparison.needs_consent) and self.translate is None

    def why(self, other: str) -> str:
        """Returns the reason of the refusal. ``other`` states that the clusters differ."""
        return f"{other}: {self.comparison.how}" if self.other_cluster else self.comparison.how

    @property
    def other_cluster(self) -> bool:
        """Whether source and target belong to different clusters, so that topic ids and creation times cannot be
        compared."""
        return self.comparison.relation is Relation.OTHER

    def text(self) -> str:
        """Returns the relation of the two clusters in one line, for people."""
        return self.comparison.text(self.translate)

    def adapt(self, value: OffsetAndMetadata) -> OffsetAndMetadata:
        """Returns the value to write to the target. Removes the leader epoch unless source and target are known to
        belong to the same cluster."""
        if value.leader_epoch is None or self.comparison.keeps_epochs:
            return value
        return value._replace(leader_epoch=None)

    # --- recreated topics ----------------------------------------------------------------------------

    def recreation_detection(self) -> str:
        """Returns a description, for people, of how the command detects topics that were recreated after a commit."""
        if self.other_cluster:
            return "not checked: the topics of another cluster have other logs"
        if self._snapshot_ids() is not None:
            return "checked by the topic ids in the snapshot, else by the time of creation in ZooKeeper"
        if self._stores_with_creation_times():
            return "checked by the time of creation in ZooKeeper; unknown for topics that it does not list"
        return "unknown: neither side has both the time of a commit and the time of the topic's creation"

    def load_topics(self, topics: Iterable[str]) -> None:
        """Reads the ids and creation times of these topics from the stores, unless they are cached."""
        new = set(topics) - self._loaded
        if not new or self.other_cluster:
            return
        self._loaded |= new
        if (ids := self._snapshot_ids()) is not None:
            self._source_ids = ids
            self._target_ids.update(self.target.topic_ids(new))
        for store in self._stores_with_creation_times():
            for topic, created in store.topic_creation_times(new - self._created.keys()).items():
                self._created[topic] = created

    def clear_cache(self) -> None:
        """Clears the cached topic ids and creation times, so that the next `load_topics` reads them from the stores
        again. A long-running command such as a mirror needs this."""
        self._loaded.clear()
        self._target_ids.clear()
        self._created.clear()

    def recreation_error(self, tp: TopicPartition, committed: Committed) -> RecreatedTopic | None:
        """Returns an error if the offset's topic was recreated after the commit. Returns None if the topic was not
        recreated, or if the topic ids and times needed for the comparison are unknown. Call `load_topics` for the topic
        first."""
        topic = tp.topic
        was, now = self._source_ids.get(topic), self._target_ids.get(topic)
        same_topic = was is not None and was == now
        if was is not None and now is not None and not same_topic:
            return _recreated(tp, f"its topic id was {was} and is {now}: the topic was deleted and recreated")
        created, at = self._created.get(topic), committed.commit_timestamp
        if at is None and not same_topic:  # equal ids prove that the topic was not recreated since the snapshot
            at = self._snapshot_taken_at_ms
        if created is None or at is None or created <= at:
            return None
        from offsetmgr.core.durations import utc_text  # only for the error

        why = f"committed at {utc_text(at)}, and the topic was created after that, at {utc_text(created)}"
        return _recreated(tp, why)

    def _snapshot_ids(self) -> Mapping[str, str] | None:
        """Returns the topic ids that the source recorded; only a snapshot records them."""
        header = getattr(self.source, "header", None)
        if header is None:
            return None
        self._snapshot_taken_at_ms = header.taken_at
        return header.topic_ids if header.topic_ids else None

    def _stores_with_creation_times(self) -> list[OffsetSource]:
        """Returns the stores that know creation times of topics, the source first."""
        return [store for store in (self.source, self.target) if store.has_topic_creation_times]


def holds_metadata(crossing: CrossClusterCheck | None) -> bool:
    """Returns whether the source can hold the metadata of commits, so that an empty text there means no metadata."""
    capabilities = None if crossing is None else getattr(crossing.source, "capabilities", None)
    return capabilities is None or bool(capabilities.metadata)


def _recreated(tp: TopicPartition, why: str) -> RecreatedTopic:
    return RecreatedTopic(str(tp), why, "the offset points into the deleted log; set a new one with offsets reset")
