"""Appends to a partition's directory without a running broker: entries go to the last segment, which rolls by size and
time as at a broker, and the indexes are updated.

The log is written before its indexes, so after a crash an index may lack entries and the log may end within an entry;
`LogAppender` refuses to append after such an end. `LogAppender.flush` makes appended entries durable; the caller
decides how often.

Source: Kafka 0.10.1, Implementation, 5.5 "Writes"; org.apache.kafka.storage.internals.log (LogSegment.append,
shouldRoll), kafka.log.UnifiedLog.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Final, NamedTuple, Self

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import CorruptData, FileFailure, UnsupportedOperation
from offsetmgr.segments.batch_builder import Producer, batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.broker_lock import require_unused, require_unused_parent
from offsetmgr.segments.compression import NONE
from offsetmgr.segments.entries import LogEntry, split
from offsetmgr.segments.indexes import (
    LARGEST_RELATIVE,
    OFFSET_ENTRY,
    TIME_ENTRY,
    IndexEntry,
    TimeEntry,
    offset_index_bytes,
    time_index_bytes,
)
from offsetmgr.segments.partition import partition_of, segments_in
from offsetmgr.segments.retention import max_timestamp
from offsetmgr.segments.segment import INDEX, TIME_INDEX, Segment, name_of

_LARGEST_LOG: Final = 2**31 - 1
"""Positions in an index are Java ints."""


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """When a segment is closed and the next one begins, with the names of the topic's settings: before an append that
    would make it larger than ``segment_bytes``, or whose newest message is ``segment_ms`` later than the segment's
    first one (without times: after that age). An index entry is written every ``index_interval_bytes``."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096


class AppendInfo(NamedTuple):
    """The offsets that an append has assigned."""

    first: int
    last: int


class _Last:
    """The segment that receives appends."""

    def __init__(self, segment: Segment, stack: ExitStack, now: int) -> None:
        self.segment = segment
        self.log = stack.enter_context(segment.log.open("ab", buffering=0))
        self.index: BinaryIO = stack.enter_context(segment.beside(INDEX).open("ab"))
        self.times: BinaryIO = stack.enter_context(segment.beside(TIME_INDEX).open("ab"))
        self.size = segment.size
        self.begun = now
        self.first_time: int | None = None
        self.newest = TimeEntry(-1, segment.base_offset)
        self.noted = -1
        """The time of the last entry of the time index."""
        self.since_entry = 0
        """Bytes since the last index entry."""


class LogAppender:
    """Appends to one partition. Use it as a context: it holds the directory's files and keeps brokers out of it.

    Entering raises `Conflict` if a broker uses the directory (see `broker_lock`), `CorruptData` if the last segment
    does not end with a complete entry (recover it first), `FileFailure`. Instances are not thread-safe.
    """

    def __init__(self, directory: Path, rolling: RollPolicy | None = None, clock: Clock | None = None) -> None:
        self.directory = directory
        self._rolling = rolling or RollPolicy()
        self._clock = clock or SystemClock()
        self._held = ExitStack()
        self._open = ExitStack()
        self._last: _Last | None = None
        self.next_offset = 0
        """The offset of the next record."""

    def __enter__(self) -> Self:
        partition_of(self.directory)
        try:
            self._held.enter_context(
                require_unused_parent(self.directory)
            )  # before it is made, which a broker would find
            self.directory.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(require_unused(self.directory))
            segments = segments_in(self.directory)
            if segments:
                self._continue(segments[-1])
        except OSError as error:
            self._held.close()
            raise FileFailure(f"cannot append to {self.directory}", error.strerror or str(error)) from error
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:
            self._close_last()

    def append(
        self,
        records: Sequence[Record],
        codec: int = NONE,
        *,
        magic: int = 2,
        producer: Producer | None = None,
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Appends records as one batch (formats 0 and 1: one message, or several uncompressed ones); they receive the
        next offsets, whatever theirs are. Raises the errors of `append_entries`, `batch` and `message_set`."""
        placed = [record._replace(offset=self.next_offset + at) for at, record in enumerate(records)]
        if not placed:
            raise UnsupportedOperation(f"append to {self.directory}", "there are no records")
        if magic == 2:
            data = batch(placed, codec, producer=producer, leader_epoch=leader_epoch)
        elif producer is None and leader_epoch is None:
            data = message_set(placed, magic, codec)
        else:
            raise UnsupportedOperation(f"append to {self.directory}", f"format {magic} has no producers and no epochs")
        return self.append_entries(data)

    def append_entries(self, data: bytes) -> AppendInfo:
        """Appends complete entries unchanged, as a replica does; their offsets may leave gaps and must ascend.

        It writes nothing unless all are intact. Raises `CorruptData`, `UnsupportedOperation` for offsets that exist
        already, `FileFailure`.
        """
        entries = list(split(data))
        if not entries or entries[-1].end != len(data):
            raise CorruptData(f"append to {self.directory}", "the bytes to append do not end with a whole entry")
        firsts = []
        expected = self.next_offset
        for entry in entries:
            found = entry.batch(controls=True)  # verifies the whole entry
            firsts.append(found.base_offset)
            if found.base_offset < expected:
                why = f"offset {found.base_offset} is given, and the next is {expected}"
                raise UnsupportedOperation(f"append to {self.directory}", why)
            expected = found.last_offset + 1
        given = AppendInfo(firsts[0], expected - 1)
        try:
            self._write(entries, data, given)
        except OSError as error:
            raise FileFailure(f"cannot append to {self.directory}", error.strerror or str(error)) from error
        self.next_offset = expected
        return given

    def roll(self) -> None:
        """Closes the last segment; the next append begins another. Raises `FileFailure`."""
        self._close_last()

    def flush(self) -> None:
        """Returns once all appended entries are on disk. Raises `FileFailure`."""
        if self._last is None:
            return
        try:
            files: tuple[IO[bytes], ...] = (self._last.log, self._last.index, self._last.times)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileFailure(f"cannot write {self.directory}", error.strerror or str(error)) from error

    # --- the last segment --------------------------------------------------------------------------

    def _continue(self, segment: Segment) -> None:
        first: LogEntry | None = None
        end = 0
        self.next_offset = segment.base_offset
        with segment.walk() as walk, contextlib.suppress(CorruptData):  # an invalid size ends it too
            for entry in walk:
                if not entry.intact():
                    break
                first = first or entry
                end, self.next_offset = entry.end, entry.header().last_offset + 1
        if end != segment.size:
            why = f"behind position {end} it has no whole and intact entry"
            raise CorruptData(str(segment.log), why, "offsetmgr log recover cuts it there")
        offsets, times = segment.offset_index(), segment.time_index()
        for suffix, size in ((INDEX, OFFSET_ENTRY.size * len(offsets)), (TIME_INDEX, TIME_ENTRY.size * len(times))):
            if (file := segment.beside(suffix)).exists():
                os.truncate(file, size)  # a killed broker's has preallocated space after its entries
        last = self._last = _Last(segment, self._open, self._clock.now_ms())
        last.noted = times[len(times) - 1].timestamp if len(times) else -1
        last.first_time = None if first is None else first.header().largest_timestamp
        if last.first_time is not None:
            last.newest = TimeEntry(max_timestamp(segment), self.next_offset - 1)

    def _write(self, entries: Sequence[LogEntry], data: bytes, given: AppendInfo) -> None:
        newest = max((entry.header().largest_timestamp or -1) for entry in entries)
        last = self._last
        if last is None or self._full(last, len(data), given.last, newest):
            last = self._begin(given.first)
        position = last.size
        _write_all(last.log, data, position)
        last.size += len(data)
        if newest >= 0 and last.first_time is None:
            last.first_time = newest
        if newest > last.newest.timestamp:
            last.newest = TimeEntry(newest, given.last)
        if last.since_entry > self._rolling.index_interval_bytes:
            base = last.segment.base_offset
            last.index.write(offset_index_bytes([IndexEntry(given.last, position)], base))
            self._note_time(last)
            last.since_entry = 0
        last.since_entry += len(data)

    def _full(self, last: _Last, more: int, offset: int, newest: int) -> bool:
        if not last.size:
            return False
        limit = min(self._rolling.segment_bytes, _LARGEST_LOG)
        if last.size > limit - more or offset - last.segment.base_offset > LARGEST_RELATIVE:
            return True
        if last.first_time is not None and newest >= 0:
            return newest - last.first_time > self._rolling.segment_ms
        return self._clock.now_ms() - last.begun > self._rolling.segment_ms

    def _begin(self, offset: int) -> _Last:
        self._close_last()
        segment = Segment(self.directory / name_of(offset), offset)
        segment.log.touch(exist_ok=False)
        self._last = _Last(segment, self._open, self._clock.now_ms())
        return self._last

    def _note_time(self, last: _Last) -> None:
        if last.newest.timestamp > last.noted:
            last.times.write(time_index_bytes([last.newest], last.segment.base_offset))
            last.noted = last.newest.timestamp

    def _close_last(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        try:
            with self._open:
                self._note_time(last)
        except OSError as error:
            raise FileFailure(f"cannot write {last.segment.log}", error.strerror or str(error)) from error


def _write_all(file: io.FileIO, data: bytes, position: int) -> None:
    """Writes all of it, or truncates the file at ``position`` and raises `OSError`."""
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        file.truncate(position)
        raise
