"""The index files of a segment: offset index and time index.

A broker preallocates the offset index and the time index, and truncates them when it rolls the segment or stops.
Therefore zeros follow the last entry in an index of a running or killed broker. An index contains only positions at
which an entry of the log begins. A damaged index may contain a wrong position, so `Segment.position_before` verifies
that an entry begins at the position.

Source: org.apache.kafka.storage.internals.log (OffsetIndex, TimeIndex).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from offsetmgr.core.errors import UnsupportedOperation

OFFSET_ENTRY: Final = struct.Struct(">ii")
"""An offset relative to the segment's base offset, and a position in the log file."""
TIME_ENTRY: Final = struct.Struct(">qi")
"""A time (milliseconds since 1970), and an offset relative to the segment's base offset."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
"""Maximum distance of an offset from the segment's base offset, because the indexes store the distance in four
bytes."""


class IndexEntry(NamedTuple):
    """An entry of an offset index: the log entry with ``offset`` begins at ``position`` or later, and no log entry
    before ``position`` has a larger offset."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index: ``timestamp`` is the largest time of all messages up to ``offset``. ``offset`` is the
    offset of the message with this time, or of the last message in the batch that contains this message."""

    timestamp: int
    offset: int


class OffsetIndex:
    """The entries of an offset index file (``.index``) with the content ``data``; ``base`` is the segment's base
    offset."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data
        self._base = base
        self._count = _entries(data, OFFSET_ENTRY.size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> IndexEntry:
        if not 0 <= number < self._count:
            raise IndexError(number)
        relative, position = OFFSET_ENTRY.unpack_from(self._data, number * OFFSET_ENTRY.size)
        return IndexEntry(self._base + relative, position)

    def before(self, offset: int) -> IndexEntry:
        """Returns the last entry with an offset of at most ``offset``. If there is none, returns an entry for the
        beginning of the segment."""
        at = bisect_right(self, offset, key=lambda entry: entry.offset)
        return self[at - 1] if at else IndexEntry(self._base, 0)


class TimeIndex:
    """The entries of a time index file (``.timeindex``) with the content ``data``; ``base`` is the segment's base
    offset."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data
        self._base = base
        self._count = _entries(data, TIME_ENTRY.size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> TimeEntry:
        if not 0 <= number < self._count:
            raise IndexError(number)
        timestamp, relative = TIME_ENTRY.unpack_from(self._data, number * TIME_ENTRY.size)
        return TimeEntry(timestamp, self._base + relative)

    def before(self, timestamp: int) -> TimeEntry | None:
        """Returns the last entry with a time of at most ``timestamp``; `None` if there is none. No message up to the
        entry's offset has a later time."""
        at = bisect_right(self, timestamp, key=lambda entry: entry.timestamp)
        return self[at - 1] if at else None


def offset_index_bytes(entries: Iterable[IndexEntry], base: int) -> bytes:
    """Encodes an offset index file. Raises `UnsupportedOperation` for an offset too far from ``base``."""
    return b"".join(OFFSET_ENTRY.pack(_relative(offset, base), position) for offset, position in entries)


def time_index_bytes(entries: Iterable[TimeEntry], base: int) -> bytes:
    """Encodes a time index file. Raises `UnsupportedOperation` for an offset too far from ``base``."""
    return b"".join(TIME_ENTRY.pack(timestamp, _relative(offset, base)) for timestamp, offset in entries)


def _entries(data: bytes, size: int) -> int:
    """Returns the number of complete entries before the zeros of the preallocated space."""
    used = len(data.rstrip(b"\0"))
    return min(-(-used // size), len(data) // size)


def _relative(offset: int, base: int) -> int:
    if not 0 <= offset - base <= MAX_RELATIVE_OFFSET:
        raise UnsupportedOperation(f"offset {offset}", f"it is too far from the segment's base offset {base}")
    return offset - base
