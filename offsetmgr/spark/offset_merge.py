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


def normalized(bootstrap: str) -> str:
    """The servers in a normalized order: the same list in another order is the same cluster."""
    return ",".join(sorted(part.strip() for part in bootstrap.split(",") if part.strip()))


def merge_min(
    progress: Iterable[SourceProgress], clusters: frozenset[str] | None, blocks: Iterable[CommitBlock] = ()
) -> MergedOffsets:
    """Returns the smaller offset of each partition that is not blocked. ``clusters`` are the names of the group's one
    cluster (`normalized`); None: any cluster, as long as no topic is read from two."""
    sources = list(progress)
    selected = [source for source in sources if clusters is None or source.cluster in clusters]
    active_blocks = [block for block in blocks if clusters is None or not block.cluster or block.cluster in clusters]
    clusters_of_topic: dict[str, set[str]] = {}
    for cluster, topics in [
        *((source.cluster, {tp.topic for tp in source.offsets}) for source in selected),
        *((block.cluster, block.topics or ()) for block in active_blocks if block.cluster),
    ]:
        for topic in topics:
            clusters_of_topic.setdefault(topic, set()).add(cluster)
    ambiguous = (
        {} if clusters is not None else {topic: names for topic, names in clusters_of_topic.items() if len(names) > 1}
    )
    blocked_topics = frozenset().union(*(block.topics or () for block in active_blocks))
    all_blocked = any(block.topics is None for block in active_blocks)
    offsets: dict[TopicPartition, int] = {}
    for source in selected:
        for tp, offset in source.offsets.items():
            if not all_blocked and tp.topic not in blocked_topics and tp.topic not in ambiguous:
                offsets[tp] = min(offset, offsets.get(tp, offset))
    elsewhere = set() if selected or active_blocks else {source.cluster for source in sources}
    return MergedOffsets(
        offsets, {topic: tuple(sorted(names)) for topic, names in ambiguous.items()}, tuple(sorted(elsewhere))
    )


def _shown(clusters: tuple[str, ...]) -> str:
    return " and from ".join(name or "an unknown cluster" for name in clusters)
