"""Reads and writes the primitive types of Kafka's records, in the classic and the flexible encoding (KIP-482).

In flexible versions a length is an unsigned varint of the length plus one, and every structure ends with tagged fields.
Readers skip unknown tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.records.record_reader import RecordReader, utf8

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


def string(text: str, what: str) -> bytes:
    """Encodes a string with a 16-bit length. Raises `UnsupportedOperation` if the string is too long or is not valid
    Unicode."""
    data = utf8(text, what)
    try:
        return INT16.pack(len(data)) + data
    except struct.error as error:
        raise UnsupportedOperation(what, f"{len(data)} bytes; Kafka's records hold at most 32767") from error


class KafkaFieldReader(RecordReader):
    """Reads the fields of a record in Kafka's format."""

    def __init__(self, data: bytes, what: str, *, flexible: bool = False) -> None:
        super().__init__(data, what)
        self._flexible = flexible

    def int8(self, field: str) -> int:
        return self._fixed(1, field)

    def int16(self, field: str) -> int:
        return self._fixed(2, field)

    def int32(self, field: str) -> int:
        return self._fixed(4, field)

    def int64(self, field: str) -> int:
        return self._fixed(8, field)

    def string(self, field: str) -> str:
        text = self.nullable_string(field)
        if text is None:
            raise self.corrupt(f"{field} is null")
        return text

    def nullable_string(self, field: str) -> str | None:
        data = self._sized(2, field)
        if data is None:
            return None
        if len(data) > 0x7FFF:  # Kafka rejects longer strings, although a flexible version could encode them.
            raise self.corrupt(f"{field} has {len(data)} bytes")
        return self.text(data, field)

    def blob(self, field: str) -> bytes:
        data = self._sized(4, field)
        if data is None:
            raise self.corrupt(f"{field} is null")
        return data

    def count(self, field: str) -> int:
        """Reads the length of an array."""
        count = self._unsigned(field) - 1 if self._flexible else self.int32(field)
        if count < 0:
            raise self.corrupt(f"{field} is null")
        return count

    def tagged(self) -> Mapping[int, bytes]:
        """Reads the tagged fields at the end of a structure, by tag. The result is empty if the version is not
        flexible."""
        if not self._flexible:
            return {}
        return {
            self._unsigned("a tag"): self.take(self._unsigned("a tag's size"), "a tagged field")
            for _ in range(self._unsigned("the number of tags"))
        }

    def _sized(self, length_size: int, field: str) -> bytes | None:
        size = self._unsigned(field) - 1 if self._flexible else self._fixed(length_size, field)
        return None if size == -1 else self.take(size, field)

    def _fixed(self, size: int, field: str) -> int:
        return int.from_bytes(self.take(size, field), "big", signed=True)

    def _unsigned(self, field: str) -> int:
        return self.unsigned(field, 31, 5)
