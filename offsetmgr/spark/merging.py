"""Pure: what a group may say when several sources, of one query or of several, have each read so far.

A source is told from others by the cluster and the topics that it reads. Where two read the same partition, the group
says the smaller offset: what is below it, both have finished. A topic's name alone says nothing about the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Reading:
    """How far one source has finished. ``cluster`` is its ``kafka.bootstrap.servers``, normalised; "" where unknown."""

    cluster: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Merged:
    """``offsets`` may be committed. ``ambiguous`` maps topics that are read from several clusters to those: nobody said
    which of them the group belongs to, so nothing of them is committed."""

    offsets: Mapping[TopicPartition, int]
    ambiguous: Mapping[str, tuple[str, ...]]


def normalised(bootstrap: str) -> str:
    """Servers in an order of ours: the same list in another order is the same cluster."""
    return ",".join(sorted(part.strip() for part in bootstrap.split(",") if part.strip()))


def smallest(readings: Iterable[Reading], clusters: frozenset[str] | None) -> Merged:
    """The smaller offset of each partition. ``clusters`` are the names of the one cluster that the group belongs to
    (`normalised`); None: whichever is read, as long as no topic is read from two."""
    wanted = [reading for reading in readings if clusters is None or reading.cluster in clusters]
    of_topic: dict[str, set[str]] = {}
    for reading in wanted:
        for topic in {tp.topic for tp in reading.offsets}:
            of_topic.setdefault(topic, set()).add(reading.cluster)
    several = {} if clusters is not None else {topic: names for topic, names in of_topic.items() if len(names) > 1}
    offsets: dict[TopicPartition, int] = {}
    for reading in wanted:
        for tp, offset in reading.offsets.items():
            if tp.topic not in several:
                offsets[tp] = min(offset, offsets.get(tp, offset))
    return Merged(offsets, {topic: tuple(sorted(names)) for topic, names in several.items()})
