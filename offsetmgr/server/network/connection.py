"""One client's connection: frames in, responses out, backpressure both ways. `pipeline` orders the requests.

Reading stops while too many requests are unanswered, while the client does not take its responses, and while the
backend applies backpressure, so a client cannot fill more memory than its `ServerLimits`. No request is logged here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.server.network.api import Api, ApiRequest, ServerInfo, ServerPort, Sink
from offsetmgr.server.network.frames import FrameSplitter
from offsetmgr.server.network.pipeline import Pipeline

_MOST_BYTES_HELD: Final = 16 * 1024 * 1024
"""Bytes of waiting or running requests of one connection above which reading stops."""
_SMALL_PART: Final = 64 * 1024
"""Bytes of an incomplete request that are always allowed."""
_SLOWEST_LINE: Final = 16 * 1024
"""Bytes a second."""
_MOST_UNFLUSHED: Final = 128
_MOST_BYTES_UNFLUSHED: Final = 256 * 1024
"""Responses, and their bytes, that one connection sends in one turn of the event loop before other connections get
theirs."""


class ConnectionServer(ServerInfo, Protocol):
    """The part of the server that a connection uses: shared limits, the table of APIs, and counters."""

    held: int
    """Bytes of requests that all connections hold."""

    @property
    def requires_login(self) -> bool: ...

    @property
    def backpressure(self) -> Callable[[], asyncio.Future[None] | None]: ...

    @property
    def held_too_much(self) -> bool:
        """Whether the requests of all connections hold more bytes than the limit."""
        ...

    def route(self, request: ApiRequest) -> Api:
        """Returns the API that answers the request. Raises `InvalidRequest`."""
        ...

    def accept(self, connection: ServerConnection) -> bool:
        """Returns whether the server accepts one more connection."""
        ...

    def dismiss(self, connection: ServerConnection) -> None:
        """Forgets a connection that has ended."""
        ...

    def shed(self, connection: ServerConnection) -> None:
        """Closes a connection because requests hold too much memory."""
        ...

    def refused(self, connection: ServerConnection, error: InvalidRequest) -> None:
        """Counts a connection that is closed because of what the client sent."""
        ...

    def login_failed(self, connection: ServerConnection, mechanism: str) -> None:
        """Counts a failed login."""
        ...

    def answered(self, request: ApiRequest) -> None:
        """Records how long a request took."""
        ...


class ServerConnection(asyncio.Protocol):
    """Created by a `ServerListener` for each client that connects."""

    def __init__(self, service: ConnectionServer, listener: ServerPort) -> None:
        self.service = service
        self.listener = listener
        self.principal: str | None = None
        """The client's principal; None until it has logged in. Without authentication it is ANONYMOUS."""
        self.peer = ""
        """The client's IP address."""
        self.client_software: tuple[str, str] | None = None
        """Name and version, as ApiVersions (3 and later) reports them."""
        self.state: dict[str, Any] = {}
        """State that handlers and the relay keep for this connection, each under its own name."""
        self.on_lost: list[Callable[[], None]] = []
        """Called once, after the connection was closed by either side."""
        self.session_ends: float | None = None
        """The end of the login, by the event loop's clock; None: never."""
        self.opened = 0.0
        self.heard = 0.0
        """The time of the last received bytes, by the event loop's clock."""
        self.stalled: float | None = None
        """Since when the client has not taken its responses; None while it does."""
        self.begun: float | None = None
        """Since when a request has been incomplete; None if none is."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pipeline = Pipeline(self, service.limits.answer_bytes)
        self._frames = FrameSplitter(0)
        self._reading = True
        self._taking = False
        self._bytes = 0
        """Bytes of the requests in the pipeline."""
        self._partial = 0
        """Bytes of an incomplete request."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._unsent_before = 0
        self._taken = 0.0

    # --- called by the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if (connected := transport.get_extra_info("socket")) is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.opened = self.heard = self._loop.time()
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.principal = None if self.service.requires_login else "ANONYMOUS"
        self._set_frame_limit()
        if not self.service.accept(self):
            self.cut()

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self._frames.feed(data)
        self._take_frames()
        if self._partial > _SMALL_PART and not self._bytes and self.service.held_too_much:
            # Nothing on this connection will complete soon, so waiting would not free any memory.
            self.service.shed(self)

    def eof_received(self) -> bool:
        """A client that stops sending gets no more responses either, as at a broker."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended makes no difference
        self._transport = None
        self._hold(-self._bytes)
        self.service.held -= self._partial
        self._partial = 0
        self._out.clear()
        self.service.dismiss(self)
        self._pipeline.lost()
        callbacks, self.on_lost = self.on_lost, []
        for callback in callbacks:
            callback()

    def pause_writing(self) -> None:
        self.stalled = self._loop.time()
        if self._pipeline.stream is not None:
            self._pipeline.stream.pause()

    def resume_writing(self) -> None:
        self.stalled = None
        if self._pipeline.stream is not None:
            self._pipeline.stream.resume()
        self._pipeline.proceed()
        self._take_frames()

    # --- called by the server and by handlers --------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether any request is unanswered or any response unsent."""
        return bool(len(self._pipeline) or self._out or self.unsent)

    @property
    def idle(self) -> bool:
        """Whether no request is unanswered; unsent responses do not count, since a client that is gone takes none."""
        return len(self._pipeline) == 0

    @property
    def may_ask(self) -> bool:
        """Whether the client has logged in and its login is still valid."""
        if self.principal is None:
            return False
        return self.session_ends is None or self._loop.time() < self.session_ends

    @property
    def unsent(self) -> int:
        """Bytes of responses that the client has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def part_seconds(self) -> float:
        """Time that a slow line may have needed for the received part of a request."""
        return self._partial / _SLOWEST_LINE

    def taken(self, now: float) -> float:
        """When the client last took any bytes, according to occasional checks."""
        unsent = self.unsent
        if unsent < self._unsent_before:
            self._taken = now
        self._unsent_before = unsent
        return self._taken

    def logged_in(self, principal: str, session_seconds: float | None = None) -> None:
        """Called by the SASL handlers, also after every re-authentication, which is due before ``session_seconds`` are
        over."""
        self.principal = principal
        self.session_ends = self._loop.time() + session_seconds if session_seconds else None
        self._set_frame_limit()

    def login_failed(self, mechanism: str) -> None:
        """``mechanism`` is one of ours, or the reason why none applied; never text from the client."""
        self.service.login_failed(self, mechanism)

    def cut(self) -> None:
        """Closes the connection at once, even with requests in progress."""
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """Closes the connection after the queued responses have been sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def refuse(self, error: InvalidRequest) -> None:
        """The client has violated the protocol: closes its connection."""
        self.service.refused(self, error)
        self.cut()

    # --- incoming requests ---------------------------------------------------------------------------

    def _set_frame_limit(self) -> None:
        limits = self.service.limits
        self._frames.limit = limits.unauthenticated_bytes if self.principal is None else limits.request_bytes

    def _take_frames(self) -> None:
        """Passes on the received requests, as many as are allowed now."""
        if self._taking:
            return  # a response freed capacity while the loop below was running; that loop continues by itself
        self._taking = True
        try:
            while not self._full() and not self._out_full() and (frame := self._frames.next()) is not None:
                self.begun = None
                request = ApiRequest(self, frame)
                if request.api_key == ApiKey.API_VERSIONS and len(frame) > self.service.limits.api_versions_bytes:
                    raise InvalidRequest("ApiVersions", f"a request of {len(frame)} bytes")
                request.since = self.heard
                request.api = self.service.route(request)
                self._hold(len(frame))
                self._pipeline.arrived(request, request.api)
        except InvalidRequest as error:
            self.refuse(error)
        finally:
            self._taking = False
        if self._transport is not None and not self._transport.is_closing():
            self._adjust(self._transport)

    def _adjust(self, transport: asyncio.Transport) -> None:
        """Stops or resumes reading, and records since when a request is incomplete."""
        full = self._full()
        if full == self._reading:
            self._reading = not full
            (transport.pause_reading if full else transport.resume_reading)()
        partial = self._frames.held
        self.service.held += partial - self._partial
        self._partial = partial
        if not partial or full:
            self.begun = None
        elif self.begun is None:
            self.begun = self.heard

    def _full(self) -> bool:
        return (
            self._pipeline.stopped_by_backend
            or self._pipeline.answers_full
            or self.stalled is not None
            or self.closed
            or len(self._pipeline) >= self.service.limits.in_flight
            or self._bytes >= _MOST_BYTES_HELD
            or (self._bytes > 0 and self.service.held_too_much)
        )

    def _hold(self, size: int) -> None:
        self._bytes += size
        self.service.held += size

    # --- called by the pipeline ----------------------------------------------------------------------

    def backpressure(self) -> asyncio.Future[None] | None:
        return self.service.backpressure()

    def answered(self, request: ApiRequest) -> None:
        self._hold(-len(request.frame))
        self.service.answered(request)

    def moved(self) -> None:
        if not self._reading:
            self._take_frames()

    # --- outgoing responses --------------------------------------------------------------------------

    @property
    def sink(self) -> Sink:
        return _StreamSink(self, self._pipeline)

    def put(self, response: bytes) -> None:
        """Collects the responses of one turn of the event loop: one system call instead of many."""
        self._out.append(response)
        self._out_bytes += len(response)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_turn)

    def flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out:
            self.write(out[0] if len(out) == 1 else b"".join(out))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Only for flushed responses and streams."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _out_full(self) -> bool:
        return len(self._out) >= _MOST_UNFLUSHED or self._out_bytes >= _MOST_BYTES_UNFLUSHED

    def _flush_turn(self) -> None:
        self._flushing = False
        full = self._out_full()
        self.flush()
        if full:
            self._take_frames()


class _StreamSink:
    """See `dispatch.Sink`."""

    __slots__ = ("_connection", "_pipeline")

    def __init__(self, connection: ServerConnection, pipeline: Pipeline) -> None:
        self._connection: ServerConnection | None = connection
        self._pipeline = pipeline

    @property
    def full(self) -> bool:
        return self._connection is not None and self._connection.stalled is not None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._connection is not None:
            self._connection.write(data)

    def end(self) -> None:
        if self._connection is not None:
            self._connection = None
            self._pipeline.stream_ended()

    def break_off(self) -> None:
        if self._connection is not None:
            self._connection.cut()
