"""The index files of a segment: offset index, time index, and the index of aborted transactions.

Brokers preallocate the first two and truncate them when they roll or stop: zeros follow the last entry of a running or
killed broker's index. An index only contains positions where reading can begin. A damaged one leads to a wrong
position, so readers verify it (`Segment.position_before`).

Source: org.apache.kafka.storage.internals.log (OffsetIndex, TimeIndex, AbortedTxn).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData, UnknownVersion, UnsupportedOperation

OFFSET_ENTRY: Final = struct.Struct(">ii")
"""The offset relative to the segment's, and the position in its log."""
TIME_ENTRY: Final = struct.Struct(">qi")
"""The time (milliseconds since 1970), and the offset relative to the segment's."""
ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
_ABORTED_VERSION: Final = 0
LARGEST_RELATIVE: Final = 2**31 - 1
"""The maximum distance of an offset from its segment's: indexes have four bytes for it."""


class IndexEntry(NamedTuple):
    """The entry with ``offset`` begins at or after ``position``; no earlier entry has a larger offset."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """The largest time up to ``offset``, which is the offset of its message (or of the last one in its batch)."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """A transaction that readers skip: the messages of this producer from the first offset to the last, which is its
    marker's. ``last_stable_offset`` is the broker's when it wrote the marker, None if unknown."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int | None = None


class OffsetIndex:
    """The entries of an offset index (``.index``) as bytes; ``base`` is the offset of its segment."""

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
        """Returns the last entry whose offset is at most ``offset``; the segment's beginning if there is none."""
        at = bisect_right(self, offset, key=lambda entry: entry.offset)
        return self[at - 1] if at else IndexEntry(self._base, 0)


class TimeIndex:
    """The entries of a time index (``.timeindex``) as bytes; ``base`` is the offset of its segment."""

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
        """Returns the last entry whose time is at most ``timestamp``: no message up to its offset is later."""
        at = bisect_right(self, timestamp, key=lambda entry: entry.timestamp)
        return self[at - 1] if at else None


def aborted_transactions(data: bytes, what: str) -> list[AbortedTransaction]:
    """Returns the entries of an index of aborted transactions (``.txnindex``), in the order of their markers.

    Raises `UnknownVersion`, and `CorruptData` if it ends within an entry.
    """
    if len(data) % ABORTED_ENTRY.size:
        raise CorruptData(what, f"{len(data)} bytes are no whole number of entries")
    found = []
    for version, *fields in ABORTED_ENTRY.iter_unpack(data):
        if version != _ABORTED_VERSION:
            raise UnknownVersion(what, f"version {version} of an aborted transaction is not known")
        found.append(AbortedTransaction(*fields))
    return found


def offset_index_bytes(entries: Iterable[IndexEntry], base: int) -> bytes:
    """Encodes an offset index as Kafka does. Raises `UnsupportedOperation` for offsets too far from ``base``."""
    return b"".join(OFFSET_ENTRY.pack(_relative(offset, base), position) for offset, position in entries)


def time_index_bytes(entries: Iterable[TimeEntry], base: int) -> bytes:
    """Encodes a time index as Kafka does. Raises `UnsupportedOperation` for offsets too far from ``base``."""
    return b"".join(TIME_ENTRY.pack(timestamp, _relative(offset, base)) for timestamp, offset in entries)


def aborted_index_bytes(entries: Iterable[AbortedTransaction]) -> bytes:
    """Encodes an index of aborted transactions as Kafka does. Raises `UnsupportedOperation` for a transaction without
    its last stable offset, which the file requires."""
    out = bytearray()
    for producer_id, first, last, stable in entries:
        if stable is None:
            raise UnsupportedOperation(f"transaction at offset {first}", "its last stable offset is not known")
        out += ABORTED_ENTRY.pack(_ABORTED_VERSION, producer_id, first, last, stable)
    return bytes(out)


def _entries(data: bytes, size: int) -> int:
    """Returns the number of entries before the zeros of preallocated space, and before an incomplete one."""
    used = len(data.rstrip(b"\0"))
    return min(-(-used // size), len(data) // size)


def _relative(offset: int, base: int) -> int:
    if not 0 <= offset - base <= LARGEST_RELATIVE:
        raise UnsupportedOperation(f"offset {offset}", f"it is too far from its segment's, {base}")
    return offset - base
