"""Decides whether offsets of one store may be written to another: an offset and a leader epoch are valid in one log
only (data rule "numbers belong to one log").

A log belongs to a topic of a Kafka cluster and to one incarnation of that topic: a recreated topic has another log.
`offsetmgr.core.log_origin` compares the clusters of two stores; `CrossClusterCheck` keeps the result for one command,
with the known recreated topics. Source: topic ids (KIP-516).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, runtime_checkable

from offsetmgr.core.errors import OtherCluster, RecreatedTopic
from offsetmgr.core.log_origin import UNNAMED, LogOrigin, OffsetTranslation, OriginComparison, Relation, compare_origins
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.snapshots.base import SnapshotHeader

_CLUSTER_ID: Final = re.compile("[A-Za-z0-9_-]{22}")
"""A cluster id of Kafka: a UUID in URL-safe Base64."""


def origin_of_snapshot(header: SnapshotHeader | None) -> LogOrigin:
    """Returns the origin of a snapshot according to its header; None is a format without a header."""
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
    """Returns the header of a snapshot of a store with this origin and these topic ids."""
    return replace(
        header, log_cluster_id=origin.cluster_id, log_brokers=tuple(sorted(origin.brokers)), topic_ids=topic_ids
    )


class TranslatingStore(Protocol):
    """The part of an `OffsetStore` with the origin of its offsets."""

    @property
    def uri(self) -> str: ...

    def log_origin(self) -> LogOrigin:
        """Returns the `LogOrigin`. Raises `Unreachable`, `TimedOut`, `CorruptData`."""
        ...

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        """Returns the ids of those ``topics`` (None: all) for which the store knows one."""
        ...

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Returns the creation times of those ``topics`` for which the store knows one, in milliseconds since 1970."""
        ...


@runtime_checkable
class OriginRecordingStore(Protocol):
    """A store that belongs to no cluster until its first write: a file that does not exist yet."""

    def adopt(self, source: TranslatingStore) -> None:
        """Makes the first write record the cluster and the topic ids of ``source``."""
        ...


HINT: Final = (
    "these numbers point at other records there; the usual cure is a reset by time (offsets reset --to-datetime) or an "
    "offset that was translated for that cluster. Only where the target's topics are exact copies (the same records at "
    "the same offsets), add --translate none: it writes the numbers unchanged"
)


@dataclass
class CrossClusterCheck:
    """The transfer of offsets from ``source`` to ``target`` by one command.

    Use it in this order: 1. construct it; 2. `check`, which rejects another cluster; 3. `learn` the topics of each
    batch; 4. `refusal` for each offset, and `carry` for the value to write.
    """

    source: TranslatingStore
    target: TranslatingStore
    translate: OffsetTranslation | None = None
    names: tuple[str, str] = ("source", "target")
    """The terms for the two in messages."""
    compared: OriginComparison = field(init=False)
    _source_ids: Mapping[str, str] = field(default_factory=dict, init=False, repr=False)
    _target_ids: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _created: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _learned: set[str] = field(default_factory=set, init=False, repr=False)
    _taken_at: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.source is self.target or self.source.uri == self.target.uri:
            self.compared = OriginComparison(Relation.SAME, "source and target are one store")
        else:
            if isinstance(self.target, OriginRecordingStore):
                self.target.adopt(self.source)
            self.compared = compare_origins(self.source.log_origin(), self.target.log_origin(), self.names)

    def check(self, what: str) -> None:
        """Raises `OtherCluster` if the offsets belong to another cluster and the user has not accepted that."""
        if self.compared.relation is Relation.OTHER and self.translate is None:
            why = f"the offsets are positions in the logs of another Kafka cluster: {self.compared.how}"
            raise OtherCluster(what, why, HINT)

    @property
    def foreign(self) -> bool:
        """Returns whether the offsets go to another cluster, where topic ids and creation times prove nothing."""
        return self.compared.relation is Relation.OTHER

    def text(self) -> str:
        """Returns the relation of the logs in one line."""
        return self.compared.text(self.translate)

    def carry(self, value: OffsetAndMetadata) -> OffsetAndMetadata:
        """Returns the value to write: without the leader epoch unless both sides are one cluster."""
        if value.leader_epoch is None or self.compared.keeps_epochs:
            return value
        return value._replace(leader_epoch=None)

    # --- recreated topics ----------------------------------------------------------------------------

    def recreation(self) -> str:
        """Returns how the command detects topics that were recreated after a commit, as text."""
        if self.foreign:
            return "not checked: the topics of another cluster are other logs"
        if self._snapshot_ids() is not None:
            return "checked by the topic ids in the snapshot, else by the time of creation in ZooKeeper"
        if self._dates():
            return "checked by the time of creation in ZooKeeper; unknown for topics that it does not list"
        return "unknown: neither side tells both when an offset was committed and when its topic was created"

    def learn(self, topics: Iterable[str]) -> None:
        """Reads in bulk what the stores know about these topics."""
        new = set(topics) - self._learned
        if not new or self.foreign:
            return
        self._learned |= new
        if (ids := self._snapshot_ids()) is not None:
            self._source_ids = ids
            self._target_ids.update(self.target.topic_ids(new))
        for store in self._dates():
            for topic, created in store.topic_creation_times(new - self._created.keys()).items():
                self._created[topic] = created

    def forget(self) -> None:
        """Makes the next `learn` ask the stores again, for programs that run while topics are recreated."""
        self._learned.clear()
        self._target_ids.clear()
        self._created.clear()

    def refusal(self, tp: TopicPartition, committed: Committed) -> RecreatedTopic | None:
        """Returns the error of an offset whose topic was recreated after the commit; None if it was not, or if nothing
        shows it."""
        topic = tp.topic
        was, now = self._source_ids.get(topic), self._target_ids.get(topic)
        same_topic = was is not None and was == now
        if was is not None and now is not None and not same_topic:
            return _recreated(tp, f"its topic id was {was} and is {now}: the topic was deleted and recreated")
        created, at = self._created.get(topic), committed.commit_timestamp
        if at is None and not same_topic:  # the id shows that the topic was not recreated since the snapshot
            at = self._taken_at
        if created is None or at is None or created <= at:
            return None
        why = f"committed at {_moment(at)}, and the topic was created after that, at {_moment(created)}"
        return _recreated(tp, why)

    def _snapshot_ids(self) -> Mapping[str, str] | None:
        """Returns topic ids at the time of the commits, which only a snapshot has."""
        header = getattr(self.source, "header", None)
        if header is None:
            return None
        self._taken_at = header.taken_at
        return header.topic_ids if header.topic_ids else None

    def _dates(self) -> list[TranslatingStore]:
        """Returns the stores that know creation times of topics, the source first."""
        return [store for store in (self.source, self.target) if getattr(store, "dates_topics", False)]


def _recreated(tp: TopicPartition, why: str) -> RecreatedTopic:
    return RecreatedTopic(str(tp), why, "the offset points into the deleted log; set a new one with offsets reset")


def _moment(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
