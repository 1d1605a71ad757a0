"""Pure: the offsets that a group may commit when several sources, of one query or of several, have read parts.

The cluster and the topics identify a source. If two sources read the same partition, the smaller offset is committed:
both have finished everything below it. A source with unknown progress blocks its topics: nothing is committed for them.
A topic's name alone does not identify the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.core.errors import SparkError
from offsetmgr.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The progress of one source. ``cluster`` is its ``kafka.bootstrap.servers``, normalized; "" if unknown."""

    cluster: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class CommitBlock:
    """A source without a finished batch, or with unknown progress. It blocks its ``topics`` (None: any topic) of
    ``cluster`` ("": any cluster)."""

    cluster: str = ""
    topics: frozenset[str] | None = None


class ForeignClusterOffsets(SparkError):
    """No source reads from the configured cluster. It may be the cluster of a query that starts later."""

    retriable = True


@dataclass(frozen=True, slots=True)
class MergedOffsets:
    """``offsets`` may be committed. ``ambiguous`` maps topics that are read from several clusters to those clusters:
    the group's cluster is not configured, so nothing is committed for them. ``elsewhere`` are the clusters that are
    read if none of them is the group's, so that nothing at all can be committed."""

    offsets: Mapping[TopicPartition, int]
    ambiguous: Mapping[str, tuple[str, ...]]
    elsewhere: tuple[str, ...] = ()

    @property
    def problem(self) -> SparkError | None:
        """Why something will not be committed until the user changes the configuration; None if there is no such
        problem."""
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
    """The servers in a normalized order: the same list in another order is the same cluster."""
    return ",".join(sorted(part.strip() for part in bootstrap.split(",") if part.strip()))


def merge_min(
    readings: Iterable[SourceProgress], clusters: frozenset[str] | None, holds: Iterable[CommitBlock] = ()
) -> MergedOffsets:
    """Returns the smaller offset of each partition that is not blocked. ``clusters`` are the names of the group's one
    cluster (`normalised`); None: any cluster, as long as no topic is read from two."""
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
