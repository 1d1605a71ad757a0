"""Finds offsets by time in a partition's segments.

Times are in milliseconds since 1970. Producers set the times, unless the topic uses the broker's append time. The times
of successive messages may therefore decrease, so a search must read the messages.

Source: Kafka 0.10.1, Implementation, 5.5 "Reads"; kafka.log.UnifiedLog (fetchOffsetByTimestamp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from offsetmgr.segments.retention import max_timestamp
from offsetmgr.segments.segment import Segment


class TimedOffset(NamedTuple):
    """A message's offset and time."""

    offset: int
    timestamp: int


def at_or_after(segments: Sequence[Segment], time: int) -> TimedOffset | None:
    """Returns the first record of the log with a time at or after ``time``; `None` if there is none.

    As in Kafka brokers since release 0.10.1 (KIP-79), the record may be a transaction marker, and a message without a
    timestamp never matches. Raises `FileFailure`. Raises `CorruptData` if an entry that must be read is damaged.

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
