"""The types that connections, handlers and the relay share: requests, responses, and entries of the table of APIs.

A `SocketServer` has a table of `Api`s. `server.apis.table` builds the table. The relay replaces some handlers
(Metadata, ListGroups, ...), and supplies the handler of the requests for APIs that are not in the table.

A handler receives an `ApiRequest` and returns an *answer*, or an awaitable of one. An answer is one of:

- ``bytes``: the body of the response; the connection adds length, correlation id and tags;
- `FinalResponse`: the body of a response after which the connection is closed;
- `Frame`: a whole response with its length field, such as a broker's response that is forwarded unread;
- `Stream`: a response that is written piece by piece after all earlier responses of the connection;
- None: no response (Produce with acks=0);
- `CLOSE_CONNECTION`: the connection is closed after the earlier responses have been sent.

Instead of an awaitable, a handler may return a `DeferredResponse`, which needs no task, or a `DeferredWork`, which runs
in the codec thread.

Handlers run on the event loop. If a handler or its awaitable raises `InvalidRequest`, the server closes the connection,
as a broker does. Any other exception is a defect: the server logs the exception and closes the connection.

Order: responses are sent in the order of the requests. A request starts when each earlier request of its connection has
been answered, has the same `Concurrency` as this request, or is `UNORDERED`. So commits run concurrently, and a fetch
sees all commits that the client sent before it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.schema_codec import Cursor

NEVER_FLEXIBLE: Final = 32_767
"""The value of `Api.flexible` if no version of the API has tagged fields."""

_HEADER: Final = struct.Struct(">hhih")
_HEADER_AT: Final = 4
_CLIENT_ID_AT: Final = _HEADER_AT + _HEADER.size


class Concurrency(enum.Enum):
    """The class of an API's requests. Requests of one connection run concurrently if they have the same class (except
    `EXCLUSIVE`); `UNORDERED` requests run concurrently with all others."""

    EXCLUSIVE = enum.auto()
    UNORDERED = enum.auto()
    """Requests that neither change state nor read changing state. These requests do not wait for other requests, and
    other requests do not wait for them. This matters for librdkafka's Admin client: before every commit it looks up the
    coordinator, over the connection that also carries its commits."""
    COMMITS = enum.auto()
    FETCHES = enum.auto()
    FORWARDED = enum.auto()
    """Requests that the relay forwards to a broker. The relay sends them over one connection, which keeps their
    order."""


class Frame(bytes):
    """A whole response with its length field."""


class FinalResponse(bytes):
    """The body of the last response of a connection."""


class CloseConnection(enum.Enum):
    """The type of `CLOSE_CONNECTION`."""

    CLOSE = enum.auto()


CLOSE_CONNECTION: Final = CloseConnection.CLOSE


class Sink(Protocol):
    """The destination of a `Stream`."""

    @property
    def full(self) -> bool:
        """Whether the client reads bytes more slowly than the stream writes them. If the value is true, the stream must
        stop writing until `Stream.resume` is called."""
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes the next bytes of the response. The first bytes of a response are its length field. After the call,
        the caller may reuse the memory of ``data`` if `ClientConnection.unsent` is 0. Otherwise the transport may still
        refer to this memory."""
        ...

    def end(self) -> None:
        """Ends the response. After this call, the stream must not write to this sink."""
        ...

    def abort(self) -> None:
        """Closes the connection, because the response cannot be completed."""
        ...


class Stream(Protocol):
    """A response written piece by piece."""

    def begin(self, sink: Sink) -> None:
        """Starts the response; called when all earlier responses have been sent. May be called while the handler's
        result is still being processed."""
        ...

    def pause(self) -> None:
        """Stops writing, because the sink is full. Called only between `begin` and the sink's `end`."""
        ...

    def resume(self) -> None:
        """Continues writing after `pause`."""
        ...

    def lost(self) -> None:
        """Discards the response, because the client has disconnected. This may happen before or after `begin`."""
        ...


Answer: TypeAlias = bytes | Stream | CloseConnection | None


class DeferredResponse(NamedTuple):
    """A response that is computed from the result of an awaitable: ``answer(await result)``."""

    result: Awaitable[Any]
    answer: Callable[[Any], Answer | Awaitable[Answer]]
    on_error: Any = None
    """The argument of ``answer`` if ``result`` raises an unexpected exception, which the pipeline logs. If ``on_error``
    is None, the pipeline closes the connection and does not call ``answer``."""


class DeferredWork(NamedTuple):
    """A computation ``work`` that runs in the codec thread. The handler's result is ``result(work())``. No later
    request of the connection starts before ``work`` has ended."""

    work: Callable[[], Any]
    """Runs in the codec thread, so it must not use the event loop."""
    result: Callable[[Any], HandlerResult]


HandlerResult: TypeAlias = Answer | Awaitable[Answer] | DeferredResponse | DeferredWork


class ServerInfo(Protocol):
    """The part of the server that handlers use."""

    @property
    def settings(self) -> ManagerSettings: ...

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Returns the lowest and the highest version of each API, as ApiVersions reports them."""
        ...


class ClientConnection(Protocol):
    """The part of a client's connection that handlers use (`socket_server.ServerConnection`)."""

    principal: str | None
    """The client's principal; None until the client has logged in. Without authentication, the principal is
    ANONYMOUS."""
    node_id: int | None
    """The node id of the broker that the client's port represents; None for the manager's own port."""
    state: dict[str, Any]
    """State that handlers and the relay store for this connection, under different keys."""
    on_lost: list[Callable[[], None]]
    """Functions that are called once, after either side has closed the connection."""

    @property
    def service(self) -> ServerInfo: ...

    @property
    def closed(self) -> bool:
        """Whether the connection has been closed."""
        ...

    @property
    def unsent(self) -> int:
        """Size of the responses that the socket has not accepted yet, in bytes."""
        ...

    def logged_in(self, principal: str, session_seconds: float | None = None) -> None:
        """Records a login. The login expires after ``session_seconds``; it never expires if ``session_seconds`` is
        None."""
        ...

    def login_failed(self, mechanism: str) -> None:
        """Counts a failed login."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...


class ApiRequest:
    """A request: its decoded header, and its frame with the length field, which can be forwarded."""

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
        """The result of `Api.prepare` for a large request; None for a small request."""
        self.since = 0.0
        """Arrival time, by the event loop's clock."""

    @property
    def client_id(self) -> str | None:
        """The client id in the header; None if the header contains no client id. Raises `InvalidRequest`."""
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
            raise InvalidRequest("request header", "the frame ends inside it")
        length: int = _HEADER.unpack_from(self.frame, _HEADER_AT)[3]
        if length < -1:
            raise InvalidRequest("request header", f"a client id of {length} bytes")
        return length


_START: Final = struct.Struct(">hhi")

Handler: TypeAlias = Callable[[ApiRequest], HandlerResult]


class Api(NamedTuple):
    """An entry of the table: one API that the listener answers itself."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible: int
    """The first version whose header has tagged fields, or `NEVER_FLEXIBLE`."""
    handle: Handler
    concurrency: Concurrency = Concurrency.EXCLUSIVE
    before_login: bool = False
    """Whether a client may use the API before the client has logged in."""
    prepare: Callable[[ApiRequest], Any] | None = None
    """Decodes the request. If the request is large, the pipeline calls this function in the codec thread before
    ``handle``. Later requests of the connection wait until this function has ended. Raises `InvalidRequest`."""
