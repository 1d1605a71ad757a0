"""Reads and writes the primitive types of Kafka's protocol, in the classic and the flexible encoding (KIP-482).

The reader is safe for data from untrusted clients, because a `Cursor` checks every length against the size of the
message before it allocates memory. (kio's reader allocates memory for the length that an array claims to have, and
aborts the process if the allocation fails.)
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.core.varint import decode_varint, encode_varint

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
UINT16: Final = struct.Struct(">H")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")

NO_TAGS: Final = b"\0"

_VARINT_BYTES: Final = 5
"""The maximum size of a variable-length number, which has 32 bits."""

_MAX_ITEMS: Final = 200_000
"""The maximum number of array items in one message. A small item takes hundreds of times more memory as a Python object
than in its encoding, so a small message could use up the memory if there were no limit."""
_MIN_ITEM_BYTES: Final = 4
"""The assumed minimum size of an array item in a response. A replica id has this size, and a Metadata response of a
large cluster contains millions of replica ids."""


@dataclass(slots=True)
class DecodingLimits:
    """Limits for decoding one message."""

    tags: int = 64
    """The maximum number of tagged fields in one structure. The limit exists because a tagged field can be as small as
    three bytes, and the reader needs one iteration for each tagged field."""
    string_bytes: int = 32_767
    """The maximum size of a string. The default is the limit of the classic encoding; the flexible encoding has no
    limit of its own."""


DECODING: Final = DecodingLimits()
"""The limits of this process. `manager serve` sets them at its start."""


class Cursor:
    """Reads a message from a position onwards. Every method raises `InvalidRequest` for invalid bytes."""

    __slots__ = ("at", "data", "flexible", "items_left", "max_string_bytes")

    def __init__(
        self,
        data: bytes,
        at: int,
        *,
        flexible: bool,
        is_response: bool = False,
    ) -> None:
        """If ``is_response`` is True, the message is a broker's response. In this case the limits for strings and array
        items depend on the size of the message, because the connection already limits the size of a response."""
        self.max_string_bytes = len(data) if is_response else DECODING.string_bytes
        self.data = data
        self.at = at
        self.flexible = flexible
        self.items_left = max(_MAX_ITEMS, len(data) // _MIN_ITEM_BYTES) if is_response else _MAX_ITEMS

    def number(self, form: struct.Struct) -> int:
        """Reads a number of a fixed size."""
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
        """Reads a UUID. Returns None for the zero UUID, with which Kafka expresses "none"."""
        at = self.take(16)
        value = uuid.UUID(bytes=self.data[at : self.at])
        return value if value.int else None

    def string(self) -> str:
        """Reads a string. The string must be valid UTF-8. If invalid bytes were replaced, the result would be a
        different name."""
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
        """Reads the length of a string. Returns -1 for null."""
        if self.flexible:
            return self.varint() - 1
        value = self.number(INT16)
        if value < -1:
            raise InvalidRequest("message", f"a string of {value} bytes")
        return value

    def count(self, min_item_bytes: int) -> int:
        """Reads the length of an array whose items have at least ``min_item_bytes``."""
        return self._not_null(self.nullable_count(min_item_bytes))

    def nullable_count(self, min_item_bytes: int) -> int:
        """Reads the length of an array whose items have at least ``min_item_bytes``. Returns -1 for null."""
        if self.flexible:
            count = self.varint() - 1
        else:
            (count,) = INT32.unpack_from(self.data, self.take(4))
        if count < -1 or count * min_item_bytes > len(self.data) - self.at:
            raise InvalidRequest("message", f"an array of {count} items does not fit in it")
        self.items_left -= count
        if self.items_left < 0:
            raise InvalidRequest("message", "it has too many items")
        return count

    def varint(self) -> int:
        """Reads an unsigned varint of at most 5 bytes."""
        at = self.at
        if at < len(self.data) and (byte := self.data[at]) < 0x80:  # most varints are lengths below 128
            self.at = at + 1
            return byte
        value, self.at = read_varint(self.data, at)
        return value

    def tags(self, known: Callable[[int, int], None] | None = None) -> None:
        """Skips the tagged fields of a structure. Does nothing if the version is not flexible.

        For each field, the method moves the cursor to the start of the field's value and calls ``known`` with the tag
        and the size of the field. ``known`` may read the value.
        """
        if not self.flexible or (number := self.varint()) == 0:
            return
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
        """Moves the position by ``size`` bytes and returns the old position."""
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
        if length > self.max_string_bytes:
            raise InvalidRequest("message", f"a string of {length} bytes, allowed are {self.max_string_bytes}")
        at = self.take(length)
        try:
            return self.data[at : self.at].decode()
        except UnicodeDecodeError:
            raise InvalidRequest("message", "a name in it is not UTF-8") from None

    @staticmethod
    def _not_null(length: int) -> int:
        if length < 0:
            raise InvalidRequest("message", "a non-nullable field is null")
        return length


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes an unsigned varint of at most 5 bytes. Returns it and the position after it. Raises `InvalidRequest`."""
    try:
        return decode_varint(data, at, _VARINT_BYTES)
    except (IndexError, ValueError):
        raise InvalidRequest("message", "a variable-length number does not end") from None


def string(text: str, *, flexible: bool) -> bytes:
    """Encodes a string of a response. Characters that UTF-8 cannot encode are replaced by question marks."""
    return _with_length(text.encode("utf-8", "replace"), flexible)


def request_string(text: str, *, flexible: bool) -> bytes:
    """Encodes a string of a request. Raises UnicodeEncodeError for characters that UTF-8 cannot encode. If they were
    replaced, the request would name a different group or topic."""
    return _with_length(text.encode(), flexible)


def _with_length(data: bytes, flexible: bool) -> bytes:
    return (encode_varint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def count(number: int, *, flexible: bool) -> bytes:
    """Encodes the length of an array."""
    return encode_varint(number + 1) if flexible else INT32.pack(number)
