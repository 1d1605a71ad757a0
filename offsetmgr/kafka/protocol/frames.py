"""`FrameSplitter`: splits a stream of bytes into frames. A frame consists of a length field of four bytes and as many
bytes as the length field states."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from offsetmgr.core.errors import InvalidRequest, ServerError
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Channel, EncodedRequest, Request
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.primitives import NO_TAGS, Cursor
from offsetmgr.kafka.protocol.schema_codec import (
    Message,
    decode_request,
    encode_request,
    is_known,
    read_response,
    request_is_flexible,
)

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


# Sends a request in a version that the broker supports, and decodes the response.

T = TypeVar("T")


async def send_in_version(
    connection: Channel, request: Request | EncodedRequest, timeout_s: float, *, use_codec_thread: bool = False
) -> Message:
    """Sends the request in its version and returns the broker's response. ``use_codec_thread``: see
    `FrameConnection.call`. Raises `TimedOut`, `Unreachable`, `ServerError`."""
    own = request.read if isinstance(request, Request) else None
    read = own or partial(read_response, request.api_key, request.version)
    return await send_and_read(connection, request, timeout_s, read, use_codec_thread=use_codec_thread)


async def send_and_read(
    connection: Channel,
    request: Request | EncodedRequest,
    timeout_s: float,
    read: Callable[[Cursor], T],
    *,
    use_codec_thread: bool = False,
) -> T:
    """Like `send_in_version`, but ``read`` decodes the response."""
    api_key, version = request.api_key, request.version
    flexible = is_known(api_key, version) and request_is_flexible(api_key, version)  # kio lacks only old versions
    frame = await connection.exchange(_encoded(request, flexible), timeout_s)
    # The correlation id, and an empty set of tagged fields if the header is flexible.
    start = 5 if flexible and api_key != ApiKey.API_VERSIONS else 4
    cursor = Cursor(frame, start, flexible=flexible, is_response=True)
    try:
        if use_codec_thread and len(frame) > LARGE_BYTES:
            return await in_codec_thread(read, cursor)
        return read(cursor)
    except InvalidRequest as error:
        raise ServerError(f"broker {connection.address}", f"its response is not valid: {error.why}") from error


def _encoded(request: Request | EncodedRequest, flexible: bool) -> EncodedRequest:
    if isinstance(request, EncodedRequest):
        return request
    body = encode_request(request.api_key, request.version, request.message)
    return EncodedRequest(request.api_key, request.version, NO_TAGS + body if flexible else body)


def decoded(request: Request | EncodedRequest) -> Request:
    """Returns the request as a plain dict."""
    if isinstance(request, Request):
        return request
    start = 1 if request_is_flexible(request.api_key, request.version) else 0
    return Request(
        request.api_key, request.version, decode_request(request.api_key, request.version, request.body, start)
    )
