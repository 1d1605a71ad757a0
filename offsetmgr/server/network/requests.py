"""The types that handlers of requests and the relay share: requests, clients, answers, entries of the table of APIs.

A handler receives an `ApiRequest` and returns an *answer*, or an awaitable of one. An answer is one of:

- ``bytes``: the body of the response; the connection adds length, correlation id and tags;
- `FinalResponse`: the body of a response after which the connection is closed;
- `Frame`: a whole response with its length field, such as a broker's response that is forwarded unread;
- `Stream`: a response that is written piece by piece after all earlier responses of the connection;
- None: no response (Produce with acks=0);
- `CLOSE_CONNECTION`: the connection is closed after the earlier responses have been sent.

Instead of an awaitable, a handler may return a `DeferredResponse`, which needs no task, or a `DeferredWork`, for
which the later requests of the connection wait.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.schema_codec import Cursor
from offsetmgr.server.network.turns import EventLoopTurns, TurnTaker

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
    other requests wait for them only while the size of their response is unknown. This matters for librdkafka's Admin
    client: before every commit it looks up the coordinator, over the connection that also carries its commits."""
    COMMITS = enum.auto()
    FETCHES = enum.auto()
    FORWARDED = enum.auto()
    """Requests that the relay forwards to a broker. The relay sends them over one connection, which keeps their
    order."""


class Service(Protocol):
    """The server that a client is connected to, as handlers see it; `SocketServer` implements it."""

    settings: ManagerSettings
    held_bytes: int
    """Size of the unanswered requests of all clients, and of the requests that are kept for clients that have
    disconnected."""
    turns: EventLoopTurns

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Returns the lowest and the highest version of each API, as in ApiVersions."""

    def login_failed(self, client: ClientSession, mechanism: str) -> None:
        """Records a failed login. ``mechanism`` is a supported mechanism or ``unsupported``, never text from the
        client."""

    def cut(self, client: ClientSession, why: str) -> None:
        """Closes a connection at once, and counts it by the reason."""


class ClientSession(TurnTaker):
    """One client's connection, as handlers see it: the login, and what handlers store for the connection."""

    def __init__(self, service: Service, node_id: int | None) -> None:
        self.service = service
        self.node_id = node_id
        """The node id of the broker that the client's port represents; None for the manager's own port."""
        self.principal: str | None = None
        """The client's principal; None until it has logged in. Without authentication it is ANONYMOUS."""
        self.waits_for_check = False
        """Whether the client has sent its password. The time limit of a login does not count the wait for the check."""
        self.peer = ""
        """The client's IP address."""
        self.network = ""
        """The part of the address that limits for each address count; see `client_network`."""
        self.state: dict[str, Any] = {}
        """State that handlers and the relay store for this connection, under different keys."""
        self.on_lost: list[Callable[[], object]] = []
        """Functions that are called once, after either side has closed the connection."""
        self.collected_bytes = 0
        """Size of the parts of brokers' responses that the relay has received, but not passed on."""
        self.stalled_since: float | None = None
        """When the client stopped reading its responses; None while the client reads its responses."""
        self._loop = asyncio.get_running_loop()

    def logged_in(self, principal: str) -> None:
        """Records a login."""
        self.principal = principal

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the connection has been closed."""

    @property
    @abstractmethod
    def unsent(self) -> int:
        """Size of the responses that the socket has not accepted yet."""

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes of a stream, or the queued responses of a connection. After the call, the caller may reuse the
        memory of ``data`` if `unsent` is 0. Otherwise the transport may still refer to this memory."""

    @abstractmethod
    def abort(self) -> None:
        """Closes the connection at once, even with requests in progress."""


class Frame(bytes):
    """A whole response with its length field."""


class FinalResponse(bytes):
    """The body of the last response of a connection."""


class CloseConnection(enum.Enum):
    """The type of `CLOSE_CONNECTION`."""

    CLOSE = enum.auto()


CLOSE_CONNECTION: Final = CloseConnection.CLOSE


class Stream(Protocol):
    """A response written piece by piece."""

    def begin(self, client: ClientSession, end: Callable[[], None]) -> None:
        """Starts the response, whose bytes the stream writes with `ClientSession.write`, the length field first. While
        `ClientSession.stalled_since` is not None, the stream must not write. After its last byte, the stream calls
        ``end`` once. Called when all earlier responses have been sent, possibly while the handler's result is still
        being processed."""

    def pause(self) -> None:
        """Stops writing, because the client reads too slowly. Called only between `begin` and the call of ``end``."""

    def resume(self) -> None:
        """Continues writing after `pause`."""

    def lost(self) -> None:
        """Discards the response, because the client has disconnected. This may happen before or after `begin`."""


Answer: TypeAlias = bytes | Stream | CloseConnection | None


class DeferredResponse(NamedTuple):
    """A response that is computed from the result of an awaitable: ``answer(await result)``."""

    result: Awaitable[Any]
    answer: Callable[[Any], Answer | Awaitable[Answer]]
    on_error: Any = None
    """The argument of ``answer`` if ``result`` raises an unexpected exception, which the pipeline logs. If ``on_error``
    is None, the pipeline closes the connection and does not call ``answer``."""


class DeferredWork(NamedTuple):
    """A computation that must end before any later request of the connection starts. The handler's result is
    ``result`` of its value."""

    work: Callable[[], Any] | Coroutine[Any, Any, Any]
    """A function runs in the codec thread, so it must not use the event loop."""
    result: Callable[[Any], HandlerResult]


HandlerResult: TypeAlias = Answer | Awaitable[Answer] | DeferredResponse | DeferredWork


class ApiRequest:
    """A request: its decoded header, and its frame with the length field, which can be forwarded."""

    __slots__ = (
        "answer", "answered", "api", "api_key", "connection", "correlation", "frame", "prepared", "since", "version",
    )  # fmt: skip

    def __init__(self, connection: ClientSession, frame: bytes) -> None:
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

    def cursor(self, *, flexible: bool) -> Cursor:
        """Returns a cursor at the start of the body. Raises `InvalidRequest`."""
        if len(self.frame) < _CLIENT_ID_AT:
            raise InvalidRequest("request header", "the frame ends inside it")
        length: int = _HEADER.unpack_from(self.frame, _HEADER_AT)[3]  # of the client id; -1 if there is none
        if length < -1:
            raise InvalidRequest("request header", f"a client id of {length} bytes")
        cursor = Cursor(self.frame, _CLIENT_ID_AT, flexible=flexible)
        cursor.take(max(length, 0))
        cursor.tags()
        return cursor


_START: Final = struct.Struct(">hhi")

Handler: TypeAlias = Callable[[ApiRequest], HandlerResult]


class Api(NamedTuple):
    """An entry of the table: one API that the listener answers itself."""

    key: int
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
