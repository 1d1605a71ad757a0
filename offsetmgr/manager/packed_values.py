"""`PackedValues`: the raw values of a group's topic by partition, in few bytes objects.

A dict with a bytes object for each value takes 110 bytes for a value of 24 bytes. This class joins the values of 64
neighbouring partitions in one bytes object, a *chunk*, so a value of 24 bytes takes about 35 bytes. A change replaces
the whole chunk. The cost of a change is therefore limited, however many partitions the topic has.

A chunk consists of the set of its partitions (64 bits), the position of each value and the end of the last one (32 bits
each), and the values in the order of the partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

_CHUNK_BITS: Final = 6
_CHUNK: Final = 1 << _CHUNK_BITS
_SET: Final = struct.Struct("<Q")
_BOUNDS: Final = struct.Struct("<II")
_HEADERS: Final = [struct.Struct(f"<Q{number + 1}I") for number in range(_CHUNK + 1)]
"""The part of a chunk in front of the values, by the number of values."""
_FEW: Final = 8
"""Up to this number of values, one access for each value is faster than one for the whole chunk."""
_SORTED_RUNS: Final = 512
"""The number of sequences of partitions that are remembered. Clients commit the same partitions again and again."""


class _Place(NamedTuple):
    """The place of a sequence of partitions that are in one chunk and in ascending order."""

    chunk: int
    members: int
    """The set of the partitions in the chunk."""


class PackedValues:
    """A mapping from partitions to values. Only one thread may use it at a time."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, bytes] = {}

    def __len__(self) -> int:
        return sum(_SET.unpack_from(chunk)[0].bit_count() for chunk in self._chunks.values())

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[int]:
        """Yields the partitions in ascending order."""
        for number in sorted(self._chunks):
            first = number << _CHUNK_BITS
            yield from [first + member for member in _members(_SET.unpack_from(self._chunks[number])[0])]

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Yields the partitions in ascending order with their values. The iteration may miss a change that is made
        during the iteration."""
        for number in sorted(self._chunks):
            first = number << _CHUNK_BITS
            for member, value in _unpack(self._chunks.get(number, b"")).items():
                yield first + member, value

    def get(self, partition: int) -> bytes | None:
        """Returns the value of a partition; None if there is none."""
        chunk = self._chunks.get(partition >> _CHUNK_BITS)
        bounds = None if chunk is None else _find(chunk, partition)
        return None if chunk is None or bounds is None else chunk[bounds[0] : bounds[1]]

    def get_many(self, partitions: Sequence[int]) -> Sequence[bytes | None]:
        """Returns the value of each partition, in the order of ``partitions``."""
        if len(partitions) <= _FEW:
            return [self.get(partition) for partition in partitions]
        place = _place_of(tuple(partitions))
        if place is not None:
            chunk = self._chunks.get(place.chunk)
            if chunk is None:
                return [None] * len(partitions)
            if _SET.unpack_from(chunk)[0] == place.members:
                return _values(chunk)
        numbers = {partition >> _CHUNK_BITS for partition in partitions}
        by_chunk = {number: _unpack(self._chunks.get(number, b"")) for number in numbers}
        return [by_chunk[partition >> _CHUNK_BITS].get(partition & _CHUNK - 1) for partition in partitions]

    def put(self, partition: int, value: bytes) -> bool:
        """Sets one value. Returns whether the partition had none."""
        number = partition >> _CHUNK_BITS
        chunk = self._chunks.get(number)
        bounds = None if chunk is None else _find(chunk, partition)
        if chunk is not None and bounds is not None and bounds[1] - bounds[0] == len(value):
            self._chunks[number] = chunk[: bounds[0]] + value + chunk[bounds[1] :]
        else:
            self._merge(number, {partition & _CHUNK - 1: value})
        return bounds is None

    def put_many(self, partitions: Sequence[int], values: Sequence[bytes]) -> int:
        """Sets several values; if a partition occurs twice, its later value counts. Returns the number of partitions
        that had no value."""
        if len(partitions) <= _FEW and self._chunks:
            return sum(map(self.put, partitions, values))
        place = _place_of(tuple(partitions))
        if place is not None:
            chunk = self._chunks.get(place.chunk)
            if chunk is None or _SET.unpack_from(chunk)[0] == place.members:
                self._chunks[place.chunk] = _pack(place.members, values)
                return len(partitions) if chunk is None else 0
        by_chunk: dict[int, dict[int, bytes]] = {}
        for partition, value in zip(partitions, values, strict=True):
            by_chunk.setdefault(partition >> _CHUNK_BITS, {})[partition & _CHUNK - 1] = value
        return sum(self._merge(number, changed) for number, changed in by_chunk.items())

    def remove_many(self, partitions: Iterable[int]) -> int:
        """Removes the values of several partitions. Returns the number of values that were there."""
        by_chunk: dict[int, int] = {}
        for partition in partitions:
            number = partition >> _CHUNK_BITS
            by_chunk[number] = by_chunk.get(number, 0) | 1 << (partition & _CHUNK - 1)
        return sum(self._remove(number, members) for number, members in by_chunk.items())

    def _remove(self, number: int, to_remove: int) -> int:
        chunk = self._chunks.get(number)
        if chunk is None:
            return 0
        members: int = _SET.unpack_from(chunk)[0]
        remaining, found = members & ~to_remove, members & to_remove
        if not remaining:
            del self._chunks[number]
        elif found:
            values = _values(chunk)
            while found:  # from the last one, so that the positions of the others stay the same
                last = found.bit_length() - 1
                del values[(members & (1 << last) - 1).bit_count()]
                found ^= 1 << last
            self._chunks[number] = _pack(remaining, values)
        return members.bit_count() - remaining.bit_count()

    def _merge(self, number: int, changed: dict[int, bytes]) -> int:
        """Sets values of one chunk. Returns the number of partitions that had no value."""
        values = _unpack(self._chunks.get(number, b""))
        before = len(values)
        values |= changed
        added = len(values) - before
        ordered = sorted(values) if added else list(values)
        self._chunks[number] = _pack(_set_of(tuple(ordered)), [values[member] for member in ordered])
        return added


def _pack(members: int, values: Sequence[bytes]) -> bytes:
    """Encodes a chunk. The values are in the order of the partitions."""
    header = _HEADERS[len(values)]
    return b"".join((header.pack(members, *accumulate(map(len, values), initial=header.size)), *values))


def _unpack(chunk: bytes) -> dict[int, bytes]:
    """Returns the values of a chunk by the numbers of their partitions within the chunk, in ascending order; an
    empty dict if ``chunk`` is empty."""
    return dict(zip(_members(_SET.unpack_from(chunk)[0]), _values(chunk), strict=True)) if chunk else {}


def _values(chunk: bytes) -> list[bytes]:
    """Returns the values of a chunk in the order of the partitions."""
    number = _SET.unpack_from(chunk)[0].bit_count()
    _, *bounds = _HEADERS[number].unpack_from(chunk)
    return [chunk[start:end] for start, end in pairwise(bounds)]


def _find(chunk: bytes, partition: int) -> tuple[int, int] | None:
    """Returns the bounds of a partition's value in its chunk; None if the chunk has no such value."""
    members, bit = _SET.unpack_from(chunk)[0], 1 << (partition & _CHUNK - 1)
    if not members & bit:
        return None
    start, end = _BOUNDS.unpack_from(chunk, _SET.size + 4 * (members & bit - 1).bit_count())
    return start, end


@lru_cache(maxsize=_SORTED_RUNS)
def _set_of(members: tuple[int, ...]) -> int:
    return sum(1 << member for member in members)


@lru_cache(maxsize=_SORTED_RUNS)
def _members(found: int) -> tuple[int, ...]:
    """Returns the members of a set in ascending order."""
    return tuple(member for member in range(_CHUNK) if found >> member & 1)


@lru_cache(maxsize=_SORTED_RUNS)
def _place_of(partitions: tuple[int, ...]) -> _Place | None:
    """Returns the place of partitions; None if they are in several chunks, or not in ascending order."""
    if not partitions or partitions[0] >> _CHUNK_BITS != partitions[-1] >> _CHUNK_BITS:
        return None
    if any(first >= second for first, second in pairwise(partitions)):
        return None
    return _Place(partitions[0] >> _CHUNK_BITS, _set_of(tuple(partition & _CHUNK - 1 for partition in partitions)))
