"""Finds the valid part of a segment, by the rule that Kafka applies when it recovers the newest segment after a crash.

An entry is valid if it ends within the file and its CRC is right. A broker truncates the log at the first entry that is
not valid. The rule covers a tail that was never written to disk, and invalid data at the end of the segment.

This module only reads, in bounded memory. It reads an entry in pieces of limited size to compute the checksum, so that
an entry with a very large, invalid size takes time but little memory.

Source: Kafka 0.10.1, Implementation, 5.5 "Guarantees"; org.apache.kafka.storage.internals.log.LogSegment.recover,
org.apache.kafka.common.record.FileLogInputStream; kafka.log.LogLoader.recoverLog (3.9).
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import FileFailure
from offsetmgr.segments.batch_reader import (
    BATCH_MIN_BYTES,
    CRC_FROM,
    INT64,
    LEGACY_CRC_FROM,
    LEGACY_MIN_BYTES,
    LOG_OVERHEAD,
    MAGIC_AT,
)
from offsetmgr.segments.entries import CHUNK, read_fully
from offsetmgr.segments.indexes import MAX_RELATIVE_OFFSET

INDEX_INTERVAL_BYTES: Final = 4096
"""Bytes of the log between two entries of an index. The value is the broker's default of ``index.interval.bytes``."""
MAX_SUSPICIONS: Final = 100
"""Maximum number of suspicions that a result lists. Further suspicions are only counted."""
_UP_TO_MAGIC: Final = MAGIC_AT + 1
_PREFIX: Final = struct.Struct(">qiiB")
"""Offset, size, leader epoch (in magic 2) or CRC (in magic 0 and 1), magic."""
_REST: Final = struct.Struct(">Ihiqq")
"""The next fields in magic 2: CRC, attributes, last offset's delta, first and largest timestamp."""
_BATCH_PREFIX_BYTES: Final = _UP_TO_MAGIC + _REST.size


class Damage(StrEnum):
    """The kind of the first damage in a segment."""

    MISSING_TAIL = "missing tail"
    """The last entry would end after the end of the file. An entry whose size field is damaged and too large has the
    same effect."""
    INVALID_ENTRY = "invalid entry"
    """No entry begins at this position, or the checksum of the entry is wrong."""


class Suspicion(NamedTuple):
    """An entry whose checksum is right, but whose offset or version is impossible. The checksum does not cover the
    offset and the version, so Kafka's recovery keeps an entry in which they are wrong.
    """

    position: int
    offset: int
    why: str


class RecoveryOutcome(StrEnum):
    """The action of a broker's recovery on the segment."""

    KEPT = "kept"
    CUT = "cut"
    EMPTIED = "emptied"
    """The broker discards the whole segment, because the offsets decrease and it cannot build the segment's indexes."""
    UNKNOWN = "unknown"
    """An offset is below the segment's base offset or too far above it. The broker tries to split the segment, and does
    not start if the split fails."""


@dataclass(slots=True)
class ExaminationResult:
    """The result of `examine` for one segment file, which it completes entry by entry. Sizes and positions are in
    bytes.
    """

    base_offset: int
    size: int
    valid_bytes: int
    """The position of the first damage: all bytes before it are complete entries with right checksums."""
    entries: int
    """The number of valid entries."""
    next_offset: int
    """The offset after the last valid entry. It is the log end offset after a truncation at ``valid_bytes``."""
    damage: Damage | None = None
    why: str = ""
    suspicions: tuple[Suspicion, ...] = ()
    suspicion_count: int = 0
    outcome: RecoveryOutcome = RecoveryOutcome.KEPT

    @property
    def invalid_bytes(self) -> int:
        """Number of bytes after the valid part."""
        return self.size - self.valid_bytes

    @property
    def state(self) -> str:
        """The first damage, "in doubt" if there are only suspicions, else "sound"."""
        return self.damage or ("in doubt" if self.suspicion_count else "sound")

    @property
    def reasons(self) -> str | None:
        """The positions and reasons of the damage and of the first suspicion; None if there are none."""
        damage = [f"position {self.valid_bytes}: {self.why}"] if self.damage else []
        doubt = [f"position {one.position}: {one.why}" for one in self.suspicions[:1]]
        return "; ".join(damage + doubt) or None


def examine(
    source: BinaryIO | io.RawIOBase,
    base_offset: int,
    what: str,
    *,
    end: int | None = None,
    on_read: Callable[[int], None] = lambda _bytes: None,
) -> ExaminationResult:
    """Reads a segment from its beginning to the first damage, or to ``end`` (by default the file's size).

    ``base_offset`` is the base offset in the segment's file name; ``what`` names the file in errors. ``on_read``
    receives the number of bytes that were read since its last call, about every `CHUNK` bytes. Raises `FileFailure` if
    the file cannot be read, or becomes shorter while it is read.
    """
    window = _Window(source, what, source.seek(0, io.SEEK_END) if end is None else end)
    return _Examination(window, base_offset).run(on_read)


class _Examination:
    """Examines the bytes of a segment, entry by entry."""

    def __init__(self, window: _Window, base_offset: int) -> None:
        self._window = window
        self._found = ExaminationResult(base_offset, window.size, 0, 0, base_offset)
        self._index = _BrokerIndexSimulation(base_offset)

    def run(self, on_read: Callable[[int], None]) -> ExaminationResult:
        reported, found = 0, self._found
        while self._step():
            if found.valid_bytes - reported >= CHUNK:
                on_read(found.valid_bytes - reported)
                reported = found.valid_bytes
        on_read(found.size - reported)
        if found.outcome is RecoveryOutcome.KEPT:
            found.outcome = self._index.close()
        if found.outcome is RecoveryOutcome.KEPT and found.damage is not None:
            found.outcome = RecoveryOutcome.CUT
        return found

    def _step(self) -> bool:
        """Reads one entry; returns False if there is no further valid entry."""
        window, at = self._window, self._found.valid_bytes
        left = window.size - at
        if not left:
            return False
        prefix = window.at(at, _BATCH_PREFIX_BYTES)
        # A broker does not read an entry if the file ends at or before its magic byte.
        if left <= _UP_TO_MAGIC:
            return self._end(Damage.MISSING_TAIL, f"{left} bytes are not a complete entry")
        offset, size, legacy_crc, magic = _PREFIX.unpack_from(prefix)
        if size < LEGACY_MIN_BYTES:
            return self._end(Damage.INVALID_ENTRY, f"an entry cannot have {size} bytes")
        end = at + LOG_OVERHEAD + size
        if end > window.size:
            return self._end(
                Damage.MISSING_TAIL, f"the entry would end {end - window.size} bytes after the end of the file"
            )
        # Java reads the magic as a signed byte, so a broker treats 128 and more as versions below 2.
        if magic < 2 or magic > 0x7F:
            if window.checksum(at + LEGACY_CRC_FROM, end, zlib.crc32) != legacy_crc & 0xFFFFFFFF:
                return self._end(Damage.INVALID_ENTRY, "the checksum does not match its content")
            first = None
            last = offset
            time = INT64.unpack_from(prefix, _UP_TO_MAGIC + 1)[0] if magic == 1 else -1
        else:
            if size < BATCH_MIN_BYTES:
                return self._end(Damage.INVALID_ENTRY, "the entry is shorter than its header")
            crc, _attributes, delta, _first_time, time = _REST.unpack_from(prefix, _UP_TO_MAGIC)
            if window.checksum(at + CRC_FROM, end, crc32c) != crc:
                return self._end(Damage.INVALID_ENTRY, "the checksum does not match its content")
            first = offset
            last = offset + delta
        self._check_offsets(offset, first, last, magic, time)
        self._found.entries += 1
        self._found.valid_bytes = end
        return True

    def _check_offsets(self, offset: int, first: int | None, last: int, magic: int, time_ms: int) -> None:
        found, lowest = self._found, last if first is None else first
        base, before = found.base_offset, found.next_offset - 1
        if magic > 2:
            self._suspect(offset, f"message format {magic} is not known")
        if not base <= lowest <= last <= base + MAX_RELATIVE_OFFSET:
            self._suspect(offset, f"offsets {lowest} to {last} do not belong to a segment that begins at {base}")
        elif found.entries and lowest <= before:
            self._suspect(offset, f"offset {lowest} comes after {before}: one of the two entries was altered")
        found.next_offset = last + 1
        if found.outcome is RecoveryOutcome.KEPT:
            found.outcome = self._index.add(found.valid_bytes, last, time_ms)

    def _suspect(self, offset: int, why: str) -> None:
        found = self._found
        found.suspicion_count += 1
        if len(found.suspicions) < MAX_SUSPICIONS:
            found.suspicions += (Suspicion(found.valid_bytes, offset, why),)

    def _end(self, damage: Damage, why: str) -> bool:
        self._found.damage, self._found.why = damage, why
        return False


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

    def checksum(self, position: int, end: int, update: Callable[[memoryview, int], int]) -> int:
        """Returns the checksum of the bytes between two positions. Reads them in pieces of at most `CHUNK` bytes."""
        value = 0
        while position < end:
            piece = self.at(position, min(CHUNK, end - position))
            value = update(piece, value)
            position += len(piece)
        return value

    def _read(self, position: int, length: int) -> bytes:
        try:
            data = read_fully(self._source, position, length)
        except OSError as error:
            raise FileFailure(self._what, f"position {position}: {error.strerror or error}") from error
        if len(data) < length:
            raise FileFailure(
                self._what, "it became shorter while offsetmgr read it", "check whether another process writes to it"
            )
        return data


class _BrokerIndexSimulation:
    """Simulates how a broker builds the segment's indexes.

    If the broker cannot build the indexes, it empties the segment, although every checksum is right
    (LogLoader.recoverLog, on InvalidOffsetException).
    """

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._position = 0
        self._indexed: int | None = None
        self._time_ms = self._time_offset = -1
        self._indexed_time_ms = -1
        self._indexed_time_offset: int | None = None

    def add(self, position: int, last: int, time_ms: int) -> RecoveryOutcome:
        """Adds an entry that begins at ``position``. Returns the outcome that a recovery would have for a segment with
        only the entries that have been added so far."""
        if not self._base <= last <= self._base + MAX_RELATIVE_OFFSET:
            return RecoveryOutcome.UNKNOWN
        if time_ms > self._time_ms:
            self._time_ms, self._time_offset = time_ms, last
        if position - self._position > INDEX_INTERVAL_BYTES:
            if self._indexed is not None and last <= self._indexed:
                return RecoveryOutcome.EMPTIED
            self._indexed = last
            self._position = position
            return self.close()
        return RecoveryOutcome.KEPT

    def close(self) -> RecoveryOutcome:
        """Adds the largest time so far to the time index, as a broker does at the segment's end. Returns the
        outcome."""
        if self._indexed_time_offset is not None and self._time_offset < self._indexed_time_offset:
            return RecoveryOutcome.EMPTIED
        if self._time_ms > self._indexed_time_ms:
            self._indexed_time_ms, self._indexed_time_offset = self._time_ms, self._time_offset
        return RecoveryOutcome.KEPT
