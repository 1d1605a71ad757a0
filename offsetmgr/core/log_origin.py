"""Which Kafka cluster's logs the offsets of a store point into, and how the logs of two stores relate.

Pure. Sources: Kafka's cluster id (KIP-78).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Translate(StrEnum):
    """How offsets of one cluster become offsets of another (``--translate``)."""

    NONE = "none"
    """They stay as they are: the user states that the logs of the other cluster are equal copies."""


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """The Kafka cluster whose logs a store's offsets point into.

    ``cluster_id`` is None where nothing names it. ``brokers`` are addresses (``host:port``) at which brokers of the
    cluster listen, for stores without an id. A store that names neither is ``unnamed``: a text file, whose user knows
    the origin. ``new``: the store does not exist yet, and what is written to it makes its origin. ``how`` says where
    the facts come from.
    """

    cluster_id: str | None
    how: str
    brokers: frozenset[str] = frozenset()
    unnamed: bool = False
    new: bool = False

    @property
    def name(self) -> str:
        """The cluster id, or the brokers' addresses where the cluster has none: brokers before 0.10.1."""
        return self.cluster_id or f"{_BY_BROKERS}{','.join(sorted(self.brokers))}"

    def is_named(self, name: str) -> bool:
        """Whether this cluster had that name. A cluster that had no id, and was upgraded since, has one now: then one
        broker that listens where it did is enough."""
        if name.startswith(_BY_BROKERS):
            return not self.brokers.isdisjoint(name.removeprefix(_BY_BROKERS).lower().split(","))
        return name == self.cluster_id


_BY_BROKERS: Final = "brokers "
UNNAMED: Final = LogOrigin(None, "it names no Kafka cluster", unnamed=True)


class Relation(StrEnum):
    """How the logs of two stores relate."""

    SAME = "same"
    """Both stores name the same cluster id."""
    INFERRED = "inferred"
    """One store names no cluster id; a broker that it lists is a broker of the other one's cluster."""
    OTHER = "other"
    UNKNOWN = "unknown"
    """One side names no cluster: the user's word."""
    NEW = "new"
    """The target does not exist yet, and takes the source's cluster."""


@dataclass(frozen=True, slots=True)
class OriginComparison:
    """The relation of two stores' logs and the reason for it, in words."""

    relation: Relation
    how: str

    @property
    def keeps_epochs(self) -> bool:
        """Whether leader epochs of the source are valid in the target."""
        return self.relation in (Relation.SAME, Relation.INFERRED, Relation.NEW)

    def text(self, translate: Translate | None = None) -> str:
        """One line for people."""
        if self.relation is Relation.SAME:
            return f"the same on both sides: {self.how}"
        if self.relation is Relation.INFERRED:
            return f"the same on both sides (inferred): {self.how}"
        if self.relation is Relation.NEW:
            return f"the source's: {self.how}"
        if self.relation is Relation.UNKNOWN:
            return f"origin unknown: {self.how}"
        if translate is Translate.NONE:
            done = "offsets are written unchanged, without leader epochs"
            return f"accepted by --translate none: {self.how}; {done}"
        return f"not the same on both sides: {self.how}"


def compare_origins(
    source: LogOrigin, target: LogOrigin, names: tuple[str, str] = ("source", "target")
) -> OriginComparison:
    """Decides how two stores' logs relate. ``names`` are what people call the two."""
    if target.new and not source.unnamed:
        return OriginComparison(Relation.NEW, target.how)
    if source.unnamed or target.unnamed:
        which = f"{names[0]}: {source.how}" if source.unnamed else f"{names[1]}: {target.how}"
        return OriginComparison(Relation.UNKNOWN, f"{which}, so nothing shows that both are one cluster")
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
        Relation.OTHER, f"no broker of the {without[0]} is a broker of the other side ({without[1].how})"
    )
