"""Requests, responses and frames of Kafka's protocol: `Request`, `send_and_read`, and `FrameSplitter`, which splits a
stream of bytes into frames. A frame consists of a length field of four bytes and as many bytes as the length field
states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from offsetmgr.core.errors import InvalidRequest, ServerError, Unreachable
from offsetmgr.kafka.protocol.releases import ApiKey, Versions
from offsetmgr.kafka.protocol.schema_codec import (
    INT32,
    NO_TAGS,
    Cursor,
    Message,
    decode_request,
    encode_request,
    is_known,
    read_response,
    request_is_flexible,
)

# `Channel`, the interface of a broker connection that the codecs use, and the types `Address`, `Request` and
# `EncodedRequest`.


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses ``host:port``, ``[v6]:port`` or ``host`` (port 9092)."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text.strip(), "9092"
        if not port.isdigit():
            raise Unreachable(f"broker {text}", "the port is not a number", "give host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class Request(NamedTuple):
    """A request as a plain dict (see `offsetmgr.kafka.protocol.schema_codec`)."""

    api_key: int
    version: int
    message: Mapping[str, Any]
    read: Callable[[Cursor], dict[str, Any]] | None = None
    """A decoder of the response that is faster than the schema codec and may omit fields; by default the schema
    codec."""


class EncodedRequest(NamedTuple):
    """A request whose body is already encoded. In flexible versions the body begins with the tagged fields of the
    header. Callers encode only OffsetCommit themselves, because bulk edits consist of this request."""

    api_key: int
    version: int
    body: bytes


class Channel(Protocol):
    """A connection to one broker. `offsetmgr.kafka.client.connection.BrokerConnection` is the implementation."""

    @property
    def address(self) -> Address: ...

    @property
    def versions(self) -> Versions:
        """The API versions that the broker supports; empty until they are known."""

    def supports(self, api_key: int, version: int) -> bool:
        """Returns whether the broker supports this version of an API."""

    async def exchange(self, request: EncodedRequest, timeout_s: float) -> bytes:
        """Sends an encoded request and returns the response, including its header (which starts with the correlation
        id).

        Raises `TimedOut` and `Unreachable`.
        """


# A thread that encodes and decodes large messages. During this work the event loop can serve other clients. The
# decoding of a request of some megabytes takes hundreds of milliseconds. If the event loop decoded such a request, it
# would delay all other clients and the renewal of leases. Decoding in a second thread does not stop the event loop,
# because the interpreter switches between the two threads every few milliseconds.

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 32 * 1024
"""Messages above this size are encoded and decoded in the thread. The event loop decodes a message of this size within
10 ms."""

_executor: Final = ThreadPoolExecutor(1, thread_name_prefix="offsetmgr-codec")
# The executor has only one thread, so that the event loop competes for the processor with the decoding of only one
# large message at a time.


def in_codec_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Calls ``function`` in the codec thread and returns a future of its result. ``function`` must not use the event
    loop."""
    return asyncio.wrap_future(_executor.submit(function, *args, **kwargs))


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
        (length,) = INT32.unpack_from(data, position)
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


async def send_in_version(
    connection: Channel, request: Request | EncodedRequest, timeout_s: float, *, use_codec_thread: bool = False
) -> Message:
    """Sends the request in its version and returns the broker's response. ``use_codec_thread``: see
    `BrokerConnection.call`. Raises `TimedOut`, `Unreachable`, `ServerError`."""
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
