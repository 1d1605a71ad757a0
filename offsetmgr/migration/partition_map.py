"""The partition map: for each partition of a Kafka 0.7 broker, the new partition, and the position in it at which a
group continues.

A byte position means nothing to later versions of Kafka, so an operator provides a table of positions or a starting
point. `byte_position_translation` looks up starting points in the cluster.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import FileFailure, MalformedData, PlanError, UnknownVersion, os_error_as
from offsetmgr.core.field_reader import MAX_INT, MAX_LONG, FieldReader, parse_json
from offsetmgr.core.model import BrokerPartition, TopicPartition

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

    def entry(self, tp: TopicPartition) -> MapEntry | None:
        return self.entries.get(tp)


def read_map(path: Path) -> PartitionMap:
    """Returns the map in a file. Raises `FileFailure` if the file cannot be read, and any error from `parse_map`."""
    with os_error_as(FileFailure, f"partition map {path}"):
        data = path.read_bytes()
    return parse_map(str(path), data)


def parse_map(name: str, data: bytes) -> PartitionMap:
    """Parses a partition map; ``name`` is the name of the map in errors.

    Raises `UnknownVersion`, `MalformedData` with the topic and the partition, and `PlanError` for an unconfirmed draft.
    """
    what = f"partition map {name}"
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
