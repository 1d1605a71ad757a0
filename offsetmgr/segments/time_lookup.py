"""Finds offsets by time in a partition's segments.

Times are milliseconds since 1970, and are the producers' unless the topic uses the broker's: they need not ascend, so
only the messages themselves show them. A message without a time (format 0) counts as written at the last write of its
segment.

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

    Raises `CorruptData` if a needed entry is damaged, `FileFailure`.
    """
    for segment in reversed(segments):
        found = _last_in(segment, time)
        if found is not None:
            return found
    return None


def at_or_after(segments: Sequence[Segment], time: int) -> TimedOffset | None:
    """Returns the first record of the log with a time at or after ``time``, as brokers since 0.10.1 do (KIP-79): it may
    be the end of a transaction. None if all are earlier; messages without a time never match. Raises the errors of
    `at_or_before`."""
    for segment in segments:
        if max_timestamp(segment) < time:
            continue
        index = segment.time_index().before(time - 1)
        with segment.walk(0 if index is None else segment.position_before(index.offset)) as walk:
            for entry in walk:
                if (entry.header().largest_timestamp or -1) < time:
                    continue
                for record in entry.batch(controls=True).records:
                    if record.timestamp is not None and record.timestamp >= time:
                        return TimedOffset(record.offset, record.timestamp)
    return None


def segments_before(segments: Sequence[Segment], time: int, most: int, now: int) -> list[int]:
    """Returns the start offsets of segments, descending and at most ``most``, from the last one that was written at or
    before ``time`` on: the answer of brokers before 0.10.1. The log's end counts as written ``now``, if the last
    segment is not empty. Raises `FileFailure`, and `CorruptData` if the last segment is damaged."""
    written = [(segment.base_offset, segment.modified) for segment in segments]
    if segments and segments[-1].size:
        written.append((next_offset(segments[-1]), now))
    while written and written[-1][1] > time:
        written.pop()
    return [offset for offset, _ in reversed(written)][:most]


def _last_in(segment: Segment, time: int) -> TimedOffset | None:
    """Returns the last message in a segment that is not later. It decodes an entry without later messages only if it is
    the last such."""
    written = segment.modified
    found: TimedOffset | LogEntry | None = None
    with segment.walk() as walk:
        for entry in walk:
            if not (newest := entry.header().largest_timestamp) or newest > time:
                found = _last_of(entry, time, written) or found
            elif entry.header().record_count != 0 and not entry.header().control:
                found = entry
    return _last_of(found, time, written) if isinstance(found, LogEntry) else found


def _last_of(entry: LogEntry, time: int, written: int) -> TimedOffset | None:
    for record in reversed(entry.batch().records):
        at = written if record.timestamp is None else record.timestamp
        if at <= time:
            return TimedOffset(record.offset, at)
    return None
