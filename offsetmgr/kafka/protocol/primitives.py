"""Numbers, strings, arrays and tags of Kafka's protocol, in both spellings: the classic one and the flexible one of
KIP-482.

For bytes from strangers: a `Cursor` checks every length against what is there before anything is allocated.  kio's own
reader is not for them, since it allocates what an array's length field says and aborts the process where that fails.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import InvalidRequest

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
UINT16: Final = struct.Struct(">H")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")

NO_TAGS: Final = b"\0"

_MOST_ITEMS: Final = 200_000
"""Items of all arrays in one message: small ones take hundreds of times their bytes once they are objects."""
_ITEM_BYTES: Final = 4
"""Bytes that an item of an answer has at least, on average: those of a replica's id. An answer of Metadata for a large
cluster has millions of them."""


@dataclass(slots=True)
class StringDecoding:
    """Limits on what one message may hold; see `DECODING`."""

    tags: int = 64
    """Tagged fields of one structure. Each takes three bytes of a request and a turn of a loop here."""
    string_bytes: int = 32_767
    """Of one string, as long as the classic spelling allows; the flexible one has no limit of its own."""


DECODING: Final = StringDecoding()
"""The limits of this process. `manager serve` sets them at its start."""


class Cursor:
    """A place in a message. Every method raises `InvalidRequest` for what breaks the format."""

    __slots__ = ("at", "data", "flexible", "items_left", "longest")

    def __init__(
        self,
        data: bytes,
        at: int,
        *,
        flexible: bool,
        answer: bool = False,
    ) -> None:
        """``answer``: the message is a broker's answer to a request of ours. Its own size limits its strings and its
        number of items, since the connection limits that size."""
        self.longest = len(data) if answer else DECODING.string_bytes
        self.data = data
        self.at = at
        self.flexible = flexible
        self.items_left = max(_MOST_ITEMS, len(data) // _ITEM_BYTES) if answer else _MOST_ITEMS

    def number(self, form: struct.Struct) -> int:
        """A number of a fixed size."""
        value: int = form.unpack_from(self.data, self.take(form.size))[0]
        return value

    def int32(self) -> int:
        return self.number(INT32)

    def int64(self) -> int:
        return self.number(INT64)

    def float64(self) -> float:
        value: float = FLOAT64.unpack_from(self.data, self.take(8))[0]
        return value

    def boolean(self) -> bool:
        return self.data[self.take(1)] != 0

    def uuid(self) -> uuid.UUID | None:
        """None for the one that is all zeros, which Kafka uses for "none"."""
        at = self.take(16)
        value = uuid.UUID(bytes=self.data[at : self.at])
        return value if value.int else None

    def string(self) -> str:
        """Names must be readable: one that was repaired would be another name."""
        return self._text(self._not_null(self.length()))

    def nullable_string(self) -> str | None:
        length = self.length()
        return None if length < 0 else self._text(length)

    def octets(self) -> bytes:
        at = self.take(self._not_null(self._octets_length()))
        return self.data[at : self.at]

    def nullable_octets(self) -> bytes | None:
        length = self._octets_length()
        if length < 0:
            return None
        at = self.take(length)
        return self.data[at : self.at]

    def length(self) -> int:
        """The length of a string, -1 for null."""
        if self.flexible:
            return self.varint() - 1
        value = self.number(INT16)
        if value < -1:
            raise InvalidRequest("message", f"a string of {value} bytes")
        return value

    def count(self, smallest: int) -> int:
        """The length of an array whose items have at least ``smallest`` bytes."""
        return self._not_null(self.nullable_count(smallest))

    def nullable_count(self, smallest: int) -> int:
        """The same, -1 for null."""
        count = self.varint() - 1 if self.flexible else self.int32()
        if count < -1 or count * smallest > len(self.data) - self.at:
            raise InvalidRequest("message", f"an array of {count} items does not fit in it")
        self.items_left -= count
        if self.items_left < 0:
            raise InvalidRequest("message", "it has too many items")
        return count

    def varint(self) -> int:
        """An unsigned variable-length number of at most 5 bytes."""
        value, self.at = read_varint(self.data, self.at)
        return value

    def tags(self, known: Callable[[int, int], None] | None = None) -> None:
        """Over the tagged fields; nothing where the version is not flexible. ``known`` is called with each tag and
        its size, the cursor standing before the field, and need not move it."""
        if not self.flexible:
            return
        number = self.varint()
        if number > DECODING.tags:
            raise InvalidRequest("message", f"{number} tagged fields in a structure, allowed are {DECODING.tags}")
        for _ in range(number):
            tag = self.varint()
            size = self.varint()
            at = self.take(size)
            if known is not None:
                end, self.at = self.at, at
                known(tag, size)
                self.at = end

    def take(self, size: int) -> int:
        """Moves on by ``size`` bytes; where they begin."""
        at = self.at
        self.at = at + size
        if self.at > len(self.data):
            raise InvalidRequest("message", "it ends too early")
        return at

    def _octets_length(self) -> int:
        length = self.varint() - 1 if self.flexible else self.int32()
        if length < -1:
            raise InvalidRequest("message", f"a field of {length} bytes")
        return length

    def _text(self, length: int) -> str:
        if length > self.longest:
            raise InvalidRequest("message", f"a string of {length} bytes, allowed are {self.longest}")
        at = self.take(length)
        try:
            return self.data[at : self.at].decode()
        except UnicodeDecodeError:
            raise InvalidRequest("message", "a name in it is not UTF-8") from None

    @staticmethod
    def _not_null(length: int) -> int:
        if length < 0:
            raise InvalidRequest("message", "what must not be null is null")
        return length


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned variable-length number of at most 5 bytes, and where it ends. Raises `InvalidRequest`."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise InvalidRequest("message", "a variable-length number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def varint(value: int) -> bytes:
    """An unsigned variable-length number."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str, *, flexible: bool) -> bytes:
    """A string that is not null; what UTF-8 cannot say becomes a question mark."""
    data = text.encode("utf-8", "replace")
    return (varint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def count(number: int, *, flexible: bool) -> bytes:
    """The length of an array."""
    return varint(number + 1) if flexible else INT32.pack(number)
