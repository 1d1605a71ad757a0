"""The origin of offsets, and the comparison of the origins of two stores.

The origin of a store's offsets is the Kafka cluster whose logs the offsets refer to. An offset means nothing in the log
of another cluster, so a copy between two stores first compares their origins. Pure. Source: Kafka's cluster id
(KIP-78).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition


class OffsetTranslation(StrEnum):
    """The method that converts offsets of one cluster into offsets of another (``--translate``).

    >>> OffsetTranslation.NONE.value
    'none'
    """

    NONE = "none"
    """No conversion. The user asserts that the logs of the other cluster are identical copies."""


class TranslationRules(NamedTuple):
    """How positions of one cluster are translated into positions of another one, by the records (``--translate auto``).

    ``topics`` are rules ``PATTERN=REPLACEMENT``, which give the names of topics in the target: the first rule whose
    regular expression matches a whole name counts. ``accepts`` are verdicts with which a position counts as known in
    addition to ``seen``: ``inferred``, ``bracketed`` or ``missing``. Two limit the reading: ``max_read`` bytes of a
    partition in both logs together (default: 256 MiB), and ``throttle`` bytes in a second (default: no limit). Headers
    with the names ``ignored_headers`` are ignored, besides those of known copiers. ``back`` states that the source is a
    copy of the target, which may hold later records that the source lacks. ``lost`` compares as if the source were lost
    now: the right place of a group that is ahead of the copy is the end of the copy.

    >>> TranslationRules(topics=(r"(.*)=east.\\1",), accepts=("inferred",)).back
    False
    """

    topics: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()
    max_read: int | None = None
    throttle: int | None = None
    ignored_headers: tuple[str, ...] = ()
    back: bool = False
    lost: bool = False

    @property
    def read_limit(self) -> int:
        """``max_read``, or its default."""
        return self.max_read or 256 * 1024 * 1024


TranslationChoice: TypeAlias = OffsetTranslation | TranslationRules
"""How a command treats offsets of another cluster."""


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """The Kafka cluster whose logs the offsets of a store refer to.

    ``cluster_id`` is None if the store does not know it. ``brokers`` are addresses (``host:port``) of brokers of the
    cluster, which identify a cluster without an id. ``unnamed`` is True for a store that has neither an id nor brokers,
    such as a text file. Only the user knows the origin of such a store. ``new`` is True if the store does not exist
    yet. The first write to a new store defines its origin. ``how`` is a text for messages. It states how offsetmgr
    determined the origin.
    """

    cluster_id: str | None
    how: str
    brokers: frozenset[str] = frozenset()
    unnamed: bool = False
    new: bool = False

    @property
    def name(self) -> str:
        """The cluster id, or the addresses of the brokers if the cluster has no id (brokers before 0.10.1)."""
        return self.cluster_id or f"{_BY_BROKERS}{','.join(sorted(self.brokers))}"

    def is_named(self, name: str) -> bool:
        """Returns whether ``name`` identifies this cluster, either now or before an upgrade of its brokers.

        A cluster without an id receives an id when its brokers are upgraded. A name from before the upgrade is a list
        of brokers. Such a name matches if one of the listed brokers still belongs to the cluster.
        """
        if name.startswith(_BY_BROKERS):
            return not self.brokers.isdisjoint(name.removeprefix(_BY_BROKERS).lower().split(","))
        return name == self.cluster_id


_BY_BROKERS: Final = "brokers "
UNNAMED: Final = LogOrigin(None, "it names no Kafka cluster", unnamed=True)


class Relation(StrEnum):
    """The relation between the logs of two stores."""

    SAME = "same"
    """Both stores name the same cluster id."""
    INFERRED = "inferred"
    """At least one of the two stores has no cluster id, but the two stores have a broker in common."""
    OTHER = "other"
    UNKNOWN = "unknown"
    """At least one store does not identify its cluster, so only the user knows the relation."""
    NEW = "new"
    """The target does not exist yet. When offsetmgr creates the target, the target gets the origin of the source."""


class OriginComparison(NamedTuple):
    """The relation between the logs of two stores. ``how`` is a text for messages that gives the reason for the
    relation. ``needs_consent`` is True if a store of live servers does not identify its cluster: only the user can know
    that both belong together."""

    relation: Relation
    how: str
    needs_consent: bool = False

    @property
    def keeps_epochs(self) -> bool:
        """Returns whether leader epochs of the source are valid in the target. They are valid if source and target
        refer to the same logs."""
        return self.relation in (Relation.SAME, Relation.INFERRED, Relation.NEW)

    def text(self, translate: TranslationChoice | None = None) -> str:
        """Returns the comparison in one line."""
        if self.relation is Relation.SAME:
            return f"the same on both sides: {self.how}"
        if self.relation is Relation.INFERRED:
            return f"the same on both sides (inferred): {self.how}"
        if self.relation is Relation.NEW:
            return f"the source's: {self.how}"
        if self.relation is Relation.UNKNOWN:
            if translate is not None and self.needs_consent:
                return Advice("origin unknown: {}; accepted by {translate=none}", self.how)
            return f"origin unknown: {self.how}"
        if translate is OffsetTranslation.NONE:
            done = "offsets are written unchanged, without leader epochs"
            return Advice("accepted by {translate=none}: {}; {}", self.how, done)
        if translate is not None:
            return Advice("translated by the records ({translate=auto}): {}", self.how)
        return f"not the same on both sides: {self.how}"


def compare_origins(
    source: LogOrigin, target: LogOrigin, names: tuple[str, str] = ("source", "target")
) -> OriginComparison:
    """Compares the origins of two stores. ``names`` are the names of the two stores in messages."""
    if target.new and not source.unnamed:
        return OriginComparison(Relation.NEW, target.how)
    for name, one in zip(names, (source, target), strict=True):
        if one.cluster_id is None and not one.brokers:
            how = f"{name}: {one.how}, so it is unknown whether both belong to the same cluster"
            return OriginComparison(Relation.UNKNOWN, how, not (source.unnamed or target.unnamed))
    if source.cluster_id is not None and target.cluster_id is not None:
        if source.cluster_id == target.cluster_id:
            return OriginComparison(Relation.SAME, f"cluster id {source.cluster_id}")
        return OriginComparison(
            Relation.OTHER,
            f"the {names[0]} belongs to cluster {source.cluster_id}, the {names[1]} to {target.cluster_id}",
        )
    if common := sorted(source.brokers & target.brokers):
        return OriginComparison(Relation.INFERRED, f"no cluster id in ZooKeeper, but both name the broker {common[0]}")
    without = (names[0], source) if source.cluster_id is None else (names[1], target)
    return OriginComparison(
        Relation.OTHER, f"the {names[0]} and the {names[1]} have no broker in common ({without[0]}: {without[1].how})"
    )


# `LogRangeCache` fetches each log range once, and fetches it again if an offset is beyond the cached end.

FetchLogRanges: TypeAlias = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, LogRange | OffsetMgrError]]
"""Fetches log ranges in bulk, as `offsetmgr.kafka.cluster.Logs.log_ranges` does."""


class LogRangeCache:
    """The log ranges that one run of a command has fetched. The cache also contains errors of single partitions and
    does not fetch these partitions again. Memory grows with the number of partitions, not with the number of offsets.

    Logs grow, so an offset beyond a cached end may be valid. For such an offset the range is fetched again. The new
    range decides whether the offset is valid, because the new range was fetched after the offset was read. An offset
    below a cached start is below the present start too.
    """

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._fetch = fetch
        self._known: dict[TopicPartition, LogRange | OffsetMgrError] = {}
        self.known: Mapping[TopicPartition, LogRange | OffsetMgrError] = MappingProxyType(self._known)
        """The log range, or the error, of each partition that was fetched."""
        self._columns: dict[int, tuple[Sequence[TopicPartition], Sequence[Sequence[int]]]] = {}

    def columns(self, partitions: Sequence[TopicPartition]) -> Sequence[Sequence[int]]:
        """Returns the starts and the ends of these logs; nothing if one of them is not known. Between two calls of
        `load`, groups that share the object ``partitions`` share the result, and the cache keeps the object."""
        key = id(partitions)
        if key not in self._columns:
            ranges = [found for tp in partitions if isinstance(found := self._known.get(tp), LogRange)]
            columns = tuple(zip(*ranges, strict=True)) if len(ranges) == len(partitions) else ()
            self._columns[key] = partitions, columns
        return self._columns[key][1]

    def load(
        self, partitions: Iterable[TopicPartition] = (), offsets: Iterable[tuple[TopicPartition, int]] = ()
    ) -> None:
        """Fetches, in one request, the ranges of these partitions and of the partitions of these offsets, unless the
        cache contains them. A byte position of Kafka 0.7 has no log range. Raises the errors of the request."""
        known = self._known
        self._columns.clear()
        needed = {tp for tp in partitions if tp not in known}
        needed |= {
            tp
            for tp, offset in offsets
            if ((found := known.get(tp)) is None or (isinstance(found, LogRange) and offset > found[1]))
            and not isinstance(tp.partition, BrokerPartition)
        }
        if needed:
            known.update(self._fetch(needed))

    def clear(self) -> None:
        """Removes all ranges, because topics may have been recreated."""
        self._known.clear()
        self._columns.clear()
