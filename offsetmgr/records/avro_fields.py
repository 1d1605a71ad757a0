"""Reads and writes the Avro types of the records: long, int, string, and unions of null and another type.

The section "Binary Encoding" of the Avro specification defines these encodings. `AvroFieldReader` accepts a number only
in its shortest form, and no bytes after the last field.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.core.varint import encode_varint, unzigzag, zigzag
from offsetmgr.records.base import RecordReader, utf8

NULL: Final = b"\x00"
_PRESENT: Final = b"\x02"
CACHED_PARTITIONS: Final = 1 << 13
"""`Tables` contains the encodings of partition numbers below this number."""


def long(number: int) -> bytes:
    """Encodes a long. Raises `UnsupportedOperation` for more than 64 bits."""
    if not -(1 << 63) <= number < 1 << 63:
        raise UnsupportedOperation(f"number {number}", "it does not fit into 64 bits")
    return encode_varint(zigzag(number))


def int32(number: int) -> bytes:
    """Encodes an int. Raises `UnsupportedOperation` for more than 32 bits."""
    if not -(1 << 31) <= number < 1 << 31:
        raise UnsupportedOperation(f"number {number}", "it does not fit into 32 bits")
    return encode_varint(zigzag(number))


def string(text: str) -> bytes:
    """Encodes a string. Raises `UnsupportedOperation` for an unpaired surrogate."""
    data = utf8(text, "text")
    return encode_varint(len(data) << 1) + data


def present(data: bytes) -> bytes:
    """Encodes the second branch of a union whose first branch is null."""
    return _PRESENT + data


class Tables(NamedTuple):
    """Lookup tables of encoded numbers, which make the encoding of a commit faster.

    The encoding of a non-negative long ``n`` is ``short[n]``, or the concatenation of ``first[n & 0x1FFF]`` (the sign
    and 13 bits), an entry of ``middle`` for each further 14 bits, and an entry of ``last`` for the rest.
    """

    short: Sequence[bytes]
    first: Sequence[bytes]
    middle: Sequence[bytes]
    last: Sequence[bytes]
    suffixes: Sequence[bytes]
    partitions: Mapping[bytes, int]
    """The reverse of ``suffixes``: the partition of each encoding."""


@functools.cache
def tables(prefix: bytes) -> Tables:
    """Builds the tables, which takes about ten milliseconds and 3 MB. The entries of ``short`` and ``first`` begin with
    ``prefix``."""
    last = [encode_varint(number) for number in range(1 << 14)]
    middle = [bytes((number & 0x7F | 0x80, number >> 7 | 0x80)) for number in range(1 << 14)]
    suffixes = last[::2]
    return Tables(
        short=[prefix + data for data in suffixes],
        first=[prefix + data for data in middle[::2]],
        middle=middle,
        last=last,
        suffixes=suffixes,
        partitions={data: partition for partition, data in enumerate(suffixes)},
    )


class AvroFieldReader(RecordReader):
    """Reads the fields of an Avro record."""

    def long(self, field: str) -> int:
        return self._number(field, 64)

    def int32(self, field: str) -> int:
        return self._number(field, 32)

    def string(self, field: str) -> str:
        return self.text(self.take(self._number(field, 64), field), field)

    def is_present(self, field: str) -> bool:
        """Reads the branch index of a union. Returns False if the value of the union is null."""
        branch = self._number(field, 64)
        if branch not in (0, 1):
            raise self.corrupt(f"the union {field} has no branch {branch}")
        return branch == 1

    def _number(self, field: str, bits: int) -> int:
        start = self.position
        number = self.unsigned(field, bits, 10)
        if self.position > start + 1 and self._data[self.position - 1] == 0:
            raise self.corrupt(f"{field} is not in its shortest form")
        return unzigzag(number)
