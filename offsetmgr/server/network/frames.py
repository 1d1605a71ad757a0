"""Splits a stream of bytes into frames: a length of four bytes, then as many bytes."""

from __future__ import annotations

import struct
from typing import Final

from offsetmgr.core.errors import InvalidRequest

_INT32: Final = struct.Struct(">i")
_SHORTEST: Final = 8
"""Bytes of the shortest header: API key, version, correlation id."""


class FrameSplitter:
    """Takes bytes with `feed` and returns whole frames with `next`.

    Holds only the bytes that were fed; a frame that arrived in many pieces is joined once, at its end.
    """

    __slots__ = ("_at", "_data", "_gathered", "_missing", "_parts", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Maximum size of a frame, without its length field."""
        self._data = b""
        self._at = 0
        self._parts: list[bytes] = []
        self._gathered = 0
        self._missing = 0

    @property
    def held(self) -> int:
        """Bytes that were fed and not returned yet."""
        return self._gathered + len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        if self._missing > len(data):
            self._parts.append(data)
            self._gathered += len(data)
            self._missing -= len(data)
        elif self._missing:
            self._parts.append(data)
            self._data, self._at = b"".join(self._parts), 0
            self._parts, self._gathered, self._missing = [], 0, 0
        elif self._at < len(self._data):
            self._data, self._at = self._data[self._at :] + data, 0
        else:
            self._data, self._at = data, 0

    def next(self) -> bytes | None:
        """The next frame, with its length field in front; None if it is incomplete.

        Raises `InvalidRequest` for a length that is too small for a request, or over the limit.
        """
        data, at = self._data, self._at
        there = len(data) - at
        if there < 4:
            return None
        (length,) = _INT32.unpack_from(data, at)
        if not _SHORTEST <= length <= self.limit:
            raise InvalidRequest("request", f"its length field says {length} bytes, allowed are 8 to {self.limit}")
        size = 4 + length
        if there < size:
            self._parts, self._gathered, self._missing = [data[at:]], there, size - there
            self._data, self._at = b"", 0
            return None
        self._at = at + size
        frame = data[at : self._at]
        if there == size:
            self._data, self._at = b"", 0
        return frame
