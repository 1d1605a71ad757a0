"""Exchanges requests and responses as frames on an open connection to a broker."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from offsetmgr.config.tls_context import own_certificate_text
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    AuthenticationFailed,
    InvalidRequest,
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
)
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.frames import FrameSplitter
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.kafka.protocol.releases import Versions
from offsetmgr.kafka.protocol.request_codec import send_and_read, send_in_version
from offsetmgr.kafka.protocol.schema_codec import Message, encode_response, request_is_flexible

T = TypeVar("T")

_MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
_MIN_FRAME_BYTES: Final = 4
"""The size of a correlation id."""

_MAX_IN_FLIGHT: Final = 200

_LOGIN_REQUESTS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

TIMEOUT_HINT: Final = Advice("check that this is a broker's port; if the broker is only slow, use a longer {timeout}")

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


class _Exchange(NamedTuple):
    """A request that waits for its response."""

    correlation: int
    answer: asyncio.Future[bytes]
    timeout_s: float
    deadline: float
    """A time of the loop's clock."""


class FrameConnection(asyncio.Protocol):
    """The part of `BrokerConnection` that exchanges frames, matches responses to requests, and handles timeouts and the
    end of the connection. It is the protocol of the connection's transport."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self.versions: Versions = {}
        """The API versions of the broker; empty until they are known."""
        self.certificate = ""
        """The PEM text or the file of the client's certificate; empty without one."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameSplitter(_MAX_FRAME_BYTES, _MIN_FRAME_BYTES)
        name = client_id.encode()
        self._client_id = struct.pack(">h", len(name)) + name
        self._correlation = itertools.count(1)
        self._waiting: deque[_Exchange] = deque()
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_check_deadlines` at the earliest deadline, or earlier."""
        self._failure: OffsetMgrError | None = None
        self._answered = False
        self._login_unproven = False
        """Whether the listener may still require a login. This is the case if the client has not logged in and the
        broker has responded only to ApiVersions."""
        self._login_due_at: float | None = None
        """When the client has to log in again, as a time of the loop's clock; None if the broker does not require
        it. From then on, the connection sends only requests of the login until the login has succeeded."""
        self._raw_tokens = False
        """Whether the connection currently exchanges SASL tokens, which have no headers, instead of requests."""

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
        belongs_to_login = isinstance(request, bytes) or request.api_key in _LOGIN_REQUESTS
        while True:
            if not belongs_to_login and self._login_is_due():
                await self._log_in_again(timeout_s)
            async with self._in_flight:
                if self._failure is not None:
                    raise self._failure
                if not belongs_to_login and self._login_is_due():  # it became due during the wait for the semaphore
                    continue
                assert self._transport is not None
                correlation = 0 if isinstance(request, bytes) else next(self._correlation)
                answer: asyncio.Future[bytes] = self._loop.create_future()
                deadline = self._loop.time() + timeout_s
                self._waiting.append(_Exchange(correlation, answer, timeout_s, deadline))
                if self._timer is None or deadline < self._timer.when():
                    self._check_deadlines_at(deadline)
                self._transport.write(self._frame(request, correlation))
                return await answer

    def _login_is_due(self) -> bool:
        return self._login_due_at is not None and self._loop.time() >= self._login_due_at

    async def _log_in_again(self, timeout_s: float) -> None:
        """Re-authenticates (KIP-368). Overridden by connections that log in."""
        raise NotImplementedError

    def _check_deadlines_at(self, time: float | None) -> None:
        """Sets the timer. One timer serves all requests of the connection, because most requests are answered long
        before their deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if time is None else self._loop.call_at(time, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Ends the connection if the deadline of a request has passed."""
        self._timer = None
        waiting = [exchange for exchange in self._waiting if not exchange.answer.done()]
        if not waiting:
            return
        first = min(waiting, key=lambda exchange: exchange.deadline)
        if first.deadline <= self._loop.time():
            self._fail(TimedOut(f"broker {self.address}", f"no answer within {format_seconds(first.timeout_s)} s"))
        else:
            self._check_deadlines_at(first.deadline)

    def _frame(self, request: EncodedRequest | bytes, correlation: int) -> bytes:
        if isinstance(request, bytes):
            return _INT32.pack(len(request)) + request
        head = _HEADER.pack(request.api_key, request.version, correlation) + self._client_id
        return _INT32.pack(len(head) + len(request.body)) + head + request.body

    # --- called by the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._frames.min_bytes = 0 if self._raw_tokens else _MIN_FRAME_BYTES
        self._frames.feed(data)
        try:
            while self._failure is None and (frame := self._frames.next()) is not None:
                self._received(frame[4:])
        except InvalidRequest:
            self._fail(self._not_kafka())

    def eof_received(self) -> bool:
        """Closes the connection when the broker closes its sending side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self._fail(self.rejected_by_tls(exc))
        else:
            self._fail(self._connection_lost() if self._answered else self._not_kafka())

    def _received(self, frame: bytes) -> None:
        correlation = 0 if self._raw_tokens else _INT32.unpack_from(frame)[0]
        # Kafka 0.8.2 sends the correlation id 0 with some failed requests.
        if not self._waiting or correlation not in (self._waiting[0].correlation, 0):
            self._fail(self._not_kafka())
            return
        self._answered, self._login_unproven = True, False
        answer = self._waiting.popleft().answer
        if not answer.done():
            answer.set_result(frame)

    def _connection_lost(self) -> Unreachable:
        hint = Advice(
            "the listener may require a login: set security.protocol in the client properties ({command_config} FILE)"
        )
        return Unreachable(f"broker {self.address}", "the connection broke", hint if self._login_unproven else "")

    def rejected_by_tls(self, error: ssl.SSLError) -> AuthenticationFailed:
        """The error if the broker ends the TLS connection with an alert. With TLS 1.3 the broker checks the client's
        certificate only after the handshake has succeeded for the client."""
        hint = "the listener may require a client certificate: set ssl.keystore.location in the client properties"
        if own := own_certificate_text(self.certificate):
            hint = f"check that the broker trusts the client's certificate, and that it has not expired: {own}"
        return AuthenticationFailed(
            f"broker {self.address}", f"the broker ended the TLS connection ({error.reason})", hint
        )

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
        self._check_deadlines_at(None)
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # Otherwise asyncio would log an error that a cancelled caller does not retrieve.
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection and does not wait. Requests in flight fail with `Unreachable`."""
        self._fail(Unreachable(f"broker {self.address}", "the connection was closed"))

    async def close(self) -> None:
        """Closes the connection. Requests in flight fail with `Unreachable`."""
        self.abort()
        await asyncio.sleep(0)  # The transport closes its socket in the next iteration of the loop.
