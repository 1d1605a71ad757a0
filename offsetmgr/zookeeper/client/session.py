"""`ZookeeperSession`: bulk reads, transactions and watches. It enforces timeouts and raises the errors of
`offsetmgr.core.errors`.

All paths are relative to the chroot. The modules in `offsetmgr.zookeeper.nodes` define the content of the nodes.

Ordering contract: the server processes the requests of one session in the order in which the client sent them. A read
that is sent after a transaction therefore shows whether the transaction took effect. If the connection was lost between
the two requests, the caller must send a `sync` before the read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as requests

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import OffsetMgrError, ServerError
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.acl import OPEN, Acl, AclEntry, acls_for, encode, is_masked
from offsetmgr.zookeeper.client.bulk_requests import BulkGet, BulkRead, split_into_requests
from offsetmgr.zookeeper.client.connection import Completion
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session_reads import (
    CONNECTION_LOST,
    MAX_SINGLE_READS_IN_FLIGHT,
    Node,
    ResponseQueue,
    SessionReads,
    T,
)
from offsetmgr.zookeeper.client.transactions import (
    CheckVersion,
    Create,
    Delete,
    OperationState,
    SetData,
    TransactionOperation,
    TransactionRequest,
    TransactionResult,
    encode_operation,
    failed_operation,
)

WatchCallback: TypeAlias = Callable[[str], None]
"""The callback of a watch, which is called once with the watched path. kazoo's watch thread runs the callback, so the
callback must not block."""

_MAX_TRANSACTIONS_IN_FLIGHT: Final = 10
"""As many as a batch of offsets usually needs, so that the server executes them while the client decides about the next
batch."""

_OPEN: Final = encode(OPEN)
_NEEDED_PERMISSIONS: Final[dict[type, str]] = {
    Create: "create it (permission c of its parent)",
    SetData: "write it (w)",
    Delete: "delete it (d of its parent)",
    CheckVersion: "read it (r)",
}
"""The permission that each kind of operation needs, worded as part of an error's text."""


class ZookeeperSession(SessionReads, Closeable):
    """A session with a ZooKeeper ensemble, under a chroot. Construction does no I/O; the first call connects.

    A call fails if no response arrives for ``config.timeout_ms``. If the connection is lost, the session opens a new
    connection and repeats the reads that got no response, until this timeout expires. A failed read is an error, never
    an empty result. All methods raise `Unreachable`, `TimedOut` and `AuthenticationFailed`. Methods that read or write
    nodes also raise `ServerError` if the chroot does not exist.
    """

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
        sent = {
            n: TransactionRequest(
                [encode_operation(op, self.chroot, _acl_of(op, acls) if acls else _OPEN) for op in operations]
            )
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
            for _ in sent:
                index, value, exception = self._next_response(inbox, results)
                if index is None:
                    break
                results[index] = self._result(batches[index], sent[index], value, exception)
                send(1)
            return [
                result or _no_response_result(sent[index], self._connection.no_response_error())
                for index, result in enumerate(results)
            ]

        send(_MAX_TRANSACTIONS_IN_FLIGHT)
        return outcomes

    def _acls(self, batches: Sequence[Sequence[TransactionOperation]]) -> Mapping[str, bytes | OffsetMgrError]:
        """Returns the encoded ACL of each node to be created, or the error that prevented computing the ACL.

        Returns an empty mapping if the configured ACL is ``open``.
        """
        policy = self._connection.acl_policy
        created = [op for operations in batches for op in operations if isinstance(op, Create) and op.acl is None]
        if policy is None or not created:
            return {}
        ephemeral = [op.path for op in created if op.ephemeral]
        persistent = [op.path for op in created if not op.ephemeral]
        acls_by_path = acls_for(policy, ephemeral, persistent, self._read_acls)
        return {path: acl if isinstance(acl, OffsetMgrError) else encode(acl) for path, acl in acls_by_path.items()}

    def acls(self, paths: Sequence[str]) -> list[Acl | OffsetMgrError | None]:
        """Reads the ACLs of nodes; None for a node that does not exist. Servers of ZooKeeper 3.5 and later mask the
        hashes of digest entries if the client does not have the admin permission."""
        full = [self.chroot + path if path != "/" else self.chroot or "/" for path in paths]
        found: list[Acl | OffsetMgrError | None] = [None] * len(full)
        for index, answer in self._send_reads([requests.GetACL(path) for path in full], MAX_SINGLE_READS_IN_FLIGHT):
            if isinstance(answer, kazoo.NoAuthError):
                found[index] = self._no_auth_error(paths[index], "read its ACL, which new nodes below it need")
            elif isinstance(answer, Exception):
                if not isinstance(answer, kazoo.NoNodeError):
                    raise self._request_error(answer)
            else:
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

    def _next_response(
        self, inbox: ResponseQueue, outcomes: list[TransactionResult | None]
    ) -> tuple[int | None, Any, Exception | None]:
        """Returns the next response and the index of its request. The index is None if no response arrives within the
        timeout."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                index, value, exception = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return None, None, None
            if outcomes[index] is None:  # kazoo can report one request twice when its connection closes
                return index, value, exception

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

    def supports_bulk_reads(self) -> bool:
        """Whether the server supports `begin_reads`, as servers since 3.6 do."""
        return self._supports_multi_read()

    def begin_reads(self, reads: Sequence[BulkRead[T]]) -> Callable[[], list[T]]:
        """Sends reads. Returns a function that waits for their responses and returns the result of each read.

        This method and the returned function raise the same errors as `get_many`, but do not check that the chroot
        exists.
        """
        responses = self._send_reads(reads, len(reads))

        def answers() -> list[T]:
            found: dict[int, T] = {}
            for index, answer in responses:
                if isinstance(answer, Exception):
                    raise self._request_error(answer)
                found[index] = self._decode(reads[index].decode, *answer)
            return [found[index] for index in range(len(reads))]

        return answers

    def begin_get_many(self, paths: Sequence[str]) -> Callable[[], list[Node]]:
        """Sends the reads of `get_many`. Returns a function that waits for their responses and returns the nodes.

        Both raise the errors of `get_many`. From a server before 3.6, this method reads the nodes before it returns.
        """
        if not paths or not self.supports_bulk_reads():
            nodes = self.get_many(paths)
            return lambda: nodes
        responses = self.begin_reads([BulkGet.of(chunk) for chunk in split_into_requests(self._encoded_paths(paths))])
        return lambda: self._results_by_path(list(chain.from_iterable(responses())), paths)

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
            ((_, answer),) = self._send_reads([requests.GetChildren(full, watcher)], 1)
            if not isinstance(answer, kazoo.NoNodeError):
                break
            ((_, stat),) = self._send_reads([requests.Exists(full, watcher)], 1)
            if isinstance(stat, Exception):
                raise self._request_error(stat)
            if stat is None:
                return None
        if isinstance(answer, kazoo.NoAuthError):
            raise self._no_auth_error(path, "read this node")
        if isinstance(answer, Exception):
            raise self._request_error(answer)
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
        for index, answer in self._send_reads(reads, MAX_SINGLE_READS_IN_FLIGHT):
            if isinstance(answer, kazoo.NoNodeError):
                missing.append(paths[index])
            elif isinstance(answer, kazoo.NoAuthError):
                raise self._no_auth_error(paths[index], "read this node")
            elif isinstance(answer, Exception):
                raise self._request_error(answer)
        return missing


def _no_response_result(request: TransactionRequest, error: OffsetMgrError) -> TransactionResult:
    return TransactionResult(OperationState.NOT_SENT if request.cancel() else OperationState.UNKNOWN, error=error)


def _acl_of(operation: TransactionOperation, acls: Mapping[str, bytes | OffsetMgrError]) -> bytes:
    acl = acls.get(operation.path, _OPEN)
    return acl if isinstance(acl, bytes) else _OPEN  # if the ACL is an error, the transaction is never sent


def _acl_failure(
    operations: Sequence[TransactionOperation], acls: Mapping[str, bytes | OffsetMgrError]
) -> TransactionResult | None:
    """Returns the failure of a transaction that creates a node whose ACL could not be computed; returns None for other
    transactions."""
    for index, operation in enumerate(operations) if acls else ():
        error = acls.get(operation.path)
        if isinstance(operation, Create) and isinstance(error, OffsetMgrError):
            return TransactionResult(OperationState.REJECTED, index, ZookeeperError.NO_AUTH, error)
    return None
