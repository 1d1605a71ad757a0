"""Computes the offsets that a group may commit if one or more queries read from several sources. Pure.

If two sources read the same partition, the group may commit the smaller offset, because both sources have processed
everything below this offset. A source with unknown progress blocks its topics: the group commits nothing for these
topics. A topic's name alone does not identify the topic, because queries may read topics of the same name from two
clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.core.errors import SparkError
from offsetmgr.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The offsets up to which one source has been processed. ``cluster`` is the source's ``kafka.bootstrap.servers``,
    `normalized`; "" if unknown."""

    cluster: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class CommitBlock:
    """Forbids commits for the topics of a source that has no finished batch or whose progress is unknown.

    If ``topics`` is None, the block applies to all topics. If ``cluster`` is empty, the block applies to every cluster.
    """

    cluster: str = ""
    topics: frozenset[str] | None = None


class ForeignClusterOffsets(SparkError):
    """No source reads from the configured cluster. The error is retriable, because a query that starts later may read
    from this cluster."""

    retriable = True


def normalized(bootstrap: str) -> str:
    """Returns the list of servers in sorted order, because the same servers in another order are the same cluster."""
    return ",".join(sorted(part.strip() for part in bootstrap.split(",") if part.strip()))


def merge_min(
    progress: Iterable[SourceProgress], clusters: frozenset[str] | None, blocks: Iterable[CommitBlock]
) -> tuple[dict[TopicPartition, int], SparkError | None]:
    """Returns the smallest offset of all sources for each partition that is not blocked, and the configuration error
    that prevents further commits and that the user must correct; None if there is no such error.

    ``clusters`` are the `normalized` spellings of the group's cluster; other sources are ignored. If ``clusters`` is
    None, all sources count, but topics that the sources read from several clusters are left out.
    """
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
    return offsets, _problem(ambiguous, elsewhere)


def _problem(ambiguous: Mapping[str, set[str]], elsewhere: set[str]) -> SparkError | None:
    """Returns the error of topics that the sources read from several clusters, or of sources that all read from other
    clusters than the group's."""
    if elsewhere:
        return ForeignClusterOffsets(
            "nothing is committed",
            f"no source reads from the configured cluster; the sources read from {_shown(elsewhere)}",
            "set cluster= to the kafka.bootstrap.servers of the sources, as a list if sources write them differently",
        )
    if ambiguous:
        topic, names = min(ambiguous.items())
        hint = "set the cluster of the group: cluster=BOOTSTRAP_SERVERS"
        return SparkError(f"topic {topic} is not committed", f"it is read from {_shown(names)}", hint)
    return None


def _shown(clusters: set[str]) -> str:
    return " and from ".join(name or "an unknown cluster" for name in sorted(clusters))
