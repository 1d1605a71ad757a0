"""Appends records to a partition's directory without a running broker.

Like a broker, the appender writes to the active (last) segment and updates the indexes of this segment. It rolls the
segment by size and by time, as `RollPolicy` determines.

The appender writes the log before the indexes. After a crash, index entries may be missing, which does no harm. If the
log ends within an entry, `LogAppender` raises `CorruptData` when it is entered. `LogAppender.flush` makes appended
entries durable; the caller decides how often to call it.

Source: Kafka 0.10.1, Implementation, 5.5 "Writes"; org.apache.kafka.storage.internals.log (LogSegment.append,
shouldRoll), kafka.log.UnifiedLog.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Final, NamedTuple, Self

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import CorruptData, FileFailure, UnsupportedOperation, os_error_as
from offsetmgr.segments.batch_builder import Producer, batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.broker_lock import require_unused, require_unused_parent
from offsetmgr.segments.compression import NONE
from offsetmgr.segments.entries import LogEntry, split
from offsetmgr.segments.indexes import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY,
    TIME_ENTRY,
    TimeEntry,
    relative_offset,
)
from offsetmgr.segments.partition import partition_of, segments_in
from offsetmgr.segments.retention import max_timestamp
from offsetmgr.segments.segment import INDEX, TIME_INDEX, Segment, segment_file_name

_MAX_SEGMENT_BYTES: Final = 2**31 - 1
"""Maximum size of a segment in bytes, because positions in an index are signed 32-bit numbers."""


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """Determines when the appender closes a segment and begins the next one. The fields are named after Kafka's topic
    settings.

    The appender rolls the segment before an append that would make the segment larger than ``segment_bytes``. It also
    rolls the segment before an append whose newest message is more than ``segment_ms`` later than the first message of
    the segment. If the messages have no timestamps, the time since the appender opened the segment counts instead. The
    appender adds an index entry when more than ``index_interval_bytes`` were appended after the last index entry.

    >>> RollPolicy(segment_bytes=1_000_000).index_interval_bytes
    4096
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096


class AppendInfo(NamedTuple):
    """The first and the last offset of an append."""

    first: int
    last: int


class _ActiveSegment:
    """The segment that receives appends."""

    def __init__(self, segment: Segment, stack: ExitStack, now: int) -> None:
        self.segment = segment
        self.log = stack.enter_context(segment.log.open("ab", buffering=0))
        self.index: BinaryIO = stack.enter_context(segment.index_path(INDEX).open("ab"))
        self.times: BinaryIO = stack.enter_context(segment.index_path(TIME_INDEX).open("ab"))
        self.size = segment.size
        self.opened_at_ms = now
        self.first_time: int | None = None
        self.newest = TimeEntry(-1, segment.base_offset)
        self.last_indexed_time = -1
        """The time of the last entry of the time index."""
        self.bytes_since_index_entry = 0
        """Bytes of the log after the last index entry."""


class LogAppender:
    """Appends to one partition. The appender is a context manager. While the context is open, the appender keeps files
    open and keeps brokers out of the directory.

    Entering raises `Conflict` if a broker uses the directory (see `broker_lock`), `CorruptData` if the last segment
    does not end with a complete entry (recover it first), and `FileFailure`. Instances are not thread-safe.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from offsetmgr.segments import Partition, Record
    >>> with TemporaryDirectory() as parent:
    ...     with LogAppender(Path(parent) / "orders-0", RollPolicy(segment_bytes=1_000_000)) as log:
    ...         done = log.append([Record(0, 1_700_000_000_000, b"key", b"value")])
    ...         log.flush()
    ...     Partition(Path(parent) / "orders-0").range()
    LogRange(start=0, end=1)
    """

    def __init__(self, directory: Path, roll_policy: RollPolicy | None = None, clock: Clock | None = None) -> None:
        self.directory = directory
        self._roll_policy = roll_policy or RollPolicy()
        self._clock = clock or SystemClock()
        self._locks = ExitStack()
        self._open = ExitStack()
        self._active: _ActiveSegment | None = None
        self.next_offset = 0
        """The offset of the next record."""

    def __enter__(self) -> Self:
        partition_of(self.directory)
        with ExitStack() as locks, os_error_as(FileFailure, f"cannot append to {self.directory}"):
            # Check this before the directory is created, because a running broker would find the new directory.
            locks.enter_context(require_unused_parent(self.directory))
            self.directory.mkdir(parents=True, exist_ok=True)
            locks.enter_context(require_unused(self.directory))
            if segments := segments_in(self.directory):
                self._resume(segments[-1])
            self._locks = locks.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._locks:
            self.roll()

    def append(
        self,
        records: Sequence[Record],
        codec: int = NONE,
        *,
        magic: int = 2,
        producer: Producer | None = None,
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Appends records as one batch. Assigns the next offsets of the log to the records, and ignores the offsets in
        ``records``.

        In formats 0 and 1 the records become uncompressed messages, or one compressed message. Raises the errors of
        `append_entries`, `batch` and `message_set`.
        """
        numbered = [record._replace(offset=self.next_offset + at) for at, record in enumerate(records)]
        if not numbered:
            raise UnsupportedOperation(f"append to {self.directory}", "there are no records")
        if magic == 2:
            data = batch(numbered, codec, producer=producer, leader_epoch=leader_epoch)
        elif producer is None and leader_epoch is None:
            data = message_set(numbered, magic, codec)
        else:
            raise UnsupportedOperation(
                f"append to {self.directory}", f"format {magic} has no producer ids and no leader epochs"
            )
        return self.append_entries(data)

    def append_entries(self, data: bytes) -> AppendInfo:
        """Appends complete entries unchanged, as a follower replica does. Their offsets must ascend and may have gaps.

        Verifies all entries before it writes the first one. Raises `CorruptData` for a damaged entry,
        `UnsupportedOperation` for an offset below `next_offset`, and `FileFailure`.
        """
        entries = list(split(data))
        if not entries or entries[-1].end != len(data):
            raise CorruptData(f"append to {self.directory}", "the data does not end with a complete entry")
        firsts = []
        expected = self.next_offset
        for entry in entries:
            found = entry.batch(controls=True)  # verifies the whole entry
            firsts.append(found.base_offset)
            if found.base_offset < expected:
                why = f"an entry has offset {found.base_offset}, but the next offset is {expected}"
                raise UnsupportedOperation(f"append to {self.directory}", why)
            expected = found.last_offset + 1
        assigned = AppendInfo(firsts[0], expected - 1)
        with os_error_as(FileFailure, f"cannot append to {self.directory}"):
            self._write(entries, data, assigned)
        self.next_offset = expected
        return assigned

    def roll(self) -> None:
        """Closes the active segment; the next append begins a new one. Raises `FileFailure`."""
        active, self._active = self._active, None
        if active is None:
            return
        with os_error_as(FileFailure, f"cannot write {active.segment.log}"), self._open:
            self._append_time_entry(active)

    def flush(self) -> None:
        """Flushes all appended entries to disk (fsync). Raises `FileFailure`."""
        if self._active is None:
            return
        with os_error_as(FileFailure, f"cannot write {self.directory}"):
            files: tuple[IO[bytes], ...] = (self._active.log, self._active.index, self._active.times)
            for file in files:
                file.flush()
                os.fsync(file.fileno())

    # --- the active segment ------------------------------------------------------------------------

    def _resume(self, segment: Segment) -> None:
        first: LogEntry | None = None
        end = 0
        self.next_offset = segment.base_offset
        with (
            segment.open_reader() as reader,
            contextlib.suppress(CorruptData),
        ):  # an entry with an invalid size also ends the valid part
            for entry in reader:
                if not entry.intact():
                    break
                first = first or entry
                end, self.next_offset = entry.end, entry.header().last_offset + 1
        if end != segment.size:
            why = f"after position {end} there is no complete entry with a right checksum"
            raise CorruptData(str(segment.log), why, Advice("truncate it there with {}", Invocation("log recover")))
        offsets, times = segment.offset_index(), segment.time_index()
        for suffix, size in ((INDEX, OFFSET_ENTRY.size * len(offsets)), (TIME_INDEX, TIME_ENTRY.size * len(times))):
            if (file := segment.index_path(suffix)).exists():
                os.truncate(file, size)  # removes the preallocated space that a killed broker left
        active = self._active = _ActiveSegment(segment, self._open, self._clock.now_ms())
        active.last_indexed_time = times.last.timestamp if times.last else -1
        active.first_time = None if first is None else first.header().largest_timestamp
        if active.first_time is not None:
            active.newest = TimeEntry(max_timestamp(segment), self.next_offset - 1)

    def _write(self, entries: Sequence[LogEntry], data: bytes, assigned: AppendInfo) -> None:
        newest = max((entry.header().largest_timestamp or -1) for entry in entries)
        active = self._active
        if active is None or self._must_roll(active, len(data), assigned.last, newest):
            self.roll()
            segment = Segment(self.directory / segment_file_name(assigned.first), assigned.first)
            segment.log.touch(exist_ok=False)
            self._active = active = _ActiveSegment(segment, self._open, self._clock.now_ms())
        position = active.size
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[active.log.write(remaining) :]
        except OSError:
            active.log.truncate(position)
            raise
        active.size += len(data)
        if newest >= 0 and active.first_time is None:
            active.first_time = newest
        if newest > active.newest.timestamp:
            active.newest = TimeEntry(newest, assigned.last)
        if active.bytes_since_index_entry > self._roll_policy.index_interval_bytes:
            base = active.segment.base_offset
            active.index.write(OFFSET_ENTRY.pack(relative_offset(assigned.last, base), position))
            self._append_time_entry(active)
            active.bytes_since_index_entry = 0
        active.bytes_since_index_entry += len(data)

    def _must_roll(self, active: _ActiveSegment, new_bytes: int, offset: int, newest: int) -> bool:
        if not active.size:
            return False
        limit = min(self._roll_policy.segment_bytes, _MAX_SEGMENT_BYTES)
        if active.size > limit - new_bytes or offset - active.segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if active.first_time is not None and newest >= 0:
            return newest - active.first_time > self._roll_policy.segment_ms
        return self._clock.now_ms() - active.opened_at_ms > self._roll_policy.segment_ms

    def _append_time_entry(self, active: _ActiveSegment) -> None:
        if active.newest.timestamp > active.last_indexed_time:
            time, offset = active.newest
            active.times.write(TIME_ENTRY.pack(time, relative_offset(offset, active.segment.base_offset)))
            active.last_indexed_time = active.newest.timestamp
