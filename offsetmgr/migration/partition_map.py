"""The partition map: for each partition of a Kafka 0.7 broker, the new partition, and the position in it at which a
group continues.

A byte position means nothing to later versions of Kafka, so an operator provides a table of positions or a starting
point. `Translator` looks up starting points in the cluster.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import (
    FileFailure,
    GroupNotFound,
    MalformedData,
    OffsetMgrError,
    PlanError,
    UnknownVersion,
    os_error_as,
)
from offsetmgr.core.field_reader import MAX_INT, MAX_LONG, FieldReader, parse_json
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.kafka.cluster import KafkaCluster

VERSION: Final = 1
_FORMAT: Final = "offsetmgr_partition_map"


class MappedStart(StrEnum):
    """The position at which a group continues if the map has no table that translates the group's byte position."""

    EARLIEST = "earliest"
    """At the log's start: consumed messages are consumed again."""
    LATEST = "latest"
    """At the log's end: messages that were not consumed yet are skipped."""


class ResolvedStart(NamedTuple):
    """The offset for a byte position, and the derivation of this offset as text."""

    offset: int
    how: str


@dataclass(frozen=True, slots=True)
class PositionTable:
    """A table of byte positions and the offsets of the messages that begin there, both ascending.

    Without ``floor``, a position between two entries is rejected. With ``floor``, the preceding entry is used, so the
    group consumes the messages between that entry and the position again. A position before the first entry is always
    rejected.
    """

    entries: tuple[tuple[int, int], ...]
    floor: bool = False

    def find(self, position: int) -> ResolvedStart | str:
        """Returns the offset for a byte position, or the reason why the table has no offset for it."""
        index = bisect_right(self.entries, (position, MAX_LONG)) - 1
        if index < 0:
            return f"byte {position} is before the table's first entry, byte {self.entries[0][0]}"
        at, offset = self.entries[index]
        if at == position:
            return ResolvedStart(offset, f"byte {position} is offset {offset} in the table")
        if self.floor:
            return ResolvedStart(offset, f"floor: byte {position} is after byte {at}, offset {offset} in the table")
        return f'byte {position} is not in the table (the entry before it: byte {at}), and "between" does not say floor'


@dataclass(frozen=True, slots=True)
class MapEntry:
    """The mapping of one partition of Kafka 0.7: the new ``partition``, and a table or a starting point. A starting
    point is a `MappedStart`, or a time in ms since 1970, which selects the first message at or after that time."""

    partition: int
    choice: PositionTable | MappedStart | int


@dataclass(frozen=True, slots=True)
class MapOrigin:
    """The identity of a map in a plan: the hash of its file, and the name of the person who confirmed it."""

    sha256: str
    confirmed_by: str


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """A partition map that an operator has confirmed."""

    origin: MapOrigin
    entries: Mapping[TopicPartition, MapEntry]


def read_map(path: Path) -> PartitionMap:
    """Returns the map in a file.

    Raises `FileFailure` if the file cannot be read, `UnknownVersion`, `MalformedData` with the topic and the partition,
    and `PlanError` for an unconfirmed draft.
    """
    what = f"partition map {path}"
    with os_error_as(FileFailure, what):
        data = path.read_bytes()
    document = parse_json(data, lambda why: MalformedData(what, why), unique_keys=True)
    if not isinstance(document, dict) or document.get(_FORMAT) is None:
        raise MalformedData(
            what, "is not a partition map of offsetmgr", Advice("write one: migrate plan {draft_partition_map} FILE")
        )
    found = FieldReader(document, what)
    version = document[_FORMAT]
    if type(version) is not int or version != VERSION:
        raise UnknownVersion(what, f"version {json.dumps(version)[:20]} is not known here (known: {VERSION})")
    found.reject_unknown((_FORMAT, "confirmed_by", "source", "read_this", "topics"))
    topics = found.object("topics")
    entries: dict[TopicPartition, MapEntry] = {}
    for topic in topics.values:
        source_of: dict[int, str] = {}
        partitions = topics.object(topic)
        for text in partitions.values:
            old = BrokerPartition.parse(text)
            if old is None:
                raise partitions.error("is not BROKER-PARTITION", text, "as in 1-0")
            entry = _entry(partitions.object(text))
            if entry.partition in source_of:
                why = f"becomes partition {entry.partition}, and so does {source_of[entry.partition]!r}"
                hint = "two partitions cannot share one offset: give each a partition of its own"
                raise partitions.error(why, text, hint)
            source_of[entry.partition] = text
            entries[TopicPartition(topic, old)] = entry
    confirmed_by = found.get("confirmed_by")
    if not isinstance(confirmed_by, str) or not confirmed_by.strip():
        raise PlanError(
            what,
            "is a draft: it has not been confirmed",
            'read it, correct it, and put your name into "confirmed_by"',
        )
    return PartitionMap(MapOrigin(hashlib.sha256(data).hexdigest(), confirmed_by.strip()), entries)


def _entry(entry: FieldReader) -> MapEntry:
    entry.reject_unknown(("partition", "start", "table", "between", "seen"))
    partition = entry.integer("partition", maximum=MAX_INT)
    if ("start" in entry) == ("table" in entry):
        raise entry.error('needs either "start" or "table"')
    if "start" in entry:
        if "between" in entry:
            raise entry.error('belongs to a "table"', "between")
        return MapEntry(partition, _start(entry))
    between = entry.get("between") or "refuse"
    if between not in ("refuse", "floor"):
        raise entry.invalid("between", "refuse or floor")
    return MapEntry(partition, PositionTable(_table(entry), between == "floor"))


def _start(entry: FieldReader) -> MappedStart | int:
    start = entry.get("start")
    if isinstance(start, dict) and set(start) == {"time"} and isinstance(start["time"], str):
        try:
            at = datetime.fromisoformat(start["time"])
        except ValueError:
            raise entry.error(f"is {start['time']!r}, not a time", "start.time", "as in 2013-05-01T12:00:00Z") from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if at.timestamp() < 0:
            raise entry.error(f"is {start['time']!r}, before 1970", "start.time")
        return round(at.timestamp() * 1000)
    if isinstance(start, str) and start in tuple(MappedStart):
        return MappedStart(start)
    raise entry.invalid("start", 'earliest, latest, or {"time": "2013-05-01T12:00:00Z"}')


def _table(entry: FieldReader) -> tuple[tuple[int, int], ...]:
    table, entries = entry.get("table"), list[tuple[int, int]]()
    if not isinstance(table, list) or not table:
        raise entry.invalid("table", "a list of [byte position, offset]")
    for number, row in enumerate(table, 1):
        good = isinstance(row, list) and len(row) == 2 and all(type(n) is int and 0 <= n <= MAX_LONG for n in row)
        if not good:
            raise entry.error(f"has a row {number} that is not [byte position, offset]", "table")
        if entries and not (row[0] > entries[-1][0] and row[1] > entries[-1][1]):
            why = f"has a row {number} that is out of order: {row} after {list(entries[-1])}"
            hint = "both the byte positions and the offsets must increase from row to row"
            raise entry.error(why, "table", hint)
        entries.append((row[0], row[1]))
    return tuple(entries)


# Translates byte positions of Kafka 0.7 to offsets, with a partition map and the cluster's log ranges. The log ranges
# are requested once, in bulk, when the plan is made, because the plan is frozen and contains the offsets to write.


@dataclass(slots=True)
class Translator:
    """Translates byte positions. Without a ``cluster``, a position cannot be translated if its map entry has a starting
    point."""

    map: PartitionMap
    cluster: KafkaCluster | None
    _starts: dict[TopicPartition, ResolvedStart | str] = field(default_factory=dict)

    def load_starts(self, partitions: Iterable[TopicPartition]) -> None:
        """Requests the starting points for these partitions of Kafka 0.7, in bulk, unless they are already known."""
        wanted: dict[TopicPartition, MappedStart | int] = {}
        for old in partitions:
            entry = self.map.entries.get(old)
            if entry is not None and not isinstance(entry.choice, PositionTable):
                new = TopicPartition(old.topic, entry.partition)
                if new not in self._starts:
                    wanted[new] = entry.choice
        if self.cluster is None or not wanted:
            return
        counts = self.cluster.topics({tp.topic for tp in wanted})
        existing = [tp for tp in wanted if tp.partition < counts.get(tp.topic, 0)]
        logs = self.cluster.log_ranges(existing) if existing else {}
        found: dict[TopicPartition, int | OffsetMgrError | None] = {}
        for choice, partitions_at in by_key((wanted[tp], tp) for tp in existing).items():
            if isinstance(choice, int):
                found |= self.cluster.offsets_for_time(partitions_at, choice)
        self._starts |= {tp: _start_of(choice, logs.get(tp), found.get(tp)) for tp, choice in wanted.items()}

    def translate(self, old: TopicPartition, position: int) -> tuple[TopicPartition, ResolvedStart | str]:
        """Translates ``position``, a group's byte position in the partition ``old``. Returns the new partition, and the
        offset at which the group continues or the reason why there is none."""
        if (entry := self.map.entries.get(old)) is None:
            return old, "the partition map does not name this partition"
        new = TopicPartition(old.topic, entry.partition)
        if isinstance(entry.choice, PositionTable):
            return new, entry.choice.find(position)
        if self.cluster is None:
            return new, "the map chooses a starting point, and no Kafka cluster is given in which to look it up"
        found = self._starts[new]
        return new, found if isinstance(found, str) else found._replace(how=f"{found.how}, chosen for byte {position}")


def _start_of(
    choice: MappedStart | int, log: LogRange | OffsetMgrError | None, found: int | OffsetMgrError | None
) -> ResolvedStart | str:
    """Returns the starting point of a partition. ``found`` is the first offset at or after the time ``choice``."""
    if not isinstance(log, LogRange) or isinstance(found, OffsetMgrError):
        error = found if isinstance(log, LogRange) else log
        return f"its starting point is unknown: {error or 'the partition does not exist in the Kafka cluster'}"
    if isinstance(choice, MappedStart):
        offset = log.start if choice is MappedStart.EARLIEST else log.end
        return ResolvedStart(offset, f"{choice}: offset {offset} when the plan was made")
    when = datetime.fromtimestamp(choice / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if found is None:
        return ResolvedStart(log.end, f"time {when}: no message from then on, so the log end, offset {log.end}")
    return ResolvedStart(found, f"time {when}: offset {found} is the first message from then on")


# The draft of a partition map, which an operator corrects and confirms. The draft is a guess. Only the people who
# moved the data know which new partition has the data of each old partition. A draft is rejected until it contains
# the name of the person who confirms it.

_READ_THIS: Final = (
    "Each BROKER-PARTITION of Kafka 0.7 needs the new partition of its data, and the position at which groups continue:"
    ' either "start": "earliest" (messages are consumed again), "latest" (unread messages are skipped) or'
    ' {"time": "2013-05-01T12:00:00Z"};'
    ' or "table": [[byte position, offset], ...] with "between": "refuse" or "floor".'
    " The new partition numbers below are a guess (old partitions in ascending order). Correct them, then put your name"
    ' into "confirmed_by".'
)


@dataclass(slots=True)
class MapDraft:
    """Collects the partitions of Kafka 0.7 for which groups have offsets. Memory grows with the partitions, not with
    the groups."""

    _seen: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)
    """The number of groups, and their lowest and highest byte position."""

    def add(self, found: GroupOffsets, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if isinstance(tp.partition, BrokerPartition):
                position = found.offsets[tp].offset
                groups, lowest, highest = self._seen.get(tp, (0, position, position))
                self._seen[tp] = groups + 1, min(lowest, position), max(highest, position)

    def encode(self, source: str, counts: Mapping[str, int] | None) -> bytes:
        """Returns the draft as text. ``counts`` are the partition counts of topics in the Kafka cluster; None if there
        is no cluster.

        Raises `GroupNotFound` if no group has a byte position.
        """
        if not self._seen:
            raise GroupNotFound("partition map", f"no group in {source} holds a byte position of Kafka 0.7")
        topics: dict[str, dict[str, Any]] = {}
        for tp, (groups, lowest, highest) in sorted(self._seen.items()):
            entries = topics.setdefault(tp.topic, {})
            entries[str(tp.partition)] = {
                "partition": len(entries),
                "start": "earliest",
                "seen": {"groups": groups, "lowest_byte": lowest, "highest_byte": highest},
            }
        lines = [_READ_THIS]
        if counts is not None:
            lines += [
                f"{topic}: {len(entries)} partitions in 0.7, {counts.get(topic, 'no such topic')} in the Kafka cluster"
                for topic, entries in topics.items()
                if counts.get(topic) != len(entries)
            ]
        document = {
            "offsetmgr_partition_map": VERSION,
            "read_this": lines,
            "source": source,
            "confirmed_by": "",
            "topics": topics,
        }
        return json.dumps(document, ensure_ascii=False, indent=2).encode() + b"\n"

    def topics(self) -> set[str]:
        return {tp.topic for tp in self._seen}
