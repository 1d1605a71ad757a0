"""`SessionReads`: reads one or many nodes in a ZooKeeper session, and translates errors from kazoo and from the
server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as requests

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, ServerError, value_of
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.bulk_requests import BulkGet, BulkNames, BulkRead, SingleRead, split_into_requests
from offsetmgr.zookeeper.client.connection import Completion, KazooConnection, parse_connect
from offsetmgr.zookeeper.client.jute import NodeData, Op, ZookeeperError

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

ResponseQueue: TypeAlias = SimpleQueue[tuple[int, Any, Exception | None]]
"""Queue for responses. Each item contains the number of a request, the result (None if the request failed), and the
exception (None if the request succeeded)."""


class _ConnectionLost(Exception):
    """More consecutive connections were lost than the caller of `_send_reads` allows."""


class SessionReads:
    """The reads of a `ZookeeperSession`. Construction does no I/O; the first call connects."""

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
        return self._read_many(Op.GET, paths)

    def children_many(self, paths: Sequence[str]) -> list[Children]:
        """Lists the children of many nodes; the results are in the order of ``paths``, but the names of a node's
        children are not sorted."""
        return self._read_many(Op.CHILDREN, paths)

    def get(self, path: str) -> NodeData | None:
        """Reads one node's data; returns None if the node does not exist. Also raises `NotAuthorized`."""
        return value_of(self.get_many([path])[0])

    def children(self, path: str) -> list[str] | None:
        """Lists one node's children; returns None if the node does not exist. Also raises `NotAuthorized`."""
        return value_of(self.children_many([path])[0])

    def sync(self) -> None:
        """Waits until the server has caught up with the ensemble's leader. Later reads show every write that was
        completed before this call."""
        for _, answer in self._send_reads([requests.Sync(self.chroot or "/")], 1):
            if isinstance(answer, Exception):
                raise self._request_error(answer)

    def _read_many(self, op: Op, paths: Sequence[str]) -> list[Any]:
        """Reads the paths with multi-reads if the server supports multi-reads, otherwise with one request for each
        path."""
        if not paths:
            return []
        raw = self._encoded_paths(paths)
        results = self._multi_reads(op, raw) if self._supports_multi_read() else None
        return self._results_by_path(self._single_reads(op, raw) if results is None else results, paths)

    def _encoded_paths(self, paths: Sequence[str]) -> list[bytes]:
        """Returns the full paths of nodes, after the path of the chroot. If the chroot does not exist, none of the
        nodes exists. A mistyped chroot that is not read would look like a cluster without groups."""
        chroot = self.chroot
        return [
            (chroot + path if path != "/" else chroot or "/").encode() for path in (*(("/",) if chroot else ()), *paths)
        ]

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

    def _multi_reads(self, op: Op, paths: list[bytes]) -> list[Any] | None:
        """Reads many paths per request; returns None if the server does not support multi-reads."""
        kind: type[BulkRead[Any]] = BulkGet if op is Op.GET else BulkNames
        reads = [kind.of(chunk) for chunk in split_into_requests(paths)]
        results: list[Any] = [None] * len(reads)
        for index, answer in self._send_reads(reads, MAX_MULTI_READS_IN_FLIGHT):
            if isinstance(answer, kazoo.UnimplementedError):
                self._multi_read = False
                self._connection.await_replacement()
                return None
            if isinstance(answer, Exception):
                raise self._request_error(answer)
            results[index] = self._decode(reads[index].decode, *answer)
        return results[0] if len(results) == 1 else [found for chunk in results for found in chunk]

    def _single_reads(self, op: Op, paths: list[bytes]) -> list[Any]:
        """Reads one path per request, with many requests in flight, for servers before 3.6."""
        decode = jute.node_data if op is Op.GET else jute.child_names
        results: list[Any] = [None] * len(paths)
        for index, answer in self._send_reads([SingleRead(op, path) for path in paths], MAX_SINGLE_READS_IN_FLIGHT):
            if not isinstance(answer, Exception):
                results[index] = self._decode(decode, *answer)
            elif isinstance(answer, kazoo.NoNodeError | kazoo.NoAuthError):
                results[index] = int(answer.code)
            else:
                raise self._request_error(answer)
        return results

    def _supports_multi_read(self) -> bool:
        """Whether the server supports multi-reads; the first call sends a multi-read to find out.

        A server before 3.6 returns UnimplementedError and then closes the connection. The client may notice the closed
        connection before it has read the response. Therefore, if two consecutive connections are lost, this method also
        returns False. If the server supports multi-reads nevertheless, the result False does no harm, because single
        reads work on every server. After UnimplementedError this method waits for the next connection, because a
        transaction sent on the old connection would have an unknown outcome.
        """
        with self._multi_read_lock:
            if self._multi_read is None:
                try:
                    probe = BulkGet.of([(self.chroot or "/").encode()])
                    ((_, answer),) = self._send_reads([probe], 1, max_losses=1)
                except _ConnectionLost:
                    self._multi_read = False
                    return False
                if isinstance(answer, kazoo.UnimplementedError):
                    self._multi_read = False
                    self._connection.await_replacement()
                elif isinstance(answer, Exception):
                    raise self._request_error(answer)
                else:
                    self._multi_read = True
            return self._multi_read

    # --- sending, and error handling -----------------------------------------------------------------

    def _send_reads(
        self, reads: Sequence[Any], max_in_flight: int, max_losses: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Sends requests that change nothing. Returns an iterator over their responses in the order of arrival.

        At most ``max_in_flight`` requests are open at a time; the first are sent at once. The first item of each result
        is the index of a request. The second item is either the response to this request or the exception that the
        server returned for this request. If the connection is lost, requests without a response are sent again on the
        next connection. Raises an error if no response arrives for the whole timeout, and `_ConnectionLost` if more
        than ``max_losses`` consecutive connections are lost.
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
