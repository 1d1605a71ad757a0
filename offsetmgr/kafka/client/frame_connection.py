"""Exchanges requests and responses as frames on an open connection to a broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from offsetmgr.core.errors import (
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
)
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.kafka.protocol.releases import Versions
from offsetmgr.kafka.protocol.request_codec import send_and_read, send_in_version
from offsetmgr.kafka.protocol.schema_codec import Message, encode_response, request_is_flexible

T = TypeVar("T")

_MAX_FRAME_BYTES: Final = 256 * 1024 * 1024

_MAX_IN_FLIGHT: Final = 200

TIMEOUT_HINT: Final = "check that this is a broker's port; if the broker is only slow, use a longer --timeout"

_HEADER: Final = struct.Struct(">hhi")

_INT32: Final = struct.Struct(">i")


class ConnectionClosedByBroker(Exception):
    """The broker closed the connection. The caller retries on another connection, because a closed connection is not
    always a failure."""

    def __init__(self, versions: Versions | None = None) -> None:
        super().__init__()
        self.versions = versions
        """The API versions of the broker if they are known; None if the next connection has to send ApiVersions."""


def format_seconds(seconds: float) -> str:
    """Rounds a duration for messages, so that 2.999 becomes 3."""
    return f"{round(seconds, 1 if seconds >= 1 else 3):g}"


class FrameConnection:
    """The part of `BrokerConnection` that exchanges frames, matches responses to requests, and handles timeouts and the
    end of the connection."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self.address = address
        self.versions: Versions = {}
        """The API versions of the broker; empty until they are known."""
        self._reader = reader
        self._writer = writer
        name = client_id.encode()
        self._client_id = struct.pack(">h", len(name)) + name
        self._correlation = itertools.count(1)
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._failure: OffsetMgrError | None = None
        self._answered = False
        self._login_unproven = False
        """Whether the listener may still require a login. This is the case if the client has not logged in and the
        broker has responded only to ApiVersions."""
        self._raw_tokens = False
        """Whether the connection currently exchanges SASL tokens, which have no headers, instead of requests."""
        self._receiver = asyncio.create_task(self._receive())

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def call(
        self, request: Request | EncodedRequest, timeout_s: float, *, use_codec_thread: bool = False
    ) -> Message:
        """Sends a request and waits for its response, at most ``timeout_s`` seconds. If the broker does not support the
        version of the request, `old_versions` translates the request to a version that the broker supports. In this
        case, fields that the older version lacks may be missing in the response.

        If ``use_codec_thread`` is True, the codec thread decodes a large response, so that the event loop can do other
        work meanwhile. Decoding in the codec thread takes longer than decoding on the event loop.

        Raises `TimedOut`, `Unreachable` (the connection broke), `ServerError` (the response is not valid).
        """
        if self.supports(request.api_key, request.version):
            return await send_in_version(self, request, timeout_s, use_codec_thread=use_codec_thread)
        return await self._call_translated(request, timeout_s)

    async def call_and_read(self, request: Request, timeout_s: float, read: Callable[[Cursor], T]) -> T:
        """Like `call`, but ``read`` decodes the response. For responses that are so large that they need their own
        codec."""
        if self.supports(request.api_key, request.version):
            return await send_and_read(self, request, timeout_s, read)
        answer = await self._call_translated(request, timeout_s)
        body = encode_response(request.api_key, request.version, answer)
        return read(Cursor(body, 0, flexible=request_is_flexible(request.api_key, request.version), is_response=True))

    async def _call_translated(self, request: Request | EncodedRequest, timeout_s: float) -> Message:
        from offsetmgr.kafka.protocol.old_versions import send_translated  # Most brokers need no translation.

        return await send_translated(self, request, timeout_s)

    def supports(self, api_key: int, version: int) -> bool:
        """Returns whether the broker supports this version of an API. Returns True while the versions are unknown."""
        low, high = self.versions.get(api_key, (0, -1))
        return low <= version <= high or not self.versions

    async def call_raw(self, request: EncodedRequest, timeout_s: float) -> bytes:
        """Sends an encoded request and returns the response without its correlation id."""
        return (await self._exchange(request, timeout_s))[4:]

    async def exchange(self, request: EncodedRequest, timeout_s: float) -> bytes:
        """Sends an encoded request and returns the whole response, which starts with the correlation id.

        Raises `TimedOut`, `Unreachable` (the connection broke).
        """
        return await self._exchange(request, timeout_s)

    async def _exchange(self, request: EncodedRequest | bytes, timeout_s: float) -> bytes:
        """Sends a request and returns the response. If ``request`` is a bytes object, it is a SASL token. A SASL token
        and the response to it have no header."""
        async with self._in_flight:
            if self._failure is not None:
                raise self._failure
            correlation = 0 if isinstance(request, bytes) else next(self._correlation)
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting.append((correlation, answer))
            self._writer.write(self._frame(request, correlation))
            try:
                async with asyncio.timeout(timeout_s):
                    return await answer
            except TimeoutError:
                error = TimedOut(f"broker {self.address}", f"no answer within {format_seconds(timeout_s)} s")
                self._fail(error)
                raise error from None

    def _frame(self, request: EncodedRequest | bytes, correlation: int) -> bytes:
        if isinstance(request, bytes):
            return _INT32.pack(len(request)) + request
        head = _HEADER.pack(request.api_key, request.version, correlation) + self._client_id
        return _INT32.pack(len(head) + len(request.body)) + head + request.body

    async def _receive(self) -> None:
        try:
            while True:
                (length,) = _INT32.unpack(await self._reader.readexactly(4))
                if not (0 if self._raw_tokens else 4) <= length <= _MAX_FRAME_BYTES:
                    raise self._not_kafka()
                frame = await self._reader.readexactly(length)
                correlation = 0 if self._raw_tokens else _INT32.unpack_from(frame)[0]
                # Kafka 0.8.2 sends the correlation id 0 with some failed requests.
                if not self._waiting or correlation not in (self._waiting[0][0], 0):
                    raise self._not_kafka()
                self._answered, self._login_unproven = True, False
                _, answer = self._waiting.popleft()
                if not answer.done():
                    answer.set_result(frame)
        except OffsetMgrError as error:
            self._fail(error)
        except (OSError, asyncio.IncompleteReadError):
            self._fail(self._connection_lost() if self._answered else self._not_kafka())

    def _connection_lost(self) -> Unreachable:
        hint = (
            "the listener may require a login: set security.protocol in the client properties (--command-config FILE)"
        )
        return Unreachable(f"broker {self.address}", "the connection broke", hint if self._login_unproven else "")

    def _not_kafka(self) -> ServerError:
        return ServerError(
            f"broker {self.address}",
            "the server at this address does not respond like a Kafka broker",
            "check the port, and security.protocol (a TLS listener closes plain-text connections)",
        )

    def _fail(self, error: OffsetMgrError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # Otherwise asyncio would log an error that a cancelled caller does not retrieve.
        self._writer.close()
        self._receiver.cancel()

    def abort(self) -> None:
        """Closes the connection and does not wait. Requests in flight fail with `Unreachable`."""
        self._fail(Unreachable(f"broker {self.address}", "the connection was closed"))

    async def close(self) -> None:
        """Closes the connection. Requests in flight fail with `Unreachable`."""
        self.abort()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._receiver
