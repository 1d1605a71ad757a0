"""One client's connection: frames in, requests started in their lanes, answers out in order, pressure both ways.

See `dispatch` for the order of requests and the kinds of answers.  Reading stops while too many requests are
unanswered, while the client does not take its answers, and while the backend has no room; so a client can fill no
more memory than `Limits` allow it.

No request is logged here, and a request that has begun is not cancelled when its client goes away.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from offsetmgr.errors import InvalidRequest
from offsetmgr.server.dispatch import Answer, Api, Frame, HangUp, Lane, Last, Later, Outcome, Request, Stream
from offsetmgr.server.frames import FrameSplitter

if TYPE_CHECKING:
    from offsetmgr.server.service import Listener, Service

_log = logging.getLogger(__name__)

_RESPONSE: Final = struct.Struct(">ii")
_RESPONSE_TAGGED: Final = struct.Struct(">iib")
_API_VERSIONS: Final = 18
_MOST_BYTES_HELD: Final = 16 * 1024 * 1024
"""Bytes of requests that one connection may have waiting or under way before reading stops."""


class Connection(asyncio.Protocol):
    """Made by a `Listener` for each client that connects."""

    def __init__(self, service: Service, listener: Listener) -> None:
        self.service = service
        self.listener = listener
        self.principal: str | None = None
        """Who the client is; None until it has logged in. Without authentication everybody is ANONYMOUS."""
        self.peer = ""
        """The client's IP address."""
        self.client_software: tuple[str, str] | None = None
        """Name and version, as ApiVersions (3 and later) tells them."""
        self.state: dict[str, Any] = {}
        """What handlers and the relay keep of this connection; each under a name of its own."""
        self.on_lost: list[Callable[[], None]] = []
        """Called once, after the client has gone or was cut off."""
        self.session_ends: float | None = None
        """When the login ends, by the event loop's clock; None: never."""
        self.heard = 0.0
        """When bytes last came, by the event loop's clock."""
        self.opened = 0.0
        self.stalled: float | None = None
        """Since when the client has not taken its answers; None while it does."""
        self.begun: float | None = None
        """Since when a request has been incomplete; None while none is."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameSplitter(0)
        self._under_way: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._bytes = 0
        self._lane = Lane.ALONE
        self._out: list[bytes] = []
        self._stream: Stream | None = None
        self._flushing = False
        self._advancing = False
        self._reading = True
        self._no_room = False
        self._results: set[asyncio.Future[Any]] = set()

    # --- the transport's calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.opened = self.heard = self._loop.time()
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.principal = None if self.service.requires_login else "ANONYMOUS"
        self._set_frame_limit()
        if not self.service.admit(self):
            self.cut()

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self._frames.feed(data)
        self._take_frames()

    def eof_received(self) -> bool:
        """A client that stops sending gets no more answers either, as from a broker."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended makes no difference
        self._transport = None
        streams = [request.answer for request in self._under_way if request.answered]
        self._waiting.clear()
        self._under_way.clear()
        self._out.clear()
        self._stream = None
        self.service.dismiss(self)
        for answer in streams:
            if answer is not None and not isinstance(answer, bytes | HangUp):
                answer.lost()
        callbacks, self.on_lost = self.on_lost, []
        for callback in callbacks:
            callback()

    def pause_writing(self) -> None:
        self.stalled = self._loop.time()
        if self._stream is not None:
            self._stream.pause()

    def resume_writing(self) -> None:
        self.stalled = None
        if self._stream is not None:
            self._stream.resume()
        self._take_frames()

    # --- what the service asks ----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether any request is unanswered or any answer unsent."""
        return bool(self._under_way or self._waiting or self._out or self.unsent)

    @property
    def may_ask(self) -> bool:
        """Whether the client has logged in, and its login has not ended."""
        if self.principal is None:
            return False
        return self.session_ends is None or self._loop.time() < self.session_ends

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def tls(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def logged_in(self, principal: str, session_seconds: float | None = None) -> None:
        """Called by the SASL handlers; again at every re-authentication, due before ``session_seconds`` are over."""
        self.principal = principal
        self.session_ends = self._loop.time() + session_seconds if session_seconds else None
        self._set_frame_limit()

    def cut(self) -> None:
        """Closes the connection at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """Closes the connection once the answers written so far have gone out."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # --- requests in --------------------------------------------------------------------------------

    def _set_frame_limit(self) -> None:
        limits = self.service.limits
        self._frames.limit = limits.unauthenticated_bytes if self.principal is None else limits.request_bytes

    def _take_frames(self) -> None:
        """Starts or queues the requests that have come, as many as may be taken now."""
        try:
            while not self._full() and (frame := self._frames.next()) is not None:
                self._arrived(Request(self, frame))
        except InvalidRequest as error:
            self._refuse(error)
        if self._transport is None:
            return
        full = self._full()
        if full == self._reading and not self._transport.is_closing():
            self._reading = not full
            (self._transport.pause_reading if full else self._transport.resume_reading)()
        if not self._frames.unfinished or full:
            self.begun = None
        elif self.begun is None:
            self.begun = self.heard

    def _full(self) -> bool:
        return (
            self._no_room
            or self.stalled is not None
            or self._transport is None
            or self._transport.is_closing()
            or len(self._under_way) + len(self._waiting) >= self.service.limits.in_flight
            or self._bytes >= _MOST_BYTES_HELD
        )

    def _arrived(self, request: Request) -> None:
        request.since = self.heard
        request.api = self.service.route(request)
        self._bytes += len(request.frame)
        if self._waiting or not self._may_start(request.api.lane):
            self._waiting.append(request)
        else:
            self._start(request, request.api)

    def _may_start(self, lane: Lane) -> bool:
        return not self._under_way or (lane is self._lane and lane is not Lane.ALONE)

    def _start(self, request: Request, api: Api) -> None:
        self._lane = api.lane
        self._under_way.append(request)
        try:
            outcome = api.handle(request)
        except InvalidRequest as error:
            self._refuse(error)
        except Exception:
            self._defect(request)
        else:
            self._take_outcome(request, outcome)
        if api.lane is Lane.COMMITS and (room := self.service.room()) is not None:
            self._no_room = True
            room.add_done_callback(self._room_again)

    def _room_again(self, _room: asyncio.Future[None]) -> None:
        self._no_room = False
        self._take_frames()

    # --- answers out --------------------------------------------------------------------------------

    def _take_outcome(self, request: Request, outcome: Outcome) -> None:
        then: Callable[[Any], Answer] = _as_it_is
        otherwise: Any = None
        if isinstance(outcome, Later):
            outcome, then, otherwise = outcome
        elif outcome is None or isinstance(outcome, bytes | HangUp) or hasattr(outcome, "begin"):
            self._answer(request, cast(Answer, outcome))
            return
        future: asyncio.Future[Any] = asyncio.ensure_future(cast(Awaitable[Any], outcome))
        if future.done():
            self._take_result(request, future, then, otherwise)
        else:
            self._results.add(future)  # the event loop itself holds tasks only weakly
            future.add_done_callback(lambda done: self._take_result(request, done, then, otherwise))

    def _take_result(
        self, request: Request, future: asyncio.Future[Any], then: Callable[[Any], Answer], otherwise: Any
    ) -> None:
        self._results.discard(future)
        if self._transport is None:
            _drop(future)
            return
        try:
            answer = then(future.result())
        except InvalidRequest as error:
            self._refuse(error)
        except asyncio.CancelledError:
            self.cut()
        except Exception:
            if otherwise is None:
                self._defect(request)
            else:
                _log.exception("%s failed: a defect; it is answered with an error", _name(request))
                self._answer(request, then(otherwise))
        else:
            self._answer(request, answer)

    def _answer(self, request: Request, answer: Answer) -> None:
        request.answer = answer
        request.answered = True
        if self._under_way and self._under_way[0] is request:
            self._advance()

    def _advance(self) -> None:
        """Sends the answers that are next in order, and starts the requests that waited for them."""
        if self._advancing:
            return  # a request that was started below answered at once: the loop below goes on with it
        self._advancing = True
        try:
            while self._send_next() or self._start_next():
                pass
        finally:
            self._advancing = False
        if not self._reading:
            self._take_frames()

    def _send_next(self) -> bool:
        if not self._under_way or not self._under_way[0].answered or self._stream is not None:
            return False
        request = self._under_way[0]
        answer = request.answer
        if isinstance(answer, Frame):
            self._out.append(answer)
        elif isinstance(answer, bytes):
            self._out.append(_response(request, answer) + answer)
            if isinstance(answer, Last):
                self.hang_up()
        elif isinstance(answer, HangUp):
            self.hang_up()
        elif answer is not None:
            self._flush()
            self._stream = answer
            answer.begin(_StreamSink(self))
            return self._stream is None
        self._sent()
        if not self._flushing and self._out:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return True

    def _sent(self) -> None:
        request = self._under_way.popleft()
        self._bytes -= len(request.frame)
        self.service.answered(request)

    def _start_next(self) -> bool:
        if not self._waiting:
            return False
        api = self._waiting[0].api
        if api is None or not self._may_start(api.lane):
            return False
        self._start(self._waiting.popleft(), api)
        return True

    def _flush(self) -> None:
        """Sends the answers of one turn of the event loop together: one system call instead of many."""
        self._flushing = False
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # --- what goes wrong ----------------------------------------------------------------------------

    def _refuse(self, error: InvalidRequest) -> None:
        self.service.refused(self, error)
        self.cut()

    def _defect(self, request: Request) -> None:
        _log.exception("%s failed: a defect; its connection is closed", _name(request))
        self.cut()


class _StreamSink:
    """See `dispatch.Sink`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection

    @property
    def full(self) -> bool:
        return self._connection is not None and self._connection.stalled is not None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._connection is not None and (transport := self._connection._transport) is not None:
            transport.write(data)

    def end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection._stream is not None:
            connection._stream = None
            connection._sent()
            connection._advance()

    def break_off(self) -> None:
        if self._connection is not None:
            self._connection.cut()


def _response(request: Request, body: bytes) -> bytes:
    """Length, correlation id and, in flexible versions, an empty set of tags. ApiVersions never has tags there, so
    that clients can read the answer to a version that we do not know (KIP-511)."""
    api = request.api
    if api is not None and request.version >= api.flexible and request.api_key != _API_VERSIONS:
        return _RESPONSE_TAGGED.pack(5 + len(body), request.correlation, 0)
    return _RESPONSE.pack(4 + len(body), request.correlation)


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _name(request: Request) -> str:
    name = request.api.name if request.api else "API"
    return f"{name} (key {request.api_key}, version {request.version})"


def _drop(future: asyncio.Future[Any]) -> None:
    """Nobody takes the answer any more; a stream must hear of it, and an exception counts as seen."""
    if not future.cancelled() and future.exception() is None and hasattr(stream := future.result(), "begin"):
        stream.lost()
