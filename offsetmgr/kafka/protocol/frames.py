"""`FrameSplitter`: splits a stream of bytes into frames. A frame consists of a length field of four bytes and as many
bytes as the length field states."""

from __future__ import annotations

import struct
from typing import Final

from offsetmgr.core.errors import InvalidRequest

_INT32: Final = struct.Struct(">i")
_MIN_REQUEST_BYTES: Final = 8
"""Size of the shortest request header: API key, version, correlation id."""


class FrameSplitter:
    """Takes bytes with `feed` and returns whole frames with `next`.

    The splitter allocates memory only for bytes that it has received, not for the length that a frame announces. A
    frame that arrives in many pieces is joined once, when it is complete.
    """

    __slots__ = ("_data", "_gathered_bytes", "_missing", "_parts", "_position", "limit", "min_bytes")

    def __init__(self, limit: int, min_bytes: int = _MIN_REQUEST_BYTES) -> None:
        self.limit = limit
        """Maximum size of a frame, without its length field."""
        self.min_bytes = min_bytes
        """Minimum size of a frame, without its length field."""
        self._data = b""
        self._position = 0
        self._parts: list[bytes] = []
        self._gathered_bytes = 0
        self._missing = 0

    @property
    def held_bytes(self) -> int:
        """Number of bytes that were fed and not yet returned."""
        return self._gathered_bytes + len(self._data) - self._position

    def feed(self, data: bytes) -> None:
        if self._missing > len(data):
            self._parts.append(data)
            self._gathered_bytes += len(data)
            self._missing -= len(data)
        elif self._missing:
            self._parts.append(data)
            self._data, self._position = b"".join(self._parts), 0
            self._parts, self._gathered_bytes, self._missing = [], 0, 0
        elif self._position < len(self._data):
            self._data, self._position = self._data[self._position :] + data, 0
        else:
            self._data, self._position = data, 0

    def next(self) -> bytes | None:
        """Returns the next frame with its length field; None if no complete frame has arrived.

        Raises `InvalidRequest` if the length field is less than the minimum or exceeds the limit.
        """
        data, position = self._data, self._position
        available = len(data) - position
        if available < 4:
            return None
        (length,) = _INT32.unpack_from(data, position)
        if not self.min_bytes <= length <= self.limit:
            raise InvalidRequest(
                "frame", f"its length field is {length} bytes, but must be from {self.min_bytes} to {self.limit}"
            )
        size = 4 + length
        if available < size:
            self._parts, self._gathered_bytes, self._missing = [data[position:]], available, size - available
            self._data, self._position = b"", 0
            return None
        self._position = position + size
        frame = data[position : self._position]
        if available == size:
            self._data, self._position = b"", 0
        return frame
