"""`SocketServer`: the table of APIs, the limits, the connections and the counters of all ports of one manager.

A port represents either the manager itself (node id None) or, with the relay, a real broker. `ServerConnection` is one
client's connection, which reads requests and writes responses, with backpressure in both directions.

`server.apis.table` builds the table of `Api`s. The relay replaces some handlers (Metadata, ListGroups, ...), and
supplies the handler of the requests for APIs that are not in the table.

Handlers run on the event loop. If a handler or its awaitable raises `InvalidRequest`, the server closes the connection,
as a broker does. Any other exception is a defect: the server logs the exception and closes the connection.

Order: `Pipeline` sends the responses in the order of the requests. A request starts when each earlier request of its
connection has been answered, has the same `Concurrency` as this request, or is `UNORDERED`. So commits run
concurrently, and a fetch sees all commits that the client sent before it. A request that has started is not cancelled
when its client disconnects, because a commit must not stop halfway. The connection stops reading while too many
requests are unanswered, while the client does not read its responses, and while the backend applies backpressure, so
that a client's memory stays within the limits of `ManagerSettings`. The connection logs no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.frames import LARGE_BYTES, FrameSplitter, in_codec_thread
from offsetmgr.kafka.protocol.releases import ApiKey, api_name
from offsetmgr.server.network.ports import client_network, open_port, raise_file_limit
from offsetmgr.server.network.requests import (
    NEVER_FLEXIBLE,
    Answer,
    Api,
    ApiRequest,
    ClientSession,
    CloseConnection,
    Concurrency,
    DeferredResponse,
    DeferredWork,
    FinalResponse,
    Frame,
    Handler,
    HandlerResult,
    Stream,
)
from offsetmgr.server.network.turns import EventLoopTurns

_log = logging.getLogger(__name__)

_RESPONSE: Final = struct.Struct(">ii")
_RESPONSE_TAGGED: Final = struct.Struct(">iib")
_ANY_SIZE: Final = frozenset({Concurrency.FETCHES, Concurrency.UNORDERED})
"""Classes of requests that may name thousands of groups, and so have responses of any size."""


_MAX_HELD_BYTES: Final = 16 * 1024 * 1024
"""Size of the waiting and running requests of one connection at which the server stops reading from the connection."""
_FREE_PARTIAL_BYTES: Final = 64 * 1024
"""When memory is exhausted, the server does not close a connection that waits with at most this many bytes."""
_MIN_BYTES_PER_SECOND: Final = 16 * 1024
"""The time limit for sending a request grows by one second each time this number of its bytes has arrived."""
_MAX_UNFLUSHED_RESPONSES: Final = 128
_MAX_UNFLUSHED_BYTES: Final = 256 * 1024
"""Maximum number and size of the responses that one connection sends in one turn of the event loop."""


class ServerConnection(ClientSession, asyncio.Protocol):
    """The protocol of one client's connection; `SocketServer.listen` creates it."""

    def __init__(self, service: SocketServer, node_id: int | None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(service, node_id)
        self.service: SocketServer = service
        self._tls = tls
        self._handshake: asyncio.Task[None] | None = None
        """The TLS handshake while it runs."""
        self.opened_at = 0.0
        self.last_received = 0.0
        """When the last bytes arrived, by the event loop's clock."""
        self.partial_since: float | None = None
        """When the first bytes of the incomplete request arrived; None if the server is not waiting for the rest of a
        request."""
        self._transport: asyncio.Transport | None = None
        self._pipeline = Pipeline(self)
        self._frames = FrameSplitter(0)
        self._reading = True
        self._processing = False
        self._bytes = 0
        """Size of the requests in the pipeline."""
        self.partial_bytes = 0
        """Number of received bytes of an incomplete request."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unsent_before = 0
        self._last_progress = 0.0

    # --- called by the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if (connected := transport.get_extra_info("socket")) is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.opened_at = self.last_received = self._loop.time()
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.network = client_network(self.peer)
        self._set_frame_limit()
        self.service.accept(self)
        if self._tls is None:
            self._begin()
        else:
            self._handshake = self._loop.create_task(self._secure(self._transport, self._tls))

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Starts TLS. The event loop could do this itself, but would call `connection_made` only after the handshake,
        so that clients without a handshake would not count as connections."""
        secured = None
        try:
            if not transport.is_closing():
                secured = await self._loop.start_tls(transport, self, tls, server_side=True, ssl_shutdown_timeout=1.0)
        except OSError as error:  # the client is gone, or does not speak TLS
            error.__traceback__ = None  # the traceback's frames refer to the error, and would keep the buffers of TLS
        self._transport, self._handshake = secured, None
        if secured is None:
            self.connection_lost(None)
            return
        self._begin()
        self.data_received(b"")  # requests may arrive with the end of the handshake

    def _begin(self) -> None:
        if not self.service.requires_login:
            self.logged_in("ANONYMOUS")

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        self._frames.feed(data)
        if self._handshake is not None:
            return
        self._process_frames()
        if self.principal is None and self._bytes + self.partial_bytes > self.service.settings.max_login_bytes + 4:
            self.service.cut(self, "memory")  # clients send the next request after the response to their login
        elif self.partial_bytes > _FREE_PARTIAL_BYTES and not self._bytes:
            self.service.limit_partial_bytes()

    def eof_received(self) -> bool:
        """Closes the connection when the client closes its sending side, as a broker does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        self._transport = None
        self._hold(-self._bytes)
        self._discard_partial()
        self._out.clear()
        self.service.on_closed(self)
        self._pipeline.lost()
        callbacks, self.on_lost = self.on_lost, []
        for callback in callbacks:
            callback()

    def pause_writing(self) -> None:
        self.stalled_since = self._loop.time()
        if self._pipeline.stream is not None:
            self._pipeline.stream.pause()

    def resume_writing(self) -> None:
        self.stalled_since = None
        if self._pipeline.stream is not None:
            self._pipeline.stream.resume()
        self._pipeline.advance()
        self._process_frames()

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
        """Whether all requests are answered. A request counts as answered even if its response is still unsent, because
        a dead client never reads its responses."""
        return len(self._pipeline) == 0

    @property
    def unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def unread_bytes(self) -> int:
        """Size of the responses that the manager holds for the client."""
        return self._pipeline.answer_bytes + self.unsent + self.collected_bytes

    def last_progress(self, now: float) -> float:
        """Returns when the client last made progress. The client makes progress if a call of this method finds fewer
        unsent bytes than the previous call."""
        unsent = self.unsent
        if unsent < self._unsent_before:
            self._last_progress = now
        self._unsent_before = unsent
        return self._last_progress

    def logged_in(self, principal: str) -> None:
        super().logged_in(principal)
        self.service.without_login.pop(self, None)
        self._set_frame_limit()

    def abort(self) -> None:
        self._discard_partial()
        if self._transport is not None:
            self._transport.abort()

    def close_after_responses(self) -> None:
        """Closes the connection after the queued responses have been sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def reject(self, error: InvalidRequest) -> None:
        """Closes the connection, because the client has violated the protocol."""
        error.__traceback__ = None  # its frames refer to the future with the error, and would keep the request
        self.service.cut(self, "invalid request", error)

    # --- incoming requests ---------------------------------------------------------------------------

    def _set_frame_limit(self) -> None:
        settings = self.service.settings
        self._frames.limit = settings.max_login_bytes if self.principal is None else settings.max_request_bytes

    def _process_frames(self) -> None:
        """Passes as many complete requests to the pipeline as the limits allow now."""
        if self._processing:
            return  # called from within the loop below, which processes further frames itself
        self._processing = True
        try:
            while not self._full() and not self.turn_is_over() and (frame := self._frames.next()) is not None:
                self.partial_since = None
                self.service.large_partials.pop(self, None)
                request = ApiRequest(self, frame)
                if request.api_key == ApiKey.API_VERSIONS and len(frame) > self.service.settings.max_api_versions_bytes:
                    raise InvalidRequest("ApiVersions", f"a request of {len(frame)} bytes")
                request.since = self.last_received
                request.api = self.service.route(request)
                self._hold(len(frame))
                self._pipeline.arrived(request, request.api)
        except InvalidRequest as error:
            self.reject(error)
        finally:
            self._processing = False
        if self._transport is not None and not self._transport.is_closing():
            self._adjust_reading(self._transport)

    def _adjust_reading(self, transport: asyncio.Transport) -> None:
        """Pauses or resumes reading, and updates `partial_since`."""
        full = self._full()
        if full == self._reading:
            self._reading = not full
            (transport.pause_reading if full else transport.resume_reading)()
        partial = self._frames.held_bytes
        self.service.held_bytes += partial - self.partial_bytes
        self.partial_bytes = partial
        if partial > _FREE_PARTIAL_BYTES:
            self.service.large_partials.setdefault(self)
        if not partial or full:
            self.partial_since = None
        elif self.partial_since is None:
            self.partial_since = self.last_received

    def _discard_partial(self) -> None:
        """Frees the received bytes that are not in the pipeline."""
        self._frames = FrameSplitter(0)  # its bytes would remain until the garbage collector finds this connection
        self.service.held_bytes -= self.partial_bytes
        self.partial_bytes = 0
        self.service.large_partials.pop(self, None)

    def _full(self) -> bool:
        return (
            self._pipeline.backpressured
            or self._pipeline.answers_full
            or self.stalled_since is not None
            or self.closed
            or len(self._pipeline) >= self.service.settings.max_in_flight
            or self._bytes >= _MAX_HELD_BYTES
            or (self._bytes > 0 and self.service.memory_exhausted)
        )

    def _hold(self, size: int) -> None:
        self._bytes += size
        self.service.held_bytes += size

    # --- called by the pipeline ----------------------------------------------------------------------

    def answered(self, request: ApiRequest) -> None:
        self._hold(-len(request.frame))
        self.service.answered(request)

    def on_capacity(self) -> None:
        if not self._reading:
            self._process_frames()

    # --- outgoing responses --------------------------------------------------------------------------

    def put(self, response: bytes) -> None:
        """Queues a response. All responses of one turn of the event loop are sent in one system call. The response to
        the last unanswered request is sent at once, because no other response can follow in this turn, unless the
        connection is just processing requests."""
        self._out.append(response)
        self._out_bytes += len(response)
        if len(self._pipeline) == 1 and not self._processing and not self._out_full():
            self.flush()
        elif len(self._out) == 1:
            self.service.turns.flush_soon(self)

    def flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out:
            self.write(out[0] if len(out) == 1 else b"".join(out))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _out_full(self) -> bool:
        return len(self._out) >= _MAX_UNFLUSHED_RESPONSES or self._out_bytes >= _MAX_UNFLUSHED_BYTES

    # --- turns of the event loop ---------------------------------------------------------------------

    def turn_is_over(self) -> bool:
        """Whether the connection must not run any further request in this turn. `run` continues in a later turn."""
        return self.service.turns.is_over(self, full=self._out_full())

    def run(self) -> None:
        if self._out_full():
            self.flush()
        self._pipeline.advance()
        self._process_frames()


class Pipeline:
    """The unanswered requests of one connection, in order."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._max_answer_bytes = connection.service.settings.max_answer_bytes
        self.answer_bytes = 0
        """Size of the responses that must be sent after the responses to earlier requests."""
        self._unsized = 0
        """Number of running requests whose response may have any size. No further request starts until the size of
        these responses is known."""
        self._in_flight: deque[ApiRequest] = deque()
        self._waiting: deque[ApiRequest] = deque()
        self._concurrency = Concurrency.EXCLUSIVE
        self._preparing = False
        """Whether a `DeferredWork` is running. No later request may overtake its request."""
        self._advancing = False
        self._done: deque[Callable[[], None]] = deque()
        """Processes results that arrived when the connection's turn of the event loop was over."""
        self._results: set[asyncio.Future[Any]] = set()
        self.stream: Stream | None = None
        """The response that is being written piece by piece."""
        self.backpressured = False
        """Whether the backend applies backpressure."""

    @property
    def answers_full(self) -> bool:
        """Whether the size of the waiting responses has reached the limit. While the value is true, no further request
        may be read or started."""
        return self._connection.unread_bytes >= self._max_answer_bytes

    def __len__(self) -> int:
        """Number of unanswered requests."""
        return len(self._in_flight) + len(self._waiting)

    def arrived(self, request: ApiRequest, api: Api) -> None:
        """Starts the request, or queues it behind earlier ones."""
        if self._waiting or not self._may_start(api.concurrency):
            self._waiting.append(request)
        else:
            self._start(request, api)

    def lost(self) -> None:
        """Discards all requests and responses, because the client has disconnected."""
        answers = [request.answer for request in self._in_flight if request.answered]
        self._waiting.clear()
        self._in_flight.clear()
        self.stream = None
        for answer in answers:
            if answer is not None and not isinstance(answer, bytes | CloseConnection):
                answer.lost()

    def stream_ended(self) -> None:
        """Sends the next responses, because the stream is complete."""
        if self.stream is not None:
            self.stream = None
            self._sent()
            self.advance()

    # --- starting -----------------------------------------------------------------------------------

    def _may_start(self, concurrency: Concurrency) -> bool:
        if self._preparing or self._unsized or self.answers_full or self._connection.turn_is_over():
            return False
        if not self._in_flight or concurrency is Concurrency.UNORDERED:
            return True
        return concurrency is self._concurrency and concurrency is not Concurrency.EXCLUSIVE

    def _start(self, request: ApiRequest, api: Api) -> None:
        if api.concurrency is not Concurrency.UNORDERED:
            self._concurrency = api.concurrency
        elif not self._in_flight:
            self._concurrency = Concurrency.UNORDERED
        self._in_flight.append(request)
        if not api.before_login and self._connection.principal is None:
            self._connection.reject(
                InvalidRequest(f"API {request.api_key}", "the client has not logged in, or its login has expired")
            )
            return
        if api.prepare is not None and len(request.frame) > LARGE_BYTES:
            self._prepare(request, partial(api.prepare, request), partial(self._handle_prepared, request, api))
            return
        self._handle(request, api)

    def _prepare(
        self,
        request: ApiRequest,
        work: Callable[[], Any] | Coroutine[Any, Any, Any],
        on_done: Callable[[Any], None],
    ) -> None:
        """Does the work of a `DeferredWork`, then calls ``on_done`` with the result. Later requests wait until the work
        has ended."""
        self._preparing = True

        def finish() -> None:
            self._preparing = False
            self._process_future(request, future, on_done, lambda _: self.advance())

        future = in_codec_thread(work) if callable(work) else asyncio.ensure_future(work)
        self._when_done(future, finish)

    def _handle_prepared(self, request: ApiRequest, api: Api, prepared: Any) -> None:
        request.prepared = prepared
        self._handle(request, api)

    def _handle(self, request: ApiRequest, api: Api) -> None:
        try:
            result = api.handle(request)
        except InvalidRequest as error:
            self._connection.reject(error)
        except Exception:
            self._defect(request)
        else:
            self._process_result(request, result)
        if api.concurrency is Concurrency.COMMITS and (capacity := self._connection.service.backpressure()) is not None:
            self.backpressured = True
            capacity.add_done_callback(self._resume_commits)

    def _finish_next(self) -> bool:
        if not self._done or self._connection.turn_is_over():
            return False
        self._done.popleft()()
        return True

    def _start_next(self) -> bool:
        if not self._waiting or self._connection.closed:
            return False
        api = self._waiting[0].api
        if (
            api is None
            or not self._may_start(api.concurrency)
            or (self.backpressured and api.concurrency is Concurrency.COMMITS)
        ):
            return False
        self._start(self._waiting.popleft(), api)
        return True

    def _resume_commits(self, _capacity: asyncio.Future[None]) -> None:
        self.backpressured = False
        if not self._connection.closed:
            self.advance()

    # --- outcomes -----------------------------------------------------------------------------------

    def _process_result(self, request: ApiRequest, result: HandlerResult) -> None:
        convert: Callable[[Any], Answer | Awaitable[Answer]] = _unchanged
        on_error: Any = None
        if isinstance(result, DeferredWork):
            work, handle = result
            self._prepare(request, work, lambda done: self._process_result(request, handle(done)))
            return
        if isinstance(result, DeferredResponse):
            result, convert, on_error = result
        elif result is None or isinstance(result, bytes | CloseConnection) or hasattr(result, "begin"):
            self._answer(request, cast(Answer, result))
            return
        future: asyncio.Future[Any] = asyncio.ensure_future(cast(Awaitable[Any], result))
        then = partial(self._process_result, request)
        if future.done():
            self._process_future(request, future, convert, then, on_error)
            return
        unsized = convert is _unchanged and request.api is not None and request.api.concurrency in _ANY_SIZE
        self._unsized += unsized

        def finish() -> None:
            self._unsized -= unsized
            self._process_future(request, future, convert, then, on_error)
            if unsized:
                self.advance()

        self._when_done(future, finish)

    def _when_done(self, future: asyncio.Future[Any], finish: Callable[[], None]) -> None:
        """Calls ``finish`` in a turn of the connection, after the future is done."""

        def done(_: asyncio.Future[Any]) -> None:
            if self._connection.turn_is_over():
                self._done.append(finish)
            else:
                finish()

        self._results.add(future)  # the event loop holds only weak references to tasks
        future.add_done_callback(done)

    def _process_future(
        self,
        request: ApiRequest,
        future: asyncio.Future[Any],
        convert: Callable[[Any], Any],
        then: Callable[[Any], None],
        on_error: Any = None,
    ) -> None:
        """Calls ``then`` with the converted result of the future. ``on_error`` is the result after an unexpected
        exception; if it is None, the exception closes the connection."""
        self._results.discard(future)
        if self._connection.closed:  # the result is discarded, and an exception retrieved
            if not future.cancelled() and future.exception() is None and hasattr(stream := future.result(), "begin"):
                stream.lost()
            return
        try:
            converted = convert(future.result())
        except InvalidRequest as error:
            self._connection.reject(error)
            return
        except asyncio.CancelledError:
            self._connection.abort()
            return
        except Exception:
            if on_error is None:
                self._defect(request)
                return
            _log.exception("%s raised an unexpected exception (a defect); the client gets an error", _name(request))
            converted = convert(on_error)
        then(converted)

    def _defect(self, request: ApiRequest) -> None:
        _log.exception("%s raised an unexpected exception (a defect); closing the client's connection", _name(request))
        self._connection.abort()

    # --- responses -----------------------------------------------------------------------------------

    def _answer(self, request: ApiRequest, answer: Answer) -> None:
        request.answer = answer
        request.answered = True
        self.answer_bytes += _size(answer)
        if self._in_flight and self._in_flight[0] is request:
            self.advance()

    def advance(self) -> None:
        """Sends all responses that are next in order, and starts the requests that waited for them."""
        if self._advancing:
            return  # the loop below is already running, and handles the next requests and responses
        self._advancing = True
        try:
            while self._finish_next() or self._send_next() or self._start_next():
                pass
        finally:
            self._advancing = False
        self._connection.on_capacity()

    def _send_next(self) -> bool:
        if not self._in_flight or not self._in_flight[0].answered or self.stream is not None:
            return False
        request = self._in_flight[0]
        answer = request.answer
        if isinstance(answer, Frame):
            self._connection.put(answer)
        elif isinstance(answer, bytes):
            self._connection.put(_response_header(request, answer) + answer)
            if isinstance(answer, FinalResponse):
                self._connection.close_after_responses()
        elif isinstance(answer, CloseConnection):
            self._connection.close_after_responses()
        elif answer is not None:
            self._connection.flush()
            self.stream = answer
            answer.begin(self._connection, self.stream_ended)
            return self.stream is None
        self._sent()
        return True

    def _sent(self) -> None:
        request = self._in_flight.popleft()
        self.answer_bytes -= _size(request.answer)
        self._connection.answered(request)


def _response_header(request: ApiRequest, body: bytes) -> bytes:
    """The header of a response: length, correlation id and, in flexible versions, an empty set of tags. The header of
    an ApiVersions response has no tags, so that clients can read the response to a request in an unknown version
    (KIP-511)."""
    api = request.api
    if api is not None and request.version >= api.flexible and request.api_key != ApiKey.API_VERSIONS:
        return _RESPONSE_TAGGED.pack(5 + len(body), request.correlation, 0)
    return _RESPONSE.pack(4 + len(body), request.correlation)


def _size(answer: Answer) -> int:
    return len(answer) if isinstance(answer, bytes) else 0


def _unchanged(answer: Answer) -> Answer:
    return answer


def _name(request: ApiRequest) -> str:
    return f"{api_name(request.api_key)} (key {request.api_key}, version {request.version})"


_SWEEP_S: Final = 0.5
_CLOSE_POLL_S: Final = 0.01
"""While the server closes, it checks at this interval (in seconds) whether the running requests have ended."""
_WARNING_EVERY_S: Final = 10.0
"""Minimum time in seconds between two warnings about the same. The limit is necessary because any client can cause
failed logins and closed connections."""
_METRIC_LABELS: Final = {Concurrency.COMMITS: "commit", Concurrency.FETCHES: "fetch", Concurrency.FORWARDED: "relayed"}


class SocketServer:
    """The state that all ports of one manager share. Use it in one event loop. `close` closes all ports and
    connections."""

    def __init__(
        self,
        apis: Sequence[Api],
        *,
        settings: ManagerSettings | None = None,
        requires_login: bool = False,
        fallback: Handler | None = None,
        backpressure: Callable[[], asyncio.Future[None] | None] = lambda: None,
        observe: Callable[[str, float], None] | None = None,
    ) -> None:
        """``apis``: if several APIs have the same key, the last one is used. ``backpressure``: see
        `Backend.backpressure`. ``observe``: receives the kind (``commit``, ``fetch``, ``relayed`` or ``other``) and the
        duration in seconds of every request."""
        self.apis: dict[int, Api] = {api.key: api for api in apis}
        self.settings = settings or ManagerSettings()
        self.requires_login = requires_login
        self.backpressure = backpressure
        self.turns = EventLoopTurns()
        self.connections: set[ServerConnection] = set()
        self.without_login: dict[ServerConnection, None] = {}
        """The connections before the end of the login, the oldest first."""
        self.large_partials: dict[ServerConnection, None] = {}
        """The connections that wait with more than `_FREE_PARTIAL_BYTES`, the one without a complete request for the
        longest time first."""
        self._servers: list[asyncio.Server] = []
        """The open ports."""
        self._fallback: Api | None = None
        if fallback is not None:
            self._fallback = Api(-1, 0, 0, NEVER_FLEXIBLE, fallback, Concurrency.FORWARDED)
        self.held_bytes = 0
        """Size of the unanswered requests of all connections, in bytes."""
        self._observe = observe
        self._by_address: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        self._unlogged: Counter[str] = Counter()
        """Number of events since the last warning about them."""
        self._logged_at: dict[str, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Returns the lowest and the highest version of each API, as in ApiVersions."""
        return {api.key: (api.min_version, api.max_version) for api in self.apis.values()}

    def route(self, request: ApiRequest) -> Api:
        """Returns the API that serves the request. Raises `InvalidRequest` if none does."""
        api = self.apis.get(request.api_key)
        # ApiVersions is handled in every version (KIP-511).
        known = api is not None and (
            api.min_version <= request.version <= api.max_version or api.key == ApiKey.API_VERSIONS
        )
        if api is not None and known:
            return api
        if self._fallback is not None:
            return self._fallback
        raise InvalidRequest(f"{api_name(request.api_key)} version {request.version}", "is not supported")

    async def listen(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, node_id: int | None = None
    ) -> int:
        """Opens a port and returns its number, which the system selects if ``port`` is 0. ``node_id`` is the broker
        that the port represents; None for the manager itself. Raises `Unreachable` if the address cannot be bound."""
        raise_file_limit(self.settings.max_connections)
        create = partial(asyncio.get_running_loop().create_server, lambda: ServerConnection(self, node_id, tls))
        hint = "choose another address, or stop the process that listens there"
        server = await open_port(create, "listener", host, port, hint)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    # --- called by connections -----------------------------------------------------------------------

    def accept(self, connection: ServerConnection) -> None:
        """Registers a new connection. If there are too many, closes the oldest one whose client has not logged in or
        finished its TLS handshake, so that such clients do not keep out the others. A new connection is one of them. An
        address that has too many closes only its own."""
        self._counters["connections_total"] += 1
        self.connections.add(connection)
        self.without_login[connection] = None
        self._by_address[connection.network] += 1
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        oldest: ServerConnection | None = None
        if self._by_address[connection.network] > self.settings.max_connections_per_address:
            oldest = next(one for one in self.without_login if one.network == connection.network)
        elif len(self.connections) > self.settings.max_connections:
            oldest = next(iter(self.without_login))
        if oldest is not None:
            self.without_login.pop(oldest)
            self.cut(oldest, "too many")

    def on_closed(self, connection: ServerConnection) -> None:
        """Removes a connection that has ended."""
        self.without_login.pop(connection, None)
        if connection in self.connections:
            self.connections.discard(connection)
            self._by_address[connection.network] -= 1
            if not self._by_address[connection.network]:
                del self._by_address[connection.network]

    def cut(self, client: ClientSession, why: str, error: InvalidRequest | None = None) -> None:
        self._counters[f'connections_cut_total{{why="{why}"}}'] += 1
        if why != "idle":
            self._warn(why, "connections closed", client, {"why": why if error is None else f"{why}: {error}"})
        client.abort()

    def limit_partial_bytes(self) -> None:
        """While memory is exhausted, closes the connection that has waited longest for the rest of a large request.
        Only a complete request can end and free its memory."""
        while self.memory_exhausted and self.large_partials:
            self.cut(next(iter(self.large_partials)), "memory")

    def login_failed(self, client: ClientSession, mechanism: str) -> None:
        """Counts a failed login. The warning contains no user name, because users sometimes type the password
        instead of the user name. ``mechanism`` is a supported mechanism or ``unsupported``, never text from the
        client."""
        self._counters[f'logins_failed_total{{mechanism="{mechanism}"}}'] += 1
        self._warn("login", "logins failed", client, {"mechanism": mechanism})

    def _warn(self, event: str, message: str, client: ClientSession, what: dict[str, str]) -> None:
        self._unlogged[event] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(event, -_WARNING_EVERY_S) >= _WARNING_EVERY_S:
            self._logged_at[event] = now
            _log.warning(message, extra={"peer": client.peer, **what, "count": self._unlogged.pop(event)})

    @property
    def memory_exhausted(self) -> bool:
        return self.held_bytes > self.settings.max_held_bytes

    def answered(self, request: ApiRequest) -> None:
        """Records the latency of a request whose response is being sent."""
        if self._observe is not None and request.api is not None:
            self._observe(
                _METRIC_LABELS.get(request.api.concurrency, "other"), asyncio.get_running_loop().time() - request.since
            )

    def metrics(self) -> Mapping[str, float]:
        """Values for the metrics endpoint; see `Backend.metrics`."""
        return {**self._counters, "connections": len(self.connections), "request_bytes_held": self.held_bytes}

    # --- closing connections -------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Closes connections that have been idle, slow or not logged in for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            if (why := self._overdue(connection, now)) is not None:
                self.cut(connection, why)
        self._limit_responses()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self.connections else None

    def _limit_responses(self) -> None:
        """Closes the connections with the most unread responses while those of all connections exceed the limit."""
        unread = {connection: connection.unread_bytes for connection in self.connections}
        excess = sum(unread.values()) - self.settings.max_held_bytes
        for connection in sorted(unread, key=unread.__getitem__, reverse=True):
            if excess <= 0:
                break
            excess -= unread[connection]
            self.cut(connection, "memory")

    def _overdue(self, connection: ServerConnection, now: float) -> str | None:
        settings = self.settings
        logging_in = connection.principal is None and not connection.waits_for_check
        if logging_in and now - connection.opened_at > settings.login_timeout_s:
            return "no login"
        allowance_s = settings.request_timeout_s + connection.partial_bytes / _MIN_BYTES_PER_SECOND
        if connection.partial_since is not None and now - connection.partial_since > allowance_s:
            return "slow request"
        if connection.closed and now - connection.last_received > settings.request_timeout_s:
            return "answers not taken"
        if now - max(connection.last_received, connection.last_progress(now)) > settings.idle_timeout_s:
            if connection.stalled_since is not None:
                return "answers not taken"
            if connection.idle:
                return "idle"
        return None

    async def close(self, grace_s: float = 0.0) -> None:
        """Stops accepting connections, waits at most ``grace_s`` seconds for running requests, and closes all
        connections."""
        for server in self._servers:
            server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        while any(connection.busy for connection in self.connections) and loop.time() < end:
            await asyncio.sleep(_CLOSE_POLL_S)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for server in self._servers:
            with contextlib.suppress(OSError):
                await server.wait_closed()
