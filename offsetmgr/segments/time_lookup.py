"""Finds offsets by time in a partition's segments.

Times are in milliseconds since 1970. Producers set the times, unless the topic uses the broker's append time. The times
of successive messages may therefore decrease, so a search must read the messages. The time of a message without a
timestamp (format 0) is the time at which the file of its segment was last modified.

Source: Kafka 0.10.1, Implementation, 5.5 "Reads"; kafka.log.UnifiedLog (fetchOffsetByTimestamp,
legacyFetchOffsetsBefore).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from offsetmgr.segments.entries import LogEntry
from offsetmgr.segments.partition import next_offset
from offsetmgr.segments.retention import max_timestamp
from offsetmgr.segments.segment import Segment


class TimedOffset(NamedTuple):
    """A message's offset and time."""

    offset: int
    timestamp: int


def at_or_before(segments: Sequence[Segment], time: int) -> TimedOffset | None:
    """Returns the last message of the log with a time at or before ``time``; None if there is none.

    Raises `FileFailure`. Raises `CorruptData` if an entry that must be read is damaged.
    """
    for segment in reversed(segments):
        found = _last_in_segment(segment, time)
        if found is not None:
            return found
    return None


def at_or_after(segments: Sequence[Segment], time: int) -> TimedOffset | None:
    """Returns the first record of the log with a time at or after ``time``; `None` if there is none.

    As in Kafka brokers since release 0.10.1 (KIP-79), the record may be a transaction marker, and a message without a
    timestamp never matches. Raises the errors of `at_or_before`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from offsetmgr.segments import LogAppender, Partition, Record
    >>> with TemporaryDirectory() as parent:
    ...     with LogAppender(Path(parent) / "orders-0") as log:
    ...         done = log.append([Record(0, 1_700_000_000_000 + n, None, b"%d" % n) for n in range(3)])
    ...     at_or_after(Partition(Path(parent) / "orders-0").segments, 1_700_000_000_001)
    TimedOffset(offset=1, timestamp=1700000000001)
    """
    for segment in segments:
        if max_timestamp(segment) < time:
            continue
        index = segment.time_index().before(time - 1)
        with segment.open_reader(0 if index is None else segment.position_before(index.offset)) as reader:
            for entry in reader:
                if (entry.header().largest_timestamp or -1) < time:
                    continue
                for record in entry.batch(controls=True).records:
                    if record.timestamp is not None and record.timestamp >= time:
                        return TimedOffset(record.offset, record.timestamp)
    return None


def offsets_before(segments: Sequence[Segment], time: int, max_count: int, now: int) -> list[int]:
    """Returns the base offsets of the segments that were last modified at or before ``time``. Kafka brokers before
    release 0.10.1 search by time in the same way.

    The list is descending and has at most ``max_count`` offsets. If the last segment is not empty, the log end offset
    is treated like the base offset of one more segment that was modified at ``now``. Raises `FileFailure`, and
    `CorruptData` if the last segment is damaged.
    """
    written = [(segment.base_offset, segment.modified) for segment in segments]
    if segments and segments[-1].size:
        written.append((next_offset(segments[-1]), now))
    while written and written[-1][1] > time:
        written.pop()
    return [offset for offset, _ in reversed(written)][:max_count]


def _last_in_segment(segment: Segment, time: int) -> TimedOffset | None:
    """Returns the last message of a segment with a time at or before ``time``; None if there is none.

    An entry in which all messages match is decoded only if no later entry contains a matching message.
    """
    written = segment.modified
    found: TimedOffset | LogEntry | None = None
    with segment.open_reader() as reader:
        for entry in reader:
            if not (newest := entry.header().largest_timestamp) or newest > time:
                found = _last_in_entry(entry, time, written) or found
            elif entry.header().record_count != 0 and not entry.header().control:
                found = entry
    return _last_in_entry(found, time, written) if isinstance(found, LogEntry) else found


def _last_in_entry(entry: LogEntry, time: int, written: int) -> TimedOffset | None:
    for record in reversed(entry.batch().records):
        at = written if record.timestamp is None else record.timestamp
        if at <= time:
            return TimedOffset(record.offset, at)
    return None
