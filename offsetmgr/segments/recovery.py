"""Finds the sound part of a segment: its entries from the first to the last complete one with the right checksum.

It is Kafka's recovery of the newest segment after a crash: an entry counts if it ends within the file and its CRC is
right, and the log is truncated at the first one that does not. That covers a tail that was never written and invalid
data that was added.

It only reads, in bounded memory: the checksum is computed piece by piece, so that an invalid size costs only time.

Source: Kafka 0.10.1, Implementation, 5.5 "Guarantees"; org.apache.kafka.storage.internals.log.LogSegment.recover,
org.apache.kafka.common.record.FileLogInputStream; kafka.log.LogLoader.recoverLog (3.9).
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import FileFailure
from offsetmgr.segments.batch_reader import BATCH_SMALLEST, CRC_FROM, LEGACY_SMALLEST, LOG_OVERHEAD

CHUNK: Final = 1024 * 1024
INDEX_INTERVAL: Final = 4096
"""Bytes between two entries of an index: the broker's default of ``index.interval.bytes``."""
DOUBTS_KEPT: Final = 100
"""The number of suspicions that are reported one by one; further ones are only counted."""
_FARTHEST: Final = 2**31 - 1
"""An index has 32-bit offsets relative to the segment's first."""
_UP_TO_MAGIC: Final = 17
_LEGACY_CRC_FROM: Final = 16
_FRONT: Final = struct.Struct(">qiiB")
"""Offset, size, leader epoch (of magic 2) or CRC (before), magic."""
_REST: Final = struct.Struct(">Ihiqq")
"""Of magic 2, after the magic: CRC, attributes, last offset's delta, first and largest timestamp."""
_BATCH_FRONT: Final = _UP_TO_MAGIC + _REST.size
_INT64: Final = struct.Struct(">q")


class Damage(StrEnum):
    """Why a segment is sound only up to a position."""

    MISSING_TAIL = "missing tail"
    """The last entry does not end within the file. (An invalid size that is too large looks the same.)"""
    NONSENSE = "nonsense"
    """No entry begins there, or its checksum is wrong."""


class Suspicion(NamedTuple):
    """An entry with the right checksum whose offset or version, which no checksum covers, cannot be right.

    Kafka's recovery keeps it.
    """

    position: int
    offset: int
    why: str


class RecoveryOutcome(StrEnum):
    """The action of a recovering broker on the segment."""

    KEPT = "kept"
    CUT = "cut"
    EMPTIED = "emptied"
    """Its index cannot be built, because offsets decrease: the broker discards the whole segment."""
    UNKNOWN = "unknown"
    """An offset is before the segment's first one, or too far after it: the broker tries to split the segment, and does
    not start if it cannot."""


@dataclass(frozen=True, slots=True)
class ExaminationResult:
    """The content of a segment file. Sizes and positions are in bytes."""

    base_offset: int
    size: int
    sound: int
    """The position of the first damage: everything before it is complete entries with right checksums."""
    entries: int
    """The number of sound entries."""
    next_offset: int
    """The offset after the last sound entry: the log's end offset after a truncation there."""
    damage: Damage | None = None
    why: str = ""
    doubts: tuple[Suspicion, ...] = ()
    doubt_count: int = 0
    outcome: RecoveryOutcome = RecoveryOutcome.KEPT

    @property
    def cut(self) -> int:
        """Bytes after the sound part."""
        return self.size - self.sound

    @property
    def broker_keeps(self) -> int | None:
        """Returns the bytes that a recovering broker keeps; None if unknown."""
        if self.outcome is RecoveryOutcome.UNKNOWN:
            return None
        return 0 if self.outcome is RecoveryOutcome.EMPTIED else self.sound


def examine(
    source: BinaryIO | io.RawIOBase,
    base_offset: int,
    what: str,
    *,
    end: int | None = None,
    index_interval: int = INDEX_INTERVAL,
) -> ExaminationResult:
    """Reads a segment from its beginning to the first damage, or to ``end`` (by default the file's size).

    ``base_offset`` is the segment's, from its name; ``what`` names it in errors. Raises `FileFailure` if the file
    cannot be read, or becomes shorter meanwhile.
    """
    examination = Examination(source, base_offset, what, end=end, index_interval=index_interval)
    for _ in examination:
        pass
    return examination.result()


class Examination:
    """`examine` in pieces, for callers that report progress: yields the position after every `CHUNK` or so."""

    def __init__(
        self,
        source: BinaryIO | io.RawIOBase,
        base_offset: int,
        what: str,
        *,
        end: int | None = None,
        index_interval: int = INDEX_INTERVAL,
    ) -> None:
        size = source.seek(0, io.SEEK_END) if end is None else end
        self._walk = _Cursor(_Window(source, what, size), base_offset, index_interval)

    def __iter__(self) -> Iterator[int]:
        told = 0
        while self._walk.step():
            if self._walk.position - told >= CHUNK:
                told = self._walk.position
                yield told

    def result(self) -> ExaminationResult:
        """Returns the result so far."""
        return self._walk.result()


class _Window:
    """The bytes of a file around the current position."""

    def __init__(self, source: BinaryIO | io.RawIOBase, what: str, size: int) -> None:
        self.size = size
        self._source = source
        self._what = what
        self._at = 0
        self._data = b""

    def at(self, position: int, length: int) -> memoryview:
        """Returns ``length`` bytes (at most `CHUNK`) from ``position`` on; fewer only at the end of the file."""
        length = min(length, self.size - position)
        start = position - self._at
        if start < 0 or start + length > len(self._data):
            self._data = self._read(position, min(CHUNK, self.size - position))
            self._at = position
            start = 0
        return memoryview(self._data)[start : start + length]

    def checksum(self, position: int, end: int, taken: Callable[[memoryview, int], int]) -> int:
        """Returns the checksum of the bytes between two positions, whatever their number."""
        value = 0
        while position < end:
            piece = self.at(position, min(CHUNK, end - position))
            value = taken(piece, value)
            position += len(piece)
        return value

    def _read(self, position: int, length: int) -> bytes:
        try:
            self._source.seek(position)
            parts = []
            missing = length
            while missing and (part := self._source.read(missing)):
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            raise FileFailure(self._what, f"position {position}: {error.strerror or error}") from error
        if missing:
            raise FileFailure(self._what, "it became shorter while it was read", "does another process write to it?")
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Cursor:
    def __init__(self, window: _Window, base_offset: int, index_interval: int) -> None:
        self.position = 0
        self._window = window
        self._base = base_offset
        self._entries = 0
        self._last: int | None = None
        self._damage: Damage | None = None
        self._why = ""
        self._doubts: list[Suspicion] = []
        self._doubt_count = 0
        self._outcome = RecoveryOutcome.KEPT
        self._index = _BrokersIndex(base_offset, index_interval)

    def step(self) -> bool:
        """Reads one entry; returns False if there is no further sound one."""
        window, at = self._window, self.position
        left = window.size - at
        if not left:
            return False
        front = window.at(at, _BATCH_FRONT)
        # The broker does not read an entry of which it has only the bytes up to the magic one.
        if left <= _UP_TO_MAGIC:
            return self._end(Damage.MISSING_TAIL, f"{left} bytes are no whole entry")
        offset, size, legacy_crc, magic = _FRONT.unpack_from(front)
        if size < LEGACY_SMALLEST:
            return self._end(Damage.NONSENSE, f"an entry cannot have {size} bytes")
        end = at + LOG_OVERHEAD + size
        if end > window.size:
            return self._end(
                Damage.MISSING_TAIL, f"the entry would end {end - window.size} bytes behind the file's end"
            )
        # As a signed byte: Java takes 128 and more for versions below 2.
        if magic < 2 or magic > 0x7F:
            if window.checksum(at + _LEGACY_CRC_FROM, end, zlib.crc32) != legacy_crc & 0xFFFFFFFF:
                return self._end(Damage.NONSENSE, "the checksum is not that of its bytes")
            first = None
            last = offset
            time = _INT64.unpack_from(front, _UP_TO_MAGIC + 1)[0] if magic == 1 else -1
        else:
            if size < BATCH_SMALLEST:
                return self._end(Damage.NONSENSE, "the entry is shorter than its header")
            crc, _attributes, delta, _first_time, time = _REST.unpack_from(front, _UP_TO_MAGIC)
            if window.checksum(at + CRC_FROM, end, crc32c) != crc:
                return self._end(Damage.NONSENSE, "the checksum is not that of its bytes")
            first = offset
            last = offset + delta
        self._take(offset, first, last, magic, time)
        self._entries += 1
        self.position = end
        return True

    def _take(self, offset: int, first: int | None, last: int, magic: int, time: int) -> None:
        lowest = last if first is None else first
        if magic > 2:
            self._doubt(offset, f"message format {magic} is not known")
        if not self._base <= lowest <= last <= self._base + _FARTHEST:
            self._doubt(offset, f"offsets {lowest} to {last} do not belong to a segment that begins at {self._base}")
        elif self._last is not None and lowest <= self._last:
            self._doubt(offset, f"offset {lowest} comes after {self._last}: one of the two entries was changed")
        self._last = last
        if self._outcome is RecoveryOutcome.KEPT:
            self._outcome = self._index.take(self.position, last, time)

    def _doubt(self, offset: int, why: str) -> None:
        self._doubt_count += 1
        if len(self._doubts) < DOUBTS_KEPT:
            self._doubts.append(Suspicion(self.position, offset, why))

    def _end(self, damage: Damage, why: str) -> bool:
        self._damage, self._why = damage, why
        return False

    def result(self) -> ExaminationResult:
        outcome = self._outcome
        if outcome is RecoveryOutcome.KEPT:
            outcome = self._index.close()
        if outcome is RecoveryOutcome.KEPT and self._damage is not None:
            outcome = RecoveryOutcome.CUT
        return ExaminationResult(
            self._base,
            self._window.size,
            self.position,
            self._entries,
            self._base if self._last is None else self._last + 1,
            self._damage,
            self._why,
            tuple(self._doubts),
            self._doubt_count,
            outcome,
        )


class _BrokersIndex:
    """Whether a broker could build the segment's indexes: otherwise it empties the segment (LogLoader.recoverLog, on
    InvalidOffsetException), though every checksum is right."""

    def __init__(self, base_offset: int, interval: int) -> None:
        self._base = base_offset
        self._interval = interval
        self._position = 0
        self._indexed: int | None = None
        self._time = self._time_offset = -1
        self._indexed_time = -1
        self._indexed_time_offset: int | None = None

    def take(self, position: int, last: int, time: int) -> RecoveryOutcome:
        """Adds an entry that begins at ``position``."""
        if not self._base <= last <= self._base + _FARTHEST:
            return RecoveryOutcome.UNKNOWN
        if time > self._time:
            self._time, self._time_offset = time, last
        if position - self._position > self._interval:
            if self._indexed is not None and last <= self._indexed:
                return RecoveryOutcome.EMPTIED
            self._indexed = last
            self._position = position
            return self.close()
        return RecoveryOutcome.KEPT

    def close(self) -> RecoveryOutcome:
        """Adds the largest time so far to the time index, as at the segment's end."""
        if self._indexed_time_offset is not None and self._time_offset < self._indexed_time_offset:
            return RecoveryOutcome.EMPTIED
        if self._time > self._indexed_time:
            self._indexed_time, self._indexed_time_offset = self._time, self._time_offset
        return RecoveryOutcome.KEPT
