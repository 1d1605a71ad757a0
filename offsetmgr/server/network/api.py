"""The types shared by connections, handlers and the relay: requests, responses, and the table of APIs.

A `SocketServer` is built from a table of `Api`s (``handlers`` has the endpoint's) and, for every API that is not in it,
a `ForwardingHandler` or nothing.  The relay replaces entries of the table (Metadata, JoinGroup, ...) and gives the
fallback.

A handler takes a `ApiRequest` and gives an *answer*, or an awaitable of one.  Answers are

- ``bytes``: the body; the connection puts length, correlation id and tags in front;
- `FinalResponse`: the same, and the connection is closed behind it;
- `Frame`: a whole response as it goes out, length field first: what a broker answered, forwarded unread;
- `Stream`: a response that is written piece by piece once all earlier ones of the connection have gone out;
- None: no response at all (Produce with acks=0);
- `HANG_UP`: the connection is closed after the answers before it have been sent.

Instead of an awaitable of an answer a handler may give a `DeferredResponse`, which needs no task, or a `DeferredWork`,
which is worked out in the codec thread.

Handlers run on the event loop.  A handler that raises `InvalidRequest` (or whose awaitable does) ends its connection,
as malformed bytes do at a broker; any other exception is a defect: it is logged and ends the connection too.

Order: answers leave in the order of the requests.  A request starts when nothing before it on its connection is
unanswered, or when all of that is of its own `Concurrency` (or of `Concurrency.BESIDE`); so commits run side by side,
and a fetch sees the commit that was sent before it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.server.network.limits import ServerLimits

_HEADER: Final = struct.Struct(">hhih")
_HEADER_AT: Final = 4
_CLIENT_ID_AT: Final = _HEADER_AT + _HEADER.size


class Concurrency(enum.Enum):
    """Requests of one connection that may run concurrently: those of the same lane (except `ALONE`), and those of
    `UNORDERED` with any of them."""

    EXCLUSIVE = enum.auto()
    UNORDERED = enum.auto()
    """Requests that neither change state nor read changing state: they wait for nothing and block nothing. librdkafka's
    Admin client asks for the coordinator before every commit, on the connection of its earlier commits."""
    COMMITS = enum.auto()
    FETCHES = enum.auto()
    FORWARDED = enum.auto()
    """Forwarded requests, on one upstream connection that keeps their order."""


class Frame(bytes):
    """A whole response, its length field first."""


class FinalResponse(bytes):
    """The body of the last response of a connection."""


class CloseConnection(enum.Enum):
    """The type of `HANG_UP`."""

    HANG_UP = enum.auto()


HANG_UP: Final = CloseConnection.HANG_UP


class Sink(Protocol):
    """The destination of a `Stream`."""

    @property
    def full(self) -> bool:
        """Whether the client takes bytes more slowly than they arrive; if so, stop until `Stream.resume`."""
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes the next bytes of the response, beginning with its length field. Copied only if the socket is full, so
        the buffer may be reused afterwards."""
        ...

    def end(self) -> None:
        """The response is complete; the next responses follow. Nothing may be written to the sink afterwards."""
        ...

    def break_off(self) -> None:
        """The response cannot be completed: the connection is closed."""
        ...


class Stream(Protocol):
    """A response written piece by piece."""

    def begin(self, sink: Sink) -> None:
        """This response's turn has come. May be called at once, while the handler's result is being processed."""
        ...

    def pause(self) -> None:
        """The sink is full. Only between `begin` and the sink's end."""
        ...

    def resume(self) -> None:
        """The sink is not full any more."""
        ...

    def lost(self) -> None:
        """The client is gone, before or after `begin`: the response is no longer needed."""
        ...


Answer: TypeAlias = bytes | Stream | CloseConnection | None


class DeferredResponse(NamedTuple):
    """A response computed from a future's result: ``answer(await result)``."""

    result: Awaitable[Any]
    answer: Callable[[Any], Answer | Awaitable[Answer]]
    on_error: Any = None
    """The argument for ``answer`` if ``result`` raises, which is a defect and is logged. If it is None, the connection
    is closed instead."""


class DeferredWork(NamedTuple):
    """Work for the codec thread before the request has an outcome: ``outcome(work())``. No later request of the
    connection starts before that outcome is known."""

    work: Callable[[], Any]
    """Must not touch the event loop."""
    outcome: Callable[[Any], Outcome]


Outcome: TypeAlias = Answer | Awaitable[Answer] | DeferredResponse | DeferredWork


class ServerInfo(Protocol):
    """The part of the server that handlers use."""

    @property
    def limits(self) -> ServerLimits: ...

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Returns the lowest and the highest version of each API, as ApiVersions reports them."""
        ...


class ServerPort(Protocol):
    """The part of a listening port that handlers use."""

    @property
    def node_id(self) -> int | None:
        """The broker that the port represents, or None."""
        ...


class ClientConnection(Protocol):
    """The part of a client's connection that handlers use (`offsetmgr.server.network.connection.ServerConnection`)."""

    @property
    def service(self) -> ServerInfo: ...

    @property
    def listener(self) -> ServerPort: ...

    @property
    def principal(self) -> str | None:
        """The name of the client; None until it has logged in. Without authentication every client is ANONYMOUS."""
        ...

    client_software: tuple[str, str] | None
    """Name and version, as ApiVersions (3 and later) reports them."""

    @property
    def state(self) -> dict[str, Any]:
        """State that handlers and the proxy keep for this connection, each under its own name."""
        ...

    @property
    def on_lost(self) -> list[Callable[[], None]]:
        """Functions that the connection calls once, after it was closed."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection has been closed."""
        ...

    @property
    def unsent(self) -> int:
        """Responses that have not been sent yet."""
        ...

    def logged_in(self, principal: str, session_seconds: float | None = None) -> None:
        """Records a login that ends after ``session_seconds`` (None: never)."""
        ...

    def login_failed(self, mechanism: str) -> None:
        """Counts a failed login."""
        ...

    def cut(self) -> None:
        """Closes the connection at once."""
        ...


class ApiRequest:
    """A request and the positions of its parts. ``frame`` is the received frame with its length field, for
    forwarding."""

    __slots__ = (
        "answer", "answered", "api", "api_key", "connection", "correlation", "frame", "prepared", "since", "version",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, frame: bytes) -> None:
        self.connection = connection
        self.frame = frame
        self.api_key: int
        self.version: int
        self.correlation: int
        self.api_key, self.version, self.correlation = _START.unpack_from(frame, _HEADER_AT)
        self.api: Api | None = None
        self.answer: Answer = None
        self.answered = False
        self.prepared: Any = None
        """The result of `Api.prepare`, for a large request."""
        self.since = 0.0
        """Arrival time, by the event loop's clock."""

    @property
    def client_id(self) -> str | None:
        """Raises `InvalidRequest`."""
        length = self._client_id_length()
        if length < 0:
            return None
        return self.frame[_CLIENT_ID_AT : _CLIENT_ID_AT + length].decode(errors="replace")

    def body(self, *, flexible: bool) -> int:
        """The position of the body in the frame. Raises `InvalidRequest`."""
        cursor = Cursor(self.frame, _CLIENT_ID_AT, flexible=flexible)
        cursor.take(max(self._client_id_length(), 0))
        cursor.tags()
        return cursor.at

    def _client_id_length(self) -> int:
        if len(self.frame) < _CLIENT_ID_AT:
            raise InvalidRequest("request header", "it ends too early")
        length: int = _HEADER.unpack_from(self.frame, _HEADER_AT)[3]
        if length < -1:
            raise InvalidRequest("request header", f"a client id of {length} bytes")
        return length


_START: Final = struct.Struct(">hhi")

Handler: TypeAlias = Callable[[ApiRequest], Outcome]


class Api(NamedTuple):
    """One API that the listener answers itself."""

    key: int
    name: str
    lowest: int
    highest: int
    flexible: int
    """The first version with tagged fields in its header (32767 if there is none)."""
    handle: Handler
    lane: Concurrency = Concurrency.EXCLUSIVE
    before_login: bool = False
    """Whether a client may use it before it has logged in."""
    advertised: bool = True
    """Whether ApiVersions lists it."""
    prepare: Callable[[ApiRequest], Any] | None = None
    """Decodes the request. The pipeline calls it in the codec thread, before ``handle``, if the request is large; later
    requests of the connection wait. Raises `InvalidRequest`."""


class ForwardingHandler(Protocol):
    """Handles requests for APIs that are not in the table, and for unsupported versions of those that are."""

    def handle(self, request: ApiRequest) -> Outcome:
        """Called with the requests of a logged-in connection, in order, all in `Concurrency.FORWARDED`."""
        ...
