"""Reads selected messages from segments, one by one.

The reader reports the error of a damaged entry and continues after that entry. If the size field of an entry is
invalid, the reader cannot find the next entry of the segment. In this case it reports the error and continues with the
next segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from offsetmgr.core.errors import CorruptData, FileFailure, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import raw_json
from offsetmgr.core.selection import TopicSelection
from offsetmgr.records.json_values import ValueDecoder, ValueFormat
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import MAX_DECOMPRESSED_BYTES
from offsetmgr.segments.entries import MAX_ENTRY_BYTES, EntryHeader, LogEntry
from offsetmgr.segments.partition import (
    has_partition_dir_name,
    is_directory,
    partition_of,
    partitions_in,
    segments_in,
)
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transactions import Marker, Transactions, marker_of

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


# The messages and entries of the log files under some paths, for display.

PathLog = tuple[TopicPartition | None, Sequence[Segment]]
"""The segments of a log. The partition is None for a file in a directory that is not that of a partition."""


class DumpedMessage(NamedTuple):
    """A message of a log. ``topic`` and ``partition`` are None if the directory is not that of a partition. ``key``,
    ``value`` and the values of ``headers`` are JSON values. ``control`` is the kind of a control record."""

    topic: str | None
    partition: int | None
    message: LogMessage
    key: Any
    value: Any
    headers: list[tuple[str, Any]]
    control: str | None


class DumpedEntry(NamedTuple):
    """An entry of a log file: a batch, or a message of an older format."""

    segment: Segment
    entry: LogEntry
    header: EntryHeader


def logs_under(paths: Iterable[Path], topics: TopicSelection, on_error: OnError) -> Iterator[PathLog]:
    """Yields the segments of each log under the paths: segments, directories of partitions, brokers' log directories.
    Passes errors to ``on_error``."""
    for path in paths:
        try:
            yield from _logs_of_path(path, topics, on_error)
        except OffsetMgrError as error:
            on_error(error)


def _logs_of_path(path: Path, topics: TopicSelection, on_error: OnError) -> Iterator[PathLog]:
    path_is_directory = is_directory(path)
    if path_is_directory is None:
        raise FileFailure(f"cannot read {path}", "there is no such file or directory")
    if not path_is_directory:
        named = None
        with suppress(OffsetMgrError):
            named = partition_of(path.parent)
        yield named, (Segment.of(path),)
        return
    directories = list(partitions_in(path))
    if not directories and not has_partition_dir_name(path):
        raise CorruptData(str(path), "it is not a partition directory and contains none", "as in orders-0")
    for directory in directories or [path]:
        if topics.matches(partition := partition_of(directory)):
            try:
                yield partition, segments_in(directory)
            except OffsetMgrError as error:
                on_error(error)


def dumped_messages(
    logs: Iterable[PathLog], message_filter: MessageFilter, decode: ValueFormat, on_error: OnError
) -> Iterator[DumpedMessage]:
    """Yields the selected messages of logs, decoded. Passes errors to ``on_error``."""
    for partition, segments in logs:
        topic, number = partition or (None, None)
        decoder = ValueDecoder(decode, topic)
        for found in messages(segments, message_filter, on_error):
            record, control = found.record, None
            if found.header.control:
                try:
                    marker = marker_of(record)
                except OffsetMgrError as error:
                    on_error(error)
                    continue
                key, value, control = None, _control_value(record, marker), marker.name
            else:
                key, value = decoder.json(record.key, record.value)
            headers = [(name, raw_json(content)) for name, content in record.headers] if record.headers else []
            yield DumpedMessage(topic, number, found, key, value, headers, control)


def _control_value(record: Record, marker: Marker) -> dict[str, Any] | None:
    """Returns the fields of a control record except its kind."""
    if marker.coordinator_epoch is not None:
        return {"coordinator_epoch": marker.coordinator_epoch}
    return None if record.value is None else {"hex": record.value.hex()}


def dumped_entries(logs: Iterable[PathLog], message_filter: MessageFilter, on_error: OnError) -> Iterator[DumpedEntry]:
    """Yields the entries of logs that hold selected offsets. Passes errors to ``on_error``."""
    end = message_filter.end
    for segment in (segment for _, segments in logs for segment in segments):
        for entry in entries_of(segment, message_filter, on_error):
            header = entry.header()
            if header.last_offset >= message_filter.first and (end is None or entry.offset < end):
                yield DumpedEntry(segment, entry, header)
