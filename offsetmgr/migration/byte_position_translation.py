"""Translates byte positions of Kafka 0.7 to offsets, with a partition map and the cluster's log ranges.

The log ranges are requested once, in bulk, when the plan is made, because the plan is frozen and contains the offsets
to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.migration.partition_map import MapEntry, MappedStart, PartitionMap, PositionTable, ResolvedStart


class TranslatedOffset(NamedTuple):
    """The translation of a byte position: the new partition, and the offset or the reason why there is none."""

    tp: TopicPartition
    found: ResolvedStart | str


@dataclass(slots=True)
class Translator:
    """Translates byte positions. Without a ``cluster``, a position cannot be translated if its map entry has a starting
    point."""

    map: PartitionMap
    cluster: Cluster | None
    _starts: dict[TopicPartition, ResolvedStart | str] = field(default_factory=dict)

    def load_starts(self, partitions: Iterable[TopicPartition]) -> None:
        """Requests the starting points for these partitions of Kafka 0.7, in bulk, unless they are already known."""
        ranges: dict[TopicPartition, MappedStart] = {}
        times: dict[int, set[TopicPartition]] = {}
        for old in partitions:
            if (entry := self.map.entry(old)) is None:
                continue
            new = TopicPartition(old.topic, entry.partition)
            if new in self._starts:
                continue
            if isinstance(entry.choice, MappedStart):
                ranges[new] = entry.choice
            elif isinstance(entry.choice, int):
                times.setdefault(entry.choice, set()).add(new)
        if self.cluster is None or not (ranges or times):
            return
        counts = self.cluster.topics({tp.topic for tp in [*ranges, *(tp for tps in times.values() for tp in tps)]})
        existing = {tp for tp in ranges if tp.partition < counts.get(tp.topic, 0)}
        to_read = existing | {tp for tps in times.values() for tp in tps if tp.partition < counts.get(tp.topic, 0)}
        logs = self.cluster.log_ranges(to_read) if to_read else {}
        for tp, start in ranges.items():
            self._starts[tp] = _start_at_edge(start, logs.get(tp))
        for at, tps in times.items():
            known = [tp for tp in tps if tp in to_read]
            found = self.cluster.offsets_for_time(known, at) if known else {}
            for tp in tps:
                self._starts[tp] = _start_at_time(at, found.get(tp), logs.get(tp))

    def translate(self, old: TopicPartition, position: int) -> TranslatedOffset | None:
        """Translates ``position``, a group's byte position in the partition ``old``. Returns the new partition and the
        offset at which the group continues. Returns None if the map does not contain ``old``."""
        entry = self.map.entry(old)
        if entry is None:
            return None
        new = TopicPartition(old.topic, entry.partition)
        return TranslatedOffset(new, self._found(new, entry, position))

    def _found(self, new: TopicPartition, entry: MapEntry, position: int) -> ResolvedStart | str:
        if isinstance(entry.choice, PositionTable):
            return entry.choice.find(position)
        if self.cluster is None:
            return "the map chooses a starting point, and no Kafka cluster is given in which to look it up"
        found = self._starts[new]
        return (
            ResolvedStart(found.offset, f"{found.how}, chosen for byte {position}")
            if isinstance(found, ResolvedStart)
            else found
        )


def _start_at_edge(start: MappedStart, log: LogRange | OffsetMgrError | None) -> ResolvedStart | str:
    if not isinstance(log, LogRange):
        return _no_log(log)
    offset = log.start if start is MappedStart.EARLIEST else log.end
    return ResolvedStart(offset, f"{start}: offset {offset} when the plan was made")


def _start_at_time(
    at: int, found: int | OffsetMgrError | None, log: LogRange | OffsetMgrError | None
) -> ResolvedStart | str:
    if not isinstance(log, LogRange):
        return _no_log(log)
    if isinstance(found, OffsetMgrError):
        return _no_log(found)
    when = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if found is None:
        return ResolvedStart(log.end, f"time {when}: no message from then on, so the log end, offset {log.end}")
    return ResolvedStart(found, f"time {when}: offset {found} is the first message from then on")


def _no_log(error: OffsetMgrError | None) -> str:
    return f"its starting point is unknown: {error or 'the partition does not exist in the Kafka cluster'}"
