"""Pure: what a group may say when several sources, of one query or of several, have each read so far.

A source is told from others by the cluster and the topics that it reads. Where two read the same partition, the group
says the smaller offset: what is below it, both have finished. One of which it is not known how far it has finished
holds what it reads: nothing of that is said. A topic's name alone says nothing about the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.core.errors import SparkError
from offsetmgr.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far one source has finished. ``cluster`` is its ``kafka.bootstrap.servers``, normalised; "" where unknown."""

    cluster: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class CommitBlock:
    """A source that has finished nothing yet, or of which that is not known: its ``topics`` (None: it may be any) of
    ``cluster`` ("": it may be any) wait for it."""

    cluster: str = ""
    topics: frozenset[str] | None = None


class ForeignClusterOffsets(SparkError):
    """No source reads from the cluster that was named. It may be that of a query that starts later."""

    retriable = True


@dataclass(frozen=True, slots=True)
class MergedOffsets:
    """``offsets`` may be committed. ``ambiguous`` maps topics that are read from several clusters to those: nobody said
    which of them the group belongs to, so nothing of them is committed. ``elsewhere`` are the clusters that are read
    where none of them is the group's, so that nothing at all can be committed."""

    offsets: Mapping[TopicPartition, int]
    ambiguous: Mapping[str, tuple[str, ...]]
    elsewhere: tuple[str, ...] = ()

    @property
    def problem(self) -> SparkError | None:
        """Why something will not be committed before the user says more; None: there is no such thing."""
        if self.elsewhere:
            return ForeignClusterOffsets(
                "nothing is committed",
                f"no source reads from the cluster that was named, but from {_shown(self.elsewhere)}",
                "give cluster= as the sources' kafka.bootstrap.servers have it; several spellings as a list",
            )
        for topic, names in sorted(self.ambiguous.items()):
            return SparkError(
                f"topic {topic} is not committed",
                f"it is read from {_shown(names)}",
                "say which cluster the group belongs to: cluster=BOOTSTRAP_SERVERS",
            )
        return None


def normalised(bootstrap: str) -> str:
    """Servers in an order of ours: the same list in another order is the same cluster."""
    return ",".join(sorted(part.strip() for part in bootstrap.split(",") if part.strip()))


def merge_min(
    readings: Iterable[SourceProgress], clusters: frozenset[str] | None, holds: Iterable[CommitBlock] = ()
) -> MergedOffsets:
    """The smaller offset of each partition that nobody holds. ``clusters`` are the names of the one cluster that the
    group belongs to (`normalised`); None: whichever is read, as long as no topic is read from two."""
    read = list(readings)
    wanted = [reading for reading in read if clusters is None or reading.cluster in clusters]
    holding = [hold for hold in holds if clusters is None or not hold.cluster or hold.cluster in clusters]
    of_topic: dict[str, set[str]] = {}
    for cluster, topics in [
        *((reading.cluster, {tp.topic for tp in reading.offsets}) for reading in wanted),
        *((hold.cluster, hold.topics or ()) for hold in holding if hold.cluster),
    ]:
        for topic in topics:
            of_topic.setdefault(topic, set()).add(cluster)
    several = {} if clusters is not None else {topic: names for topic, names in of_topic.items() if len(names) > 1}
    held = frozenset().union(*(hold.topics or () for hold in holding))
    nothing = any(hold.topics is None for hold in holding)
    offsets: dict[TopicPartition, int] = {}
    for reading in wanted:
        for tp, offset in reading.offsets.items():
            if not nothing and tp.topic not in held and tp.topic not in several:
                offsets[tp] = min(offset, offsets.get(tp, offset))
    elsewhere = set() if wanted or holding else {reading.cluster for reading in read}
    return MergedOffsets(
        offsets, {topic: tuple(sorted(names)) for topic, names in several.items()}, tuple(sorted(elsewhere))
    )


def _shown(clusters: tuple[str, ...]) -> str:
    return " and from ".join(name or "an unknown cluster" for name in clusters)
