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
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

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


E = TypeVar("E", bound=tuple[int, int])


class Index(Generic[E]):
    """The entries of an index file with the content ``data``. ``make`` returns an entry for the two numbers of
    ``form``."""

    def __init__(self, data: bytes, form: struct.Struct, make: Callable[[int, int], E]) -> None:
        self._data = data
        self._form = form
        self._make = make
        used = len(data.rstrip(b"\0"))  # zeros follow in the preallocated space
        self._count = min(-(-used // form.size), len(data) // form.size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> E:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._make(*self._form.unpack_from(self._data, number * self._form.size))

    @property
    def last(self) -> E | None:
        """The last entry; None if the index is empty."""
        return self[self._count - 1] if self._count else None

    def before(self, key: int) -> E | None:
        """Returns the last entry whose offset (in an offset index) or time (in a time index) is at most ``key``; None
        if there is none."""
        at = bisect_right(self, key, key=lambda entry: entry[0])
        return self[at - 1] if at else None


def offset_index(data: bytes, base: int) -> Index[IndexEntry]:
    """Returns the entries of an offset index (``.index``). ``base`` is the segment's base offset."""
    return Index(data, OFFSET_ENTRY, lambda relative, position: IndexEntry(base + relative, position))


def time_index(data: bytes, base: int) -> Index[TimeEntry]:
    """Returns the entries of a time index (``.timeindex``). ``base`` is the segment's base offset. No message up to the
    offset of an entry has a later time than the entry."""
    return Index(data, TIME_ENTRY, lambda timestamp, relative: TimeEntry(timestamp, base + relative))


def relative_offset(offset: int, base: int) -> int:
    """Returns the offset that an index entry has. Raises `UnsupportedOperation` for an offset too far from ``base``."""
    if not 0 <= offset - base <= MAX_RELATIVE_OFFSET:
        raise UnsupportedOperation(f"offset {offset}", f"it is too far from the segment's base offset {base}")
    return offset - base
