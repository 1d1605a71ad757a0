"""`Pipeline`: starts the requests of one connection, and sends their responses in the order of the requests.

`api` describes which requests run concurrently. A request that has started is not cancelled when its client
disconnects, because a commit must not stop halfway.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.server.network.api import (
    Answer,
    Api,
    ApiRequest,
    CloseConnection,
    Concurrency,
    DeferredResponse,
    DeferredWork,
    FinalResponse,
    Frame,
    HandlerResult,
    Sink,
    Stream,
)

_log = logging.getLogger(__name__)

_RESPONSE: Final = struct.Struct(">ii")
_RESPONSE_TAGGED: Final = struct.Struct(">iib")
_ANY_SIZE: Final = frozenset({Concurrency.FETCHES, Concurrency.UNORDERED})
"""Classes of requests that may name thousands of groups, and so have responses of any size."""


class ResponseTransport(Protocol):
    """The part of a connection that its pipeline uses."""

    @property
    def closed(self) -> bool: ...

    @property
    def authenticated(self) -> bool:
        """Whether the client has logged in and its login is still valid."""
        ...

    @property
    def unsent(self) -> int:
        """Size of the responses that the socket has not accepted yet."""
        ...

    @property
    def sink(self) -> Sink:
        """The sink for the next stream. Its `end` calls `Pipeline.stream_ended`."""
        ...

    def put(self, response: bytes) -> None:
        """Queues a response."""
        ...

    def flush(self) -> None:
        """Sends the queued responses at once."""
        ...

    def backpressure(self) -> asyncio.Future[None] | None:
        """See `Backend.backpressure`."""
        ...

    def answered(self, request: ApiRequest) -> None:
        """Reports that the response of a request is being sent, and that the request's memory is free."""
        ...

    def on_capacity(self) -> None:
        """Reports that there may be capacity for further requests."""
        ...

    def close_after_responses(self) -> None:
        """Closes the connection after the queued responses have been sent."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...

    def reject(self, error: InvalidRequest) -> None:
        """Closes the connection, because the client has violated the protocol."""
        ...


class Pipeline:
    """The unanswered requests of one connection, in order."""

    def __init__(self, transport: ResponseTransport, max_answer_bytes: int) -> None:
        """``max_answer_bytes``: see `ManagerSettings.max_answer_bytes`."""
        self._transport = transport
        self._max_answer_bytes = max_answer_bytes
        self._answer_bytes = 0
        """Size of the responses that must be sent after the responses to earlier requests."""
        self._unsized = 0
        """Number of running requests whose response may have any size. No further request starts until the size of
        these responses is known."""
        self._in_flight: deque[ApiRequest] = deque()
        self._waiting: deque[ApiRequest] = deque()
        self._concurrency = Concurrency.EXCLUSIVE
        self._preparing = False
        """Whether a large request is in the codec thread. No later request may overtake this request."""
        self._advancing = False
        self._results: set[asyncio.Future[Any]] = set()
        self.stream: Stream | None = None
        """The response that is being written piece by piece."""
        self.backpressured = False
        """Whether the backend applies backpressure."""

    @property
    def answers_full(self) -> bool:
        """Whether the size of the waiting responses has reached the limit. While the value is true, no further request
        may be read or started."""
        return self._answer_bytes + self._transport.unsent >= self._max_answer_bytes

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

    def on_drained(self) -> None:
        """Starts the requests that waited because the client had not read its responses."""
        self._advance()

    def stream_ended(self) -> None:
        """Sends the next responses, because the stream is complete."""
        if self.stream is not None:
            self.stream = None
            self._sent()
            self._advance()

    # --- starting -----------------------------------------------------------------------------------

    def _may_start(self, concurrency: Concurrency) -> bool:
        if self._preparing or self._unsized or self.answers_full:
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
        if not api.before_login and not self._transport.authenticated:
            self._transport.reject(
                InvalidRequest(f"API {request.api_key}", "the client has not logged in, or its login has expired")
            )
            return
        if api.prepare is not None and len(request.frame) > LARGE_BYTES:
            self._prepare(request, partial(api.prepare, request), partial(self._handle_prepared, request, api))
            return
        self._handle(request, api)

    def _prepare(self, request: ApiRequest, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        """Calls ``work`` in the codec thread, then ``on_done`` with the result. Later requests wait until ``work`` has
        ended."""
        self._preparing = True

        def done(future: asyncio.Future[Any]) -> None:
            self._preparing = False
            if self._transport.closed:
                _drop(future)
                return
            try:
                on_done(future.result())
            except InvalidRequest as error:
                self._transport.reject(error)
            except asyncio.CancelledError:
                self._transport.abort()
            except Exception:
                self._defect(request)
            else:
                self._advance()

        in_codec_thread(work).add_done_callback(done)

    def _handle_prepared(self, request: ApiRequest, api: Api, prepared: Any) -> None:
        request.prepared = prepared
        self._handle(request, api)

    def _handle(self, request: ApiRequest, api: Api) -> None:
        try:
            result = api.handle(request)
        except InvalidRequest as error:
            self._transport.reject(error)
        except Exception:
            self._defect(request)
        else:
            self._process_result(request, result)
        if api.concurrency is Concurrency.COMMITS and (capacity := self._transport.backpressure()) is not None:
            self.backpressured = True
            capacity.add_done_callback(self._resume_commits)

    def _start_next(self) -> bool:
        if not self._waiting or self._transport.closed:
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
        if not self._transport.closed:
            self._advance()

    # --- outcomes -----------------------------------------------------------------------------------

    def _process_result(self, request: ApiRequest, result: HandlerResult) -> None:
        convert: Callable[[Any], Answer | Awaitable[Answer]] = _unchanged
        on_error: Any = None
        if isinstance(result, DeferredWork):
            work, then = result
            self._prepare(request, work, lambda done: self._process_result(request, then(done)))
            return
        if isinstance(result, DeferredResponse):
            result, convert, on_error = result
        elif result is None or isinstance(result, bytes | CloseConnection) or hasattr(result, "begin"):
            self._answer(request, cast(Answer, result))
            return
        future: asyncio.Future[Any] = asyncio.ensure_future(cast(Awaitable[Any], result))
        if future.done():
            self._process_future(request, future, convert, on_error)
            return
        unsized = convert is _unchanged and request.api is not None and request.api.concurrency in _ANY_SIZE
        self._unsized += unsized

        def done(result: asyncio.Future[Any]) -> None:
            self._unsized -= unsized
            self._process_future(request, result, convert, on_error)
            if unsized:
                self._advance()

        self._results.add(future)  # the event loop holds only weak references to tasks
        future.add_done_callback(done)

    def _process_future(
        self,
        request: ApiRequest,
        future: asyncio.Future[Any],
        convert: Callable[[Any], Answer | Awaitable[Answer]],
        on_error: Any,
    ) -> None:
        self._results.discard(future)
        if self._transport.closed:
            _drop(future)
            return
        try:
            answer = convert(future.result())
        except InvalidRequest as error:
            self._transport.reject(error)
        except asyncio.CancelledError:
            self._transport.abort()
        except Exception:
            if on_error is None:
                self._defect(request)
            else:
                _log.exception("%s raised an unexpected exception (a defect); the client gets an error", _name(request))
                self._process_result(request, convert(on_error))
        else:
            self._process_result(request, answer)

    def _defect(self, request: ApiRequest) -> None:
        _log.exception("%s raised an unexpected exception (a defect); closing the client's connection", _name(request))
        self._transport.abort()

    # --- responses -----------------------------------------------------------------------------------

    def _answer(self, request: ApiRequest, answer: Answer) -> None:
        request.answer = answer
        request.answered = True
        self._answer_bytes += _size(answer)
        if self._in_flight and self._in_flight[0] is request:
            self._advance()

    def _advance(self) -> None:
        """Sends all responses that are next in order, and starts the requests that waited for them."""
        if self._advancing:
            return  # the loop below is already running, and handles the next requests and responses
        self._advancing = True
        try:
            while self._send_next() or self._start_next():
                pass
        finally:
            self._advancing = False
        self._transport.on_capacity()

    def _send_next(self) -> bool:
        if not self._in_flight or not self._in_flight[0].answered or self.stream is not None:
            return False
        request = self._in_flight[0]
        answer = request.answer
        if isinstance(answer, Frame):
            self._transport.put(answer)
        elif isinstance(answer, bytes):
            self._transport.put(_response_header(request, answer) + answer)
            if isinstance(answer, FinalResponse):
                self._transport.close_after_responses()
        elif isinstance(answer, CloseConnection):
            self._transport.close_after_responses()
        elif answer is not None:
            self._transport.flush()
            self.stream = answer
            answer.begin(self._transport.sink)
            return self.stream is None
        self._sent()
        return True

    def _sent(self) -> None:
        request = self._in_flight.popleft()
        self._answer_bytes -= _size(request.answer)
        self._transport.answered(request)


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
    name = request.api.name if request.api else "API"
    return f"{name} (key {request.api_key}, version {request.version})"


def _drop(future: asyncio.Future[Any]) -> None:
    """Discards a handler's result after the client has disconnected. If the result is a stream, calls `Stream.lost`. If
    the handler raised an exception, retrieves the exception."""
    if not future.cancelled() and future.exception() is None and hasattr(stream := future.result(), "begin"):
        stream.lost()
