"""Reads selected messages from segments, one by one.

The reader reports the error of a damaged entry and continues after that entry. If the size field of an entry is
invalid, the reader cannot find the next entry of the segment. In this case it reports the error and continues with the
next segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import MAX_DECOMPRESSED_BYTES
from offsetmgr.segments.entries import MAX_ENTRY_BYTES, EntryHeader, LogEntry
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transactions import Transactions

_SEQUENCES: Final = 2**31
"""Sequence numbers restart at 0 after 2**31 - 1."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Selects messages by offset and time, and limits the size of entries.

    ``first`` and ``since`` are inclusive, ``end`` and ``until`` exclusive. Times are in milliseconds since 1970. If
    ``since`` or ``until`` is set, messages without a time are excluded. ``committed`` excludes the messages that a
    ``read_committed`` consumer does not receive. ``controls`` adds control records. ``limit`` is the maximum number of
    decompressed bytes of an entry, ``max_entry_bytes`` the maximum size of an entry in the file.

    >>> MessageFilter(first=100, until=1_700_000_000_000).committed
    False
    """

    first: int = 0
    end: int | None = None
    since: int | None = None
    until: int | None = None
    committed: bool = False
    controls: bool = False
    limit: int = MAX_DECOMPRESSED_BYTES
    max_entry_bytes: int = MAX_ENTRY_BYTES

    def matches(self, record: Record) -> bool:
        """Returns whether a record is within the ranges of offsets and times."""
        if record.offset < self.first or (self.end is not None and record.offset >= self.end):
            return False
        if self.since is None and self.until is None:
            return True
        time = record.timestamp
        return time is not None and (self.since or 0) <= time and (self.until is None or time < self.until)


class LogMessage(NamedTuple):
    """A record, and the entry that contains it. ``sequence`` is the record's sequence number; `None` if the producer
    was not idempotent."""

    record: Record
    entry: LogEntry
    header: EntryHeader
    sequence: int | None

    @property
    def timestamp_type(self) -> str | None:
        """ "create" or "append"; None if the record has no timestamp."""
        return None if self.record.timestamp is None else "append" if self.record.log_append_time else "create"


OnError = Callable[[OffsetMgrError], None]
"""Receives the error of one entry, or of the rest of a file."""


def entries_of(segment: Segment, message_filter: MessageFilter, on_error: OnError) -> Iterator[LogEntry]:
    """Yields a segment's intact entries. The first entry that it yields contains the filter's first offset, or is a
    little before that offset. Passes errors to ``on_error``."""
    try:
        start = segment.position_before(message_filter.first) if message_filter.first > segment.base_offset else 0
        with segment.open_reader(start, max_entry_bytes=message_filter.max_entry_bytes) as reader:
            for entry in reader:
                try:
                    intact = entry.intact()
                except OffsetMgrError as error:
                    on_error(_with_position(segment, entry, error))
                    continue
                if intact:
                    yield entry
                else:
                    why = "its checksum does not match its content (CORRUPT_MESSAGE)"
                    on_error(_with_position(segment, entry, CorruptData(f"entry at offset {entry.offset}", why)))
            if reader.incomplete_bytes:
                where = f"{segment.log}, position {reader.position}"
                on_error(CorruptData(where, f"the last {reader.incomplete_bytes:,} bytes are not a complete entry"))
    except OffsetMgrError as error:
        on_error(error)


def messages(segments: Sequence[Segment], message_filter: MessageFilter, on_error: OnError) -> Iterator[LogMessage]:
    """Yields the selected messages in the order of the log. Passes all errors to ``on_error``.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from offsetmgr.segments import LogAppender, Partition, Record
    >>> with TemporaryDirectory() as parent:
    ...     with LogAppender(Path(parent) / "orders-0") as log:
    ...         done = log.append([Record(0, 1_700_000_000_000 + n, None, b"%d" % n) for n in range(3)])
    ...     partition = Partition(Path(parent) / "orders-0")
    ...     [found.record.value for found in messages(partition.segments, MessageFilter(first=1), on_error=print)]
    [b'1', b'2']
    """
    transactions = _transactions(segments, message_filter) if message_filter.committed else None
    for segment, successor in zip(segments, [*segments[1:], None], strict=True):
        if successor is not None and successor.base_offset <= message_filter.first:
            continue
        if message_filter.end is not None and segment.base_offset >= message_filter.end:
            return
        for entry in entries_of(segment, message_filter, on_error):
            if message_filter.end is not None and entry.magic == 2 and entry.offset >= message_filter.end:
                return
            try:
                yield from _messages_of(entry, message_filter, transactions)
            except OffsetMgrError as error:
                on_error(_with_position(segment, entry, error))


def _messages_of(
    entry: LogEntry, message_filter: MessageFilter, transactions: Transactions | None
) -> Iterator[LogMessage]:
    header = entry.header()
    if header.last_offset < message_filter.first:
        return
    newest = header.largest_timestamp
    if message_filter.since is not None and newest is not None and newest < message_filter.since:
        return
    batch = entry.batch(message_filter.first, controls=message_filter.controls, limit=message_filter.limit)
    if transactions is not None and not batch.control and not transactions.committed(batch):
        return
    for record in batch.records:
        if message_filter.matches(record):
            yield LogMessage(record, entry, header, _sequence(header, record))


def _sequence(header: EntryHeader, record: Record) -> int | None:
    if header.base_sequence is None or header.base_offset is None:
        return None
    return (header.base_sequence + record.offset - header.base_offset) % _SEQUENCES


def _transactions(segments: Sequence[Segment], message_filter: MessageFilter) -> Transactions:
    """Reads the transactions of the whole log, because a transaction may begin before the selected offsets and end
    after them.

    Ignores the errors of damaged entries, because `messages` reports them.
    """
    found = Transactions()
    for segment in segments:
        for entry in entries_of(
            segment, MessageFilter(max_entry_bytes=message_filter.max_entry_bytes), lambda _error: None
        ):
            try:
                found.add(entry)
            except OffsetMgrError:
                continue
    return found


def _with_position(segment: Segment, entry: LogEntry, error: OffsetMgrError) -> OffsetMgrError:
    """Returns an error of the same type that also names the file and the position."""
    return type(error)(f"{segment.log}, position {entry.position}", str(error), error.hint)
