"""Reads and writes the primitive types of Kafka's records, in the classic and the flexible encoding (KIP-482).

In flexible versions a length is an unsigned varint of the length plus one, and every structure ends with tagged fields.
Readers skip unknown tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.errors import CorruptData, UnsupportedOperation
from offsetmgr.core.varint import decode_varint

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
_MAX_LENGTH: Final = (1 << 31) - 1


def string(text: str, what: str) -> bytes:
    """Encodes a string with a 16-bit length. Raises `UnsupportedOperation` if the string is too long or is not valid
    Unicode."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedOperation(f"{what} {text!r}", error.reason) from error
    try:
        return INT16.pack(len(data)) + data
    except struct.error as error:
        raise UnsupportedOperation(what, f"{len(data)} bytes; Kafka's records hold at most 32767") from error


class KafkaFieldReader:
    """Reads the fields of a record one after the other. Every method raises `CorruptData` for invalid bytes."""

    def __init__(self, data: bytes, what: str, *, position: int = 2, flexible: bool = False) -> None:
        self._data = data
        self._what = what
        self._position = position
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
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{field} is not UTF-8: {error.reason}") from error

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
            self._unsigned("a tag"): self._take(self._unsigned("a tag's size"), "a tagged field")
            for _ in range(self._unsigned("the number of tags"))
        }

    def end(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise self.corrupt(f"{left} bytes too many")

    def corrupt(self, why: str) -> CorruptData:
        """Returns an error with the reason ``why`` and the first bytes of the data, for the caller to raise."""
        shown = self._data[:40].hex() + ("..." if len(self._data) > 40 else "")
        return CorruptData(f"{self._what} {shown}", why)

    def _sized(self, length_size: int, field: str) -> bytes | None:
        size = self._unsigned(field) - 1 if self._flexible else self._fixed(length_size, field)
        return None if size == -1 else self._take(size, field)

    def _fixed(self, size: int, field: str) -> int:
        return int.from_bytes(self._take(size, field), "big", signed=True)

    def _unsigned(self, field: str) -> int:
        try:
            number, self._position = decode_varint(self._data, self._position, 5)
        except IndexError:
            raise self.corrupt(f"it ends within {field}") from None
        except ValueError:
            number = _MAX_LENGTH + 1
        if number > _MAX_LENGTH:
            raise self.corrupt(f"{field} does not fit into 31 bits")
        return number

    def _take(self, size: int, field: str) -> bytes:
        if size < 0:
            raise self.corrupt(f"the length of {field} is {size}")
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise self.corrupt(f"it ends within {field}")
        return self._data[start : self._position]
