"""Yields the requested messages of segments, one by one.

A damaged entry hides no other: its error is reported, and reading continues after it. If not even its size is valid,
the rest of its file cannot be read, which is reported too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import LIMIT
from offsetmgr.segments.entries import LARGEST, EntryHeader, LogEntry
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transactions import Transactions

_SEQUENCES: Final = 2**31
"""Sequence numbers restart at 0 after the largest int."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The requested messages: a range of offsets, a range of times (milliseconds since 1970; a message without a time
    is then excluded).

    ``committed`` excludes what readers of committed messages do not see. ``controls`` adds control records, which are
    no messages. ``limit`` is the maximum of decompressed bytes of an entry, ``largest`` the maximum size of an entry.
    """

    first: int = 0
    end: int | None = None
    since: int | None = None
    until: int | None = None
    committed: bool = False
    controls: bool = False
    limit: int = LIMIT
    largest: int = LARGEST

    def has(self, record: Record) -> bool:
        """Returns whether a record is within the bounds."""
        if record.offset < self.first or (self.end is not None and record.offset >= self.end):
            return False
        if self.since is None and self.until is None:
            return True
        time = record.timestamp
        return time is not None and (self.since or 0) <= time and (self.until is None or time < self.until)


class LogMessage(NamedTuple):
    """A record and its entry; ``sequence`` is its number among its producer's."""

    record: Record
    entry: LogEntry
    header: EntryHeader
    sequence: int | None


Told = Callable[[OffsetMgrError], None]
"""Receives the error of one entry, or of the rest of a file."""


def entries_of(segment: Segment, wanted: MessageFilter, told: Told) -> Iterator[LogEntry]:
    """Yields a segment's intact entries from the one with the first offset on."""
    try:
        start = segment.position_before(wanted.first) if wanted.first > segment.base_offset else 0
        with segment.walk(start, largest=wanted.largest) as walk:
            for entry in walk:
                try:
                    intact = entry.intact()
                except OffsetMgrError as error:
                    told(_placed(segment, entry, error))
                    continue
                if intact:
                    yield entry
                else:
                    why = "its checksum is not that of its bytes (CORRUPT_MESSAGE)"
                    told(_placed(segment, entry, CorruptData(f"entry at offset {entry.offset}", why)))
            if walk.left:
                where = f"{segment.log}, position {walk.position}"
                told(CorruptData(where, f"the last {walk.left:,} bytes are no whole entry"))
    except OffsetMgrError as error:
        told(error)


def messages(segments: Sequence[Segment], wanted: MessageFilter, told: Told) -> Iterator[LogMessage]:
    """Yields the requested messages in the order of the log. Errors go to ``told``; none is raised."""
    transactions = _transactions(segments, wanted) if wanted.committed else None
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if following is not None and following.base_offset <= wanted.first:
            continue
        if wanted.end is not None and segment.base_offset >= wanted.end:
            return
        for entry in entries_of(segment, wanted, told):
            if wanted.end is not None and entry.magic == 2 and entry.offset >= wanted.end:
                return
            try:
                yield from _of(entry, wanted, transactions)
            except OffsetMgrError as error:
                told(_placed(segment, entry, error))


def _of(entry: LogEntry, wanted: MessageFilter, transactions: Transactions | None) -> Iterator[LogMessage]:
    header = entry.header()
    if header.last_offset < wanted.first:
        return
    newest = header.largest_timestamp
    if wanted.since is not None and newest is not None and newest < wanted.since:
        return
    batch = entry.batch(wanted.first, controls=wanted.controls, limit=wanted.limit)
    if transactions is not None and not batch.control and not transactions.committed(batch):
        return
    for record in batch.records:
        if wanted.has(record):
            yield LogMessage(record, entry, header, _sequence(header, record))


def _sequence(header: EntryHeader, record: Record) -> int | None:
    if header.base_sequence is None or header.base_offset is None:
        return None
    return (header.base_sequence + record.offset - header.base_offset) % _SEQUENCES


def _transactions(segments: Sequence[Segment], wanted: MessageFilter) -> Transactions:
    """Reads the transactions of the whole log, since one may begin before the first offset and end after the last.

    Damaged entries are skipped here: their errors are reported when their messages are read.
    """
    found = Transactions()
    for segment in segments:
        for entry in entries_of(segment, MessageFilter(largest=wanted.largest), lambda _error: None):
            try:
                found.add(entry)
            except OffsetMgrError:
                continue
    return found


def _placed(segment: Segment, entry: LogEntry, error: OffsetMgrError) -> OffsetMgrError:
    """Returns the same error with its position."""
    return type(error)(f"{segment.log}, position {entry.position}", str(error), error.hint)
