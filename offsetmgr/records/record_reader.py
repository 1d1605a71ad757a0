"""`RecordReader`: the part that the readers of both record formats share."""

from __future__ import annotations

from offsetmgr.core.errors import CorruptData, UnsupportedOperation
from offsetmgr.core.varint import decode_varint


class RecordReader:
    """Reads the fields of a record one after the other. Every method raises `CorruptData` for invalid bytes."""

    def __init__(self, data: bytes, what: str, position: int = 2) -> None:
        self._data = data
        self._what = what
        self.position = position

    def end(self) -> None:
        left = len(self._data) - self.position
        if left:
            raise self.corrupt(f"{left} bytes too many")

    def corrupt(self, why: str) -> CorruptData:
        """Returns an error with the reason ``why`` and the first bytes of the data, for the caller to raise."""
        shown = self._data[:40].hex() + ("..." if len(self._data) > 40 else "")
        return CorruptData(f"{self._what} {shown}", why)

    def take(self, size: int, field: str) -> bytes:
        if size < 0:
            raise self.corrupt(f"the length of {field} is {size}")
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise self.corrupt(f"it ends within {field}")
        return self._data[start : self.position]

    def text(self, data: bytes, field: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{field} is not UTF-8: {error.reason}") from error

    def unsigned(self, field: str, bits: int, max_bytes: int) -> int:
        """Reads a varint."""
        try:
            number, self.position = decode_varint(self._data, self.position, max_bytes)
        except IndexError:
            raise self.corrupt(f"it ends within {field}") from None
        except ValueError:
            number = 1 << bits
        if number >= 1 << bits:
            raise self.corrupt(f"{field} does not fit into {bits} bits")
        return number


def utf8(text: str, what: str) -> bytes:
    """Encodes a text. Raises `UnsupportedOperation` for an unpaired surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedOperation(f"{what} {text!r}", error.reason) from error
