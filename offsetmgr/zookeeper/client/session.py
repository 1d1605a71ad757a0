"""`ZookeeperSession`: bulk reads, transactions and watches. It enforces timeouts and raises the errors of
`offsetmgr.core.errors`.

All paths are relative to the chroot. The modules in `offsetmgr.zookeeper.nodes` define the content of the nodes.

Ordering contract: the server processes the requests of one session in the order in which the client sent them. A read
that is sent after a transaction therefore shows whether the transaction took effect. If the connection was lost between
the two requests, the caller must send a `sync` before the read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as requests

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import Conflict, NotAuthorized, OffsetMgrError, ServerError, value_of
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.connection import (
    OPEN,
    Acl,
    AclEntry,
    Completion,
    KazooConnection,
    acls_for,
    is_masked,
    parse_connect,
)
from offsetmgr.zookeeper.client.jute import NodeData, Op, ZookeeperError
from offsetmgr.zookeeper.client.transactions import (
    BULK_DATA,
    BULK_NAMES,
    BulkRead,
    CheckVersion,
    Create,
    Delete,
    OperationState,
    SetData,
    SingleRead,
    TransactionOperation,
    TransactionRequest,
    TransactionResult,
    encode_operation,
    failed_operation,
    split_into_requests,
)

T = TypeVar("T")

Node: TypeAlias = NodeData | OffsetMgrError | None
"""The result of reading one node: its data, None if the node does not exist, or the error."""

Children: TypeAlias = list[str] | OffsetMgrError | None
"""The result of listing the children of one node: their names, None if the node does not exist, or the error."""

# The number of requests in flight is high enough to keep the server busy while the client decodes responses, and low
# enough to limit memory.
MAX_MULTI_READS_IN_FLIGHT: Final = 6

MAX_SINGLE_READS_IN_FLIGHT: Final = 1000

_AUTH_HINT: Final = Advice(
    "set zookeeper.auth=digest:USER:PASSWORD (or sasl:USER:PASSWORD) in the {command_config} file, for a user that the"
    " ACL names"
)

CONNECTION_LOST: Final = (
    kazoo.ConnectionLoss,
    kazoo.SessionExpiredError,  # also ConnectionClosedError, its subclass
    kazoo.SessionMovedError,
    kazoo.OperationTimeoutError,
)

_NODE_ERRORS: Final = (kazoo.NoNodeError, kazoo.NoAuthError)
"""The errors of a request that concern one node."""

_NO_MULTI_READS: Final = (kazoo.UnimplementedError,)
"""The error of a multi-read on a server that does not support multi-reads."""

ResponseQueue: TypeAlias = SimpleQueue[tuple[int, Any, Exception | None]]
"""Queue for responses. Each item contains the number of a request, the result (None if the request failed), and the
exception (None if the request succeeded)."""


WatchCallback: TypeAlias = Callable[[str], None]
"""The callback of a watch, which is called once with the watched path. kazoo's watch thread runs the callback, so the
callback must not block."""

_MAX_TRANSACTIONS_IN_FLIGHT: Final = 10
"""As many as a batch of offsets usually needs, so that the server executes them while the client decides about the next
batch."""

_NEEDED_PERMISSIONS: Final[dict[type, str]] = {
    Create: "create it (permission c of its parent)",
    SetData: "write it (w)",
    Delete: "delete it (d of its parent)",
    CheckVersion: "read it (r)",
}
"""The permission that each kind of operation needs, worded as part of an error's text."""


class _ConnectionLost(Exception):
    """More consecutive connections were lost than the caller of `_send_reads` allows."""


class ZookeeperSession(Closeable):
    """A session with a ZooKeeper ensemble, under a chroot. Construction does no I/O; the first call connects.

    A call fails if no response arrives for ``config.timeout_ms``. If the connection is lost, the session opens a new
    connection and repeats the reads that got no response, until this timeout expires. A failed read is an error, never
    an empty result. All methods raise `Unreachable`, `TimedOut` and `AuthenticationFailed`. Methods that read or write
    nodes also raise `ServerError` if the chroot does not exist.
    """

    def __init__(
        self, connect: str, config: ConnectionConfig | None = None, *, session_timeout_ms: int | None = None
    ) -> None:
        """``connect`` is ``h1:2181,h2:2181/chroot``. Raises `InvalidUri`.

        With ``session_timeout_ms`` the object has exactly one session, and every method raises `SessionExpired` after
        this session has expired. Set ``session_timeout_ms`` for ephemeral nodes, and for writes that the server must
        reject after the session has expired.
        """
        self.hosts, self.chroot = parse_connect(connect)
        self.config = config or ConnectionConfig()
        self._connection = KazooConnection(self.hosts, self.config, session_timeout_ms)
        self._timeout_s = self._connection.timeout_s
        self._multi_read: bool | None = None
        self._multi_read_lock = threading.Lock()

    @property
    def connect(self) -> str:
        """The connect string, chroot included."""
        return self.hosts + self.chroot

    @property
    def session_id(self) -> int | None:
        """The id that the server assigned to the current session; None while disconnected."""
        return self._connection.session_id

    @property
    def granted_timeout_s(self) -> float | None:
        """The session timeout in seconds that the server granted; None before the first connection, and always None
        without ``session_timeout_ms``."""
        return self._connection.granted_timeout_s

    def close(self) -> None:
        """Ends the session; the object cannot be used afterwards."""
        self._connection.close()

    # --- reads ------------------------------------------------------------------------------------

    def get_many(self, paths: Sequence[str]) -> list[Node]:
        """Reads the data of many nodes; the results are in the order of ``paths``."""
        return self._begin(Op.GET, paths)()

    def children_many(self, paths: Sequence[str]) -> list[Children]:
        """Lists the children of many nodes; the results are in the order of ``paths``, but the names of a node's
        children are not sorted."""
        return self._begin(Op.CHILDREN, paths)()

    def get(self, path: str) -> NodeData | None:
        """Reads one node's data; returns None if the node does not exist. Also raises `NotAuthorized`."""
        return value_of(self.get_many([path])[0])

    def children(self, path: str) -> list[str] | None:
        """Lists one node's children; returns None if the node does not exist. Also raises `NotAuthorized`."""
        return value_of(self.children_many([path])[0])

    def sync(self) -> None:
        """Waits until the server has caught up with the ensemble's leader. Later reads show every write that was
        completed before this call."""
        list(self._send_reads([requests.Sync(self.chroot or "/")], 1))

    def begin_get_many(self, paths: Sequence[str]) -> Callable[[], list[Node]]:
        """Sends the reads of `get_many`. Returns a function that waits for their responses and returns the nodes.

        Both raise the errors of `get_many`. From a server before 3.6, this method reads the nodes before it returns.
        """
        return self._begin(Op.GET, paths, at_once=len(paths))

    def _begin(self, op: Op, paths: Sequence[str], at_once: int = MAX_MULTI_READS_IN_FLIGHT) -> Callable[[], list[Any]]:
        """Sends the first ``at_once`` multi-reads of the paths, or reads one path per request if the server does not
        support multi-reads. Returns a function that returns the results."""
        if not paths:
            return list
        # If the chroot does not exist, none of the nodes exists. A mistyped chroot that is not read would look like a
        # cluster without groups.
        chroot = self.chroot
        full = (chroot + path if path != "/" else chroot or "/" for path in (*(("/",) if chroot else ()), *paths))
        raw = [path.encode() for path in full]
        if not self.supports_bulk_reads():
            results = self._single_reads(op, raw)
            return lambda: self._results_by_path(results, paths)
        kind: Any = BULK_DATA if op is Op.GET else BULK_NAMES
        reads = [BulkRead.of(kind, chunk) for chunk in split_into_requests(raw)]
        responses = self._send_reads(reads, at_once, expected=_NO_MULTI_READS)

        def answers() -> list[Any]:
            try:
                found = list(chain.from_iterable(self._decoded(reads, responses)))
            except _NO_MULTI_READS:  # the session has moved to an older server
                self._multi_read = False
                self._connection.await_replacement()
                found = self._single_reads(op, raw)
            return self._results_by_path(found, paths)

        return answers

    def _results_by_path(self, results: list[Any], paths: Sequence[str]) -> list[Any]:
        """Returns the results of ``paths``, with errors instead of codes. ``results`` are the results of
        `_encoded_paths`. Raises `ServerError` if the chroot does not exist."""
        if self.chroot and results.pop(0) == ZookeeperError.NO_NODE:
            raise ServerError(
                f"ZooKeeper at {self.hosts}",
                f"the chroot {self.chroot} does not exist",
                "check the path after the host names; the cluster's first broker creates it when it starts",
            )
        return [
            found if found.__class__ is not int else self._node_error(found, path)
            for found, path in zip(results, paths, strict=True)
        ]

    def _single_reads(self, op: Op, paths: list[bytes]) -> list[Any]:
        """Reads one path per request, with many requests in flight, for servers before 3.6."""
        decode = jute.node_data if op is Op.GET else jute.child_names
        results: list[Any] = [None] * len(paths)
        reads = [SingleRead(op, path) for path in paths]
        for index, answer in self._send_reads(reads, MAX_SINGLE_READS_IN_FLIGHT, expected=_NODE_ERRORS):
            failed = isinstance(answer, Exception)
            results[index] = int(answer.code) if failed else self._decode(decode, *answer)
        return results

    def supports_bulk_reads(self) -> bool:
        """Whether the server supports `begin_reads`, as servers since 3.6 do. The first call sends a multi-read to find
        out.

        A server before 3.6 returns UnimplementedError and then closes the connection. The client may notice the closed
        connection before it has read the response. Therefore, if two consecutive connections are lost, this method also
        returns False. If the server supports multi-reads nevertheless, the result False does no harm, because single
        reads work on every server. After UnimplementedError this method waits for the next connection, because a
        transaction sent on the old connection would have an unknown outcome.
        """
        with self._multi_read_lock:
            if self._multi_read is None:
                try:
                    probe = BulkRead.of(BULK_DATA, [(self.chroot or "/").encode()])
                    ((_, answer),) = self._send_reads([probe], 1, max_losses=1, expected=_NO_MULTI_READS)
                    self._multi_read = not isinstance(answer, Exception)
                    if not self._multi_read:
                        self._connection.await_replacement()
                except _ConnectionLost:
                    self._multi_read = False
            return self._multi_read

    # --- sending, and error handling -----------------------------------------------------------------

    def _send_reads(
        self,
        reads: Sequence[Any],
        max_in_flight: int,
        *,
        max_losses: int | None = None,
        expected: tuple[type[Exception], ...] = (),
    ) -> Iterator[tuple[int, Any]]:
        """Sends requests that change nothing. Returns an iterator over their responses in the order of arrival.

        At most ``max_in_flight`` requests are open at a time; the first are sent at once. The first item of each result
        is the index of a request. The second item is the response to this request, or the exception that the server
        returned for it if its type is in ``expected``. The error of any other exception is raised. If the connection is
        lost, requests without a response are sent again on the next connection. Raises an error if no response arrives
        for the whole timeout, and `_ConnectionLost` if more than ``max_losses`` consecutive connections are lost.
        """
        self._connection.ready(time.monotonic() + self._timeout_s)
        inbox: ResponseQueue = SimpleQueue()
        waiting = list(range(len(reads) - 1, -1, -1))
        in_flight: dict[int, int] = {}
        tags = count()

        def send() -> None:
            while waiting and len(in_flight) < max_in_flight:
                tag = next(tags)
                in_flight[tag] = waiting.pop()
                self._connection.send(reads[in_flight[tag]], Completion(inbox, tag))

        def responses() -> Iterator[tuple[int, Any]]:
            deadline, lost = time.monotonic() + self._timeout_s, 0
            while in_flight:
                try:
                    answered, value, exception = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
                except Empty:
                    raise self._connection.no_response_error() from None
                index = in_flight.pop(answered, None)
                if index is None:  # kazoo can report one request twice when its connection closes
                    continue
                if not isinstance(exception, CONNECTION_LOST):
                    lost = 0
                    send()
                    if exception is not None and not isinstance(exception, expected):
                        raise self._request_error(exception)
                    yield index, value if exception is None else exception
                    deadline = time.monotonic() + self._timeout_s
                    continue
                waiting.append(index)
                if not in_flight:  # counts a lost connection once, even if many requests were in flight
                    lost += 1
                    if max_losses is not None and lost > max_losses:
                        raise _ConnectionLost
                    self._connection.ready(deadline)
                send()

        send()
        return responses()

    def _decode(self, decode: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return decode(*arguments)
        except (jute.ZookeeperProtocolError, UnicodeDecodeError) as broken:
            raise ServerError(
                f"ZooKeeper at {self.hosts}", f"the response does not follow the protocol: {broken}"
            ) from broken

    def _node_error(self, code: int, path: str, needed: str = "read this node") -> OffsetMgrError | None:
        """Returns the error for the result code of one node. Returns None if the code means that the node does not
        exist.

        ``needed`` names the operation that the ACL does not allow; it becomes part of the error's text.
        """
        if code == ZookeeperError.NO_NODE:
            return None
        if code == ZookeeperError.NO_AUTH:
            return self._no_auth_error(path, needed)
        known = {member.value: member.name for member in ZookeeperError}
        return self._server_error(known.get(code, f"error {code}"), path)

    def _server_error(self, name: str, path: str) -> OffsetMgrError:
        return ServerError(f"ZooKeeper node {self.chroot}{path}", f"ZooKeeper returned {name}")

    def _no_auth_error(self, path: str, needed: str) -> NotAuthorized:
        """The error for a missing permission; it names the identity of this session."""
        return NotAuthorized(
            f"ZooKeeper node {self.chroot}{path}",
            f"its ACL does not allow this (NO_AUTH): {self._connection.identity} may not {needed}",
            _AUTH_HINT,
        )

    def _request_error(self, exception: Exception) -> OffsetMgrError:
        """Translates an exception that concerns a whole request, not a single node."""
        if isinstance(exception, kazoo.AuthFailedError | kazoo.SessionClosedRequireSaslError):
            return self._connection.authentication_error()
        if isinstance(exception, kazoo.NoAuthError):
            return NotAuthorized(
                f"ZooKeeper at {self.hosts}",
                f"an ACL does not allow this for {self._connection.identity} (NO_AUTH)",
                _AUTH_HINT,
            )
        return ServerError(f"ZooKeeper at {self.hosts}", f"{type(exception).__name__} {exception}".rstrip())

    # --- writes -----------------------------------------------------------------------------------

    def transaction(self, operations: Sequence[TransactionOperation]) -> TransactionResult:
        """Sends the operations as one transaction, which the server executes entirely or not at all."""
        return self.transactions([operations])[0]

    def transactions(self, batches: Sequence[Sequence[TransactionOperation]]) -> list[TransactionResult]:
        """Sends transactions in order, without waiting for the response to each, and returns the result of each
        transaction.

        Raises an error only if nothing was sent. If the connection is lost after a transaction was sent, the results of
        the affected transactions contain the error. The session never repeats a transaction. If a transaction got no
        response, only a later read of the nodes can show whether the server executed the transaction.
        """
        return self.begin_transactions(batches)()

    def begin_transactions(
        self, batches: Sequence[Sequence[TransactionOperation]]
    ) -> Callable[[], list[TransactionResult]]:
        """Sends the first of these transactions. Returns a function that sends the others, waits for all responses and
        returns the results of `transactions`.

        Raises an error if the session cannot connect. The returned function raises no error.
        """
        self._connection.ready(time.monotonic() + self._timeout_s)
        acls = self._acls(batches)
        results = [_acl_failure(operations, acls) for operations in batches]
        known = {path: acl for path, acl in acls.items() if not isinstance(acl, OffsetMgrError)}
        sent = {
            n: TransactionRequest([encode_operation(op, self.chroot, known.get(op.path)) for op in operations])
            for n, operations in enumerate(batches)
            if results[n] is None
        }
        inbox: ResponseQueue = SimpleQueue()
        unsent = iter(sent.items())

        def send(count: int) -> None:
            for index, request in islice(unsent, count):
                completion = Completion(inbox, index)
                try:
                    self._connection.send(request, completion)
                except OffsetMgrError as ended:  # the session was closed or has expired
                    completion.set_exception(ended)

        def outcomes() -> list[TransactionResult]:
            left, deadline = len(sent), time.monotonic() + self._timeout_s
            while left:
                try:
                    index, value, exception = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
                except Empty:
                    break
                if results[index] is not None:  # kazoo can report one request twice when its connection closes
                    continue
                results[index] = self._result(batches[index], sent[index], value, exception)
                send(1)
                left, deadline = left - 1, time.monotonic() + self._timeout_s
            return [
                result or _no_response_result(sent[index], self._connection.no_response_error())
                for index, result in enumerate(results)
            ]

        send(_MAX_TRANSACTIONS_IN_FLIGHT)
        return outcomes

    def _acls(self, batches: Sequence[Sequence[TransactionOperation]]) -> Mapping[str, Acl | OffsetMgrError]:
        """Returns the ACL of each node to be created, or the error that prevented computing the ACL.

        Returns an empty mapping if the configured ACL is ``open``.
        """
        configured = self._connection.acl
        created = [op for operations in batches for op in operations if isinstance(op, Create) and op.acl is None]
        if configured is None or not created:
            return {}
        ephemeral = [op.path for op in created if op.ephemeral]
        persistent = [op.path for op in created if not op.ephemeral]
        return acls_for(configured, ephemeral, persistent, self._read_acls)

    def acls(self, paths: Sequence[str]) -> list[Acl | OffsetMgrError | None]:
        """Reads the ACLs of nodes; None for a node that does not exist. Servers of ZooKeeper 3.5 and later mask the
        hashes of digest entries if the client does not have the admin permission."""
        full = [self.chroot + path if path != "/" else self.chroot or "/" for path in paths]
        found: list[Acl | OffsetMgrError | None] = [None] * len(full)
        reads = [requests.GetACL(path) for path in full]
        for index, answer in self._send_reads(reads, MAX_SINGLE_READS_IN_FLIGHT, expected=_NODE_ERRORS):
            if isinstance(answer, kazoo.NoAuthError):
                found[index] = self._no_auth_error(paths[index], "read its ACL, which new nodes below it need")
            elif not isinstance(answer, Exception):
                found[index] = tuple(AclEntry(entry.perms, entry.id.scheme, entry.id.id) for entry in answer[0])
        return found

    def _read_acls(self, paths: Sequence[str]) -> list[Acl | OffsetMgrError]:
        """Reads the ACLs of nodes. For a missing node, the result is the open ACL. This ACL is never used, because the
        server rejects the creation of a node below a missing node."""
        permission = "read its whole ACL (permission a), which new nodes below it need"
        return [
            OPEN
            if acl is None
            else self._no_auth_error(path, permission)
            if not isinstance(acl, OffsetMgrError) and is_masked(acl)
            else acl
            for path, acl in zip(paths, self.acls(paths), strict=True)
        ]

    def _result(
        self,
        operations: Sequence[TransactionOperation],
        request: TransactionRequest,
        value: Any,
        exception: Exception | None,
    ) -> TransactionResult:
        if isinstance(exception, CONNECTION_LOST):
            exception = self._connection.connection_lost_error()
        if isinstance(exception, OffsetMgrError):
            return _no_response_result(request, exception)
        if exception is not None:
            return TransactionResult(OperationState.REJECTED, error=self._request_error(exception))
        try:
            codes = self._decode(jute.multi_codes, *value, len(operations))
        except ServerError as broken:  # the server responded, but the outcome is unknown
            return TransactionResult(OperationState.UNKNOWN, error=broken)
        index = failed_operation(codes)
        if index is None:
            return TransactionResult(OperationState.COMMITTED)
        error = self._node_error(codes[index], operations[index].path, _NEEDED_PERMISSIONS[type(operations[index])])
        return TransactionResult(
            OperationState.REJECTED, index, codes[index], error or self._server_error("NO_NODE", operations[index].path)
        )

    # --- requests whose responses are collected later --------------------------------------------------

    def begin_reads(self, reads: Sequence[BulkRead[T]]) -> Callable[[], list[list[T]]]:
        """Sends reads. Returns a function that waits for their responses and returns the result of each read.

        This method and the returned function raise the same errors as `get_many`, but do not check that the chroot
        exists.
        """
        responses = self._send_reads(reads, len(reads))
        return lambda: self._decoded(reads, responses)

    def _decoded(self, reads: Sequence[BulkRead[T]], responses: Iterator[tuple[int, Any]]) -> list[list[T]]:
        """Returns the results of the reads in their order. Raises an exception that ``responses`` has as a response."""
        found: dict[int, list[T]] = {}
        for index, answer in responses:
            if isinstance(answer, Exception):
                raise answer
            found[index] = self._decode(reads[index].decode, *answer)
        return [found[index] for index in range(len(reads))]

    # --- watches ----------------------------------------------------------------------------------

    def watch_children(self, path: str, callback: WatchCallback) -> list[str] | None:
        """Returns the children of a node, and sets a watch on the node. If the node does not exist, returns None, and
        sets a watch for the creation of the node.

        The session calls ``callback`` once: when a child or the node itself is created or deleted, or when the watch
        was lost because the connection was lost. The arguments of ``callback`` do not describe the change, so the
        caller of this method must read the node and set the watch again.
        """
        # Uses kazoo's own request classes, because kazoo registers watchers only for requests of these classes.
        full = self.chroot + path if path != "/" else self.chroot or "/"

        def watcher(_: object) -> None:
            callback(path)

        while True:
            reads = [requests.GetChildren(full, watcher)]
            ((_, answer),) = self._send_reads(reads, 1, expected=_NODE_ERRORS)
            if not isinstance(answer, kazoo.NoNodeError):
                break
            ((_, stat),) = self._send_reads([requests.Exists(full, watcher)], 1)
            if stat is None:
                return None
        if isinstance(answer, Exception):
            raise self._no_auth_error(path, "read this node")
        return list(answer)

    def watch_many(self, nodes: Sequence[str], parents: Sequence[str], callback: WatchCallback) -> list[str]:
        """Sets watches on the data of ``nodes`` and on the children of ``parents``, with many requests in flight.

        Returns the nodes that do not exist; these are not watched. ``callback`` is the same as in `watch_children`. To
        miss no change, a caller must first set the watches and then read the nodes: if a node changes after its watch
        was set, the session calls ``callback``.
        """

        def watcher(path: str) -> Callable[[object], None]:
            return lambda _event: callback(path)

        reads = [requests.GetData(self.chroot + path, watcher(path)) for path in nodes]
        reads += [requests.GetChildren(self.chroot + path, watcher(path)) for path in parents]
        paths = [*nodes, *parents]
        missing: list[str] = []
        for index, answer in self._send_reads(reads, MAX_SINGLE_READS_IN_FLIGHT, expected=_NODE_ERRORS):
            if isinstance(answer, kazoo.NoNodeError):
                missing.append(paths[index])
            elif isinstance(answer, Exception):
                raise self._no_auth_error(paths[index], "read this node")
        return missing


def _no_response_result(request: TransactionRequest, error: OffsetMgrError) -> TransactionResult:
    return TransactionResult(OperationState.NOT_SENT if request.cancel() else OperationState.UNKNOWN, error=error)


def _acl_failure(
    operations: Sequence[TransactionOperation], acls: Mapping[str, Acl | OffsetMgrError]
) -> TransactionResult | None:
    """Returns the failure of a transaction that creates a node whose ACL could not be computed; returns None for other
    transactions."""
    for index, operation in enumerate(operations) if acls else ():
        error = acls.get(operation.path)
        if isinstance(operation, Create) and isinstance(error, OffsetMgrError):
            return TransactionResult(OperationState.REJECTED, index, ZookeeperError.NO_AUTH, error)
    return None


# Conditional writes of callers that read the nodes again after a failed write. Ordering contract: `commit` returns
# False only if the caller's next read shows whether the transaction took effect. If the transaction got no response,
# `commit` first sends a ``sync``. The server executes the requests of a session in order, so the transaction takes
# effect before the response to the ``sync``, or never. Callers that do not read again interpret the
# `TransactionResult` themselves: `zookeeper.offsets.edits` decides for each node of a transaction, and
# `zookeeper.admin.submit` reports an unknown outcome to the user.

RACES: Final = frozenset({ZookeeperError.BAD_VERSION, ZookeeperError.NO_NODE, ZookeeperError.NODE_EXISTS})
"""The codes with which the server rejects a write because another client changed the node first."""

_MAX_TRIES: Final = 8


def commit(
    session: ZookeeperSession, operations: Sequence[TransactionOperation], races: Collection[int] = RACES
) -> bool:
    """Sends one transaction, and returns whether the server committed it.

    Returns False if the server rejected the transaction with one of the codes ``races``, or if the outcome is unknown.
    In both cases the caller must read the nodes again. Raises any other error, and `SessionExpired`.
    """
    return committed(session, session.transaction(operations), races)


def committed(session: ZookeeperSession, outcome: TransactionResult, races: Collection[int] = RACES) -> bool:
    """Like `commit`, for a transaction that was already sent."""
    if outcome.error is None:
        return True
    if outcome.state in (OperationState.UNKNOWN, OperationState.NOT_SENT):
        session.sync()
    elif outcome.code not in races:
        raise outcome.error
    return False


def ensure_nodes(session: ZookeeperSession, nodes: Sequence[str], data: bytes = b"") -> None:
    """Creates the missing nodes as persistent nodes with this data. In ``nodes``, parents must precede their children.
    Raises any error of the session."""
    for _ in range(_MAX_TRIES):
        missing = [path for path, node in zip(nodes, session.get_many(nodes), strict=True) if node is None]
        if not missing or commit(session, [Create(path, data) for path in missing]):
            return
    raise Conflict(f"ZooKeeper node {nodes[-1]}", "its parents are missing, or other clients keep changing them")
