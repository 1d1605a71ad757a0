"""Starts the requests of one connection in their lanes, and sends their responses in the order of the requests.

See `api` for both. No transport in here: responses go to a `ResponseTransport`.

A request that has begun is not cancelled when its client disconnects: a half-done commit would be worse.
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
    Outcome,
    Sink,
    Stream,
)

_log = logging.getLogger(__name__)

_RESPONSE: Final = struct.Struct(">ii")
_RESPONSE_TAGGED: Final = struct.Struct(">iib")
_ANY_SIZE: Final = frozenset({Concurrency.FETCHES, Concurrency.UNORDERED})
"""Lanes whose requests may name thousands of groups, and so have large responses."""


class ResponseTransport(Protocol):
    """The connection, as its pipeline uses it."""

    @property
    def closed(self) -> bool: ...

    @property
    def may_ask(self) -> bool:
        """Whether the client has logged in and its login is still valid."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes of responses that the client has not taken yet."""
        ...

    @property
    def sink(self) -> Sink:
        """The sink for the next stream. Its end is reported to `Pipeline.stream_ended`."""
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
        """The request's response is on its way, and the request's memory is free."""
        ...

    def moved(self) -> None:
        """There may be capacity for further requests."""
        ...

    def hang_up(self) -> None:
        """Closes the connection after the queued responses have been sent."""
        ...

    def cut(self) -> None:
        """Closes the connection at once."""
        ...

    def refuse(self, error: InvalidRequest) -> None:
        """The client has violated the protocol: closes its connection."""
        ...


class Pipeline:
    """See the module's docstring."""

    def __init__(self, outlet: ResponseTransport, most_answer_bytes: int) -> None:
        """``most_answer_bytes``: see `ServerLimits.answer_bytes`."""
        self._outlet = outlet
        self._most_answer_bytes = most_answer_bytes
        self._answer_bytes = 0
        """Size of the responses that wait for those of earlier requests."""
        self._unsized = 0
        """Running requests whose handler builds the whole response by itself, of any size. The next request starts
        after that response is counted."""
        self._under_way: deque[ApiRequest] = deque()
        self._waiting: deque[ApiRequest] = deque()
        self._lane = Concurrency.EXCLUSIVE
        self._preparing = False
        """Whether a large request is being decoded. No later request may overtake it."""
        self._advancing = False
        self._results: set[asyncio.Future[Any]] = set()
        self.stream: Stream | None = None
        """The response that is being written piece by piece."""
        self.stopped_by_backend = False
        """Whether the backend applies backpressure."""

    @property
    def answers_full(self) -> bool:
        """Whether so many responses wait that no further request is read."""
        return self._answer_bytes + self._outlet.unsent >= self._most_answer_bytes

    def __len__(self) -> int:
        """Number of unanswered requests."""
        return len(self._under_way) + len(self._waiting)

    def arrived(self, request: ApiRequest, api: Api) -> None:
        """Starts the request, or queues it behind earlier ones."""
        if self._waiting or not self._may_start(api.lane):
            self._waiting.append(request)
        else:
            self._start(request, api)

    def lost(self) -> None:
        """The client has disconnected."""
        answers = [request.answer for request in self._under_way if request.answered]
        self._waiting.clear()
        self._under_way.clear()
        self.stream = None
        for answer in answers:
            if answer is not None and not isinstance(answer, bytes | CloseConnection):
                answer.lost()

    def proceed(self) -> None:
        """The client has taken responses: starts the requests that waited for that."""
        self._advance()

    def stream_ended(self) -> None:
        """The stream is complete: the next responses may follow."""
        if self.stream is not None:
            self.stream = None
            self._sent()
            self._advance()

    # --- starting -----------------------------------------------------------------------------------

    def _may_start(self, lane: Concurrency) -> bool:
        if self._preparing or self._unsized or self.answers_full:
            return False
        if not self._under_way or lane is Concurrency.UNORDERED:
            return True
        return lane is self._lane and lane is not Concurrency.EXCLUSIVE

    def _start(self, request: ApiRequest, api: Api) -> None:
        if api.lane is not Concurrency.UNORDERED:
            self._lane = api.lane
        elif not self._under_way:
            self._lane = Concurrency.UNORDERED
        self._under_way.append(request)
        if not api.before_login and not self._outlet.may_ask:
            self._outlet.refuse(InvalidRequest(f"API {request.api_key}", "comes without a login, or after its end"))
            return
        if api.prepare is not None and len(request.frame) > LARGE_BYTES:
            self._prepare(request, partial(api.prepare, request), partial(self._handle_prepared, request, api))
            return
        self._handle(request, api)

    def _prepare(self, request: ApiRequest, work: Callable[[], Any], go_on: Callable[[Any], None]) -> None:
        """Calls ``work`` in the codec thread and ``go_on`` with its result; later requests wait until then."""
        self._preparing = True

        def done(future: asyncio.Future[Any]) -> None:
            self._preparing = False
            if self._outlet.closed:
                _drop(future)
                return
            try:
                go_on(future.result())
            except InvalidRequest as error:
                self._outlet.refuse(error)
            except asyncio.CancelledError:
                self._outlet.cut()
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
            outcome = api.handle(request)
        except InvalidRequest as error:
            self._outlet.refuse(error)
        except Exception:
            self._defect(request)
        else:
            self._take_outcome(request, outcome)
        if api.lane is Concurrency.COMMITS and (capacity := self._outlet.backpressure()) is not None:
            self.stopped_by_backend = True
            capacity.add_done_callback(self._resume_commits)

    def _start_next(self) -> bool:
        if not self._waiting or self._outlet.closed:
            return False
        api = self._waiting[0].api
        if (
            api is None
            or not self._may_start(api.lane)
            or (self.stopped_by_backend and api.lane is Concurrency.COMMITS)
        ):
            return False
        self._start(self._waiting.popleft(), api)
        return True

    def _resume_commits(self, _capacity: asyncio.Future[None]) -> None:
        self.stopped_by_backend = False
        if not self._outlet.closed:
            self._advance()

    # --- outcomes -----------------------------------------------------------------------------------

    def _take_outcome(self, request: ApiRequest, outcome: Outcome) -> None:
        then: Callable[[Any], Answer | Awaitable[Answer]] = _as_it_is
        otherwise: Any = None
        if isinstance(outcome, DeferredWork):
            work, then_outcome = outcome
            self._prepare(request, work, lambda done: self._take_outcome(request, then_outcome(done)))
            return
        if isinstance(outcome, DeferredResponse):
            outcome, then, otherwise = outcome
        elif outcome is None or isinstance(outcome, bytes | CloseConnection) or hasattr(outcome, "begin"):
            self._answer(request, cast(Answer, outcome))
            return
        future: asyncio.Future[Any] = asyncio.ensure_future(cast(Awaitable[Any], outcome))
        if future.done():
            self._take_result(request, future, then, otherwise)
            return
        unsized = then is _as_it_is and request.api is not None and request.api.lane in _ANY_SIZE
        self._unsized += unsized

        def done(result: asyncio.Future[Any]) -> None:
            self._unsized -= unsized
            self._take_result(request, result, then, otherwise)
            if unsized:
                self._advance()

        self._results.add(future)  # the event loop holds only weak references to tasks
        future.add_done_callback(done)

    def _take_result(
        self,
        request: ApiRequest,
        future: asyncio.Future[Any],
        then: Callable[[Any], Answer | Awaitable[Answer]],
        otherwise: Any,
    ) -> None:
        self._results.discard(future)
        if self._outlet.closed:
            _drop(future)
            return
        try:
            answer = then(future.result())
        except InvalidRequest as error:
            self._outlet.refuse(error)
        except asyncio.CancelledError:
            self._outlet.cut()
        except Exception:
            if otherwise is None:
                self._defect(request)
            else:
                _log.exception("%s failed: a defect; it is answered with an error", _name(request))
                self._take_outcome(request, then(otherwise))
        else:
            self._take_outcome(request, answer)

    def _defect(self, request: ApiRequest) -> None:
        _log.exception("%s failed: a defect; its connection is closed", _name(request))
        self._outlet.cut()

    # --- responses -----------------------------------------------------------------------------------

    def _answer(self, request: ApiRequest, answer: Answer) -> None:
        request.answer = answer
        request.answered = True
        self._answer_bytes += _size(answer)
        if self._under_way and self._under_way[0] is request:
            self._advance()

    def _advance(self) -> None:
        """Sends the responses that are next in order, and starts the requests that waited for them."""
        if self._advancing:
            return  # a request that was started below answered at once; the loop below continues with it
        self._advancing = True
        try:
            while self._send_next() or self._start_next():
                pass
        finally:
            self._advancing = False
        self._outlet.moved()

    def _send_next(self) -> bool:
        if not self._under_way or not self._under_way[0].answered or self.stream is not None:
            return False
        request = self._under_way[0]
        answer = request.answer
        if isinstance(answer, Frame):
            self._outlet.put(answer)
        elif isinstance(answer, bytes):
            self._outlet.put(_response(request, answer) + answer)
            if isinstance(answer, FinalResponse):
                self._outlet.hang_up()
        elif isinstance(answer, CloseConnection):
            self._outlet.hang_up()
        elif answer is not None:
            self._outlet.flush()
            self.stream = answer
            answer.begin(self._outlet.sink)
            return self.stream is None
        self._sent()
        return True

    def _sent(self) -> None:
        request = self._under_way.popleft()
        self._answer_bytes -= _size(request.answer)
        self._outlet.answered(request)


def _response(request: ApiRequest, body: bytes) -> bytes:
    """Length, correlation id and, in flexible versions, an empty set of tags. ApiVersions never has tags there, so that
    clients can read the response to an unknown version (KIP-511)."""
    api = request.api
    if api is not None and request.version >= api.flexible and request.api_key != ApiKey.API_VERSIONS:
        return _RESPONSE_TAGGED.pack(5 + len(body), request.correlation, 0)
    return _RESPONSE.pack(4 + len(body), request.correlation)


def _size(answer: Answer) -> int:
    return len(answer) if isinstance(answer, bytes) else 0


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _name(request: ApiRequest) -> str:
    name = request.api.name if request.api else "API"
    return f"{name} (key {request.api_key}, version {request.version})"


def _drop(future: asyncio.Future[Any]) -> None:
    """Discards a response that is no longer needed; a stream is notified, and an exception counts as retrieved."""
    if not future.cancelled() and future.exception() is None and hasattr(stream := future.result(), "begin"):
        stream.lost()
