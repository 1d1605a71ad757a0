"""`ZookeeperSession`: bulk reads, transactions and watches, with the project's errors and timeouts.

The meaning of the nodes is defined elsewhere. Paths are relative to the chroot everywhere.

Ordering contract: the server carries out the requests of one session in the order in which they were sent. A read sent
after a transaction therefore sees its effect, or proves that it had none. If the connection was lost in between, `sync`
must come before the read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as requests

from offsetmgr.core.errors import OffsetMgrError, ServerError
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.acl import OPEN, Acl, AclEntry, encode, is_masked, lists_for
from offsetmgr.zookeeper.client.bulk_requests import BulkRead
from offsetmgr.zookeeper.client.connection import Completion
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session_reads import (
    _LOST,
    _MULTI_READS_IN_FLIGHT,
    _SINGLE_READS_IN_FLIGHT,
    SessionReads,
    T,
    _Inbox,
)
from offsetmgr.zookeeper.client.transactions import (
    BulkWrite,
    CheckVersion,
    Create,
    Delete,
    Operation,
    OperationState,
    SetData,
    TransactionRequest,
    TransactionResult,
    encoded,
    failed_operation,
)

WatchCallback: TypeAlias = Callable[[str], None]
"""Called once with the watched path, in kazoo's watch thread: it must not block."""

_TRANSACTIONS_IN_FLIGHT: Final = 4

_OPEN: Final = encode(OPEN)
_NEEDED: Final[dict[type, str]] = {
    Create: "create it (permission c of its parent)",
    SetData: "write it (w)",
    Delete: "delete it (d of its parent)",
    CheckVersion: "read it (r)",
}
"""The permission that each kind of operation needs."""


class ZookeeperSession(SessionReads):
    """A session with a ZooKeeper ensemble, under a chroot. Construction does no I/O; the first call connects.

    ``config.timeout_ms`` bounds every wait: a bulk call fails if no response at all arrives for that long. Reads that
    were sent when the connection was lost are repeated until then; a failed read is an error, never an empty result.
    All methods raise `Unreachable`, `TimedOut` and `AuthenticationFailed`; those that read or write also raise
    `ServerError` if the chroot does not exist.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # --- writes -----------------------------------------------------------------------------------

    def transaction(self, operations: Sequence[Operation]) -> TransactionResult:
        """Carries out all of the operations or none of them."""
        return self.transactions([operations])[0]

    def transactions(self, batches: Sequence[Sequence[Operation]]) -> list[TransactionResult]:
        """Carries out several transactions separately and in order, with several in flight.

        Raises only if nothing could be sent at all; afterwards a lost connection is an outcome. Nothing is repeated: if
        a transaction got no response, only a fresh read can show whether it happened.
        """
        self._connection.ready(time.monotonic() + self._timeout_s)
        acls = self._acls(batches)
        unlisted = {n: refused for n, ops in enumerate(batches) if (refused := _unlisted(ops, acls)) is not None}
        rest = iter(self._carry_out([ops for n, ops in enumerate(batches) if n not in unlisted], acls))
        return [unlisted[n] if n in unlisted else next(rest) for n in range(len(batches))]

    def _carry_out(
        self, batches: Sequence[Sequence[Operation]], acls: Mapping[str, bytes | OffsetMgrError]
    ) -> list[TransactionResult]:
        sent = [
            TransactionRequest([encoded(op, self.chroot, _listed(op, acls)) for op in operations])
            for operations in batches
        ]
        outcomes: list[TransactionResult | None] = [None] * len(sent)
        inbox: SimpleQueue[tuple[int, Any, Exception | None]] = SimpleQueue()
        handed_in = 0
        for _ in sent:
            while handed_in < len(sent) and handed_in - sum(o is not None for o in outcomes) < _TRANSACTIONS_IN_FLIGHT:
                self._connection.send(sent[handed_in], Completion(inbox, handed_in))
                handed_in += 1
            index, value, exception = self._next_answer(inbox, outcomes)
            if index is None:
                break
            outcomes[index] = self._outcome(batches[index], sent[index], value, exception)
        return [
            outcome or _without_answer(request, self._connection.silence())
            for outcome, request in zip(outcomes, sent, strict=True)
        ]

    def _acls(self, batches: Sequence[Sequence[Operation]]) -> Mapping[str, bytes | OffsetMgrError]:
        """The ACL of every node to be created (or the error), if the configuration specifies an ACL other than the open
        one."""
        policy = self._connection.acl_policy
        created = [op for operations in batches for op in operations if isinstance(op, Create)]
        if policy is None or not created:
            return {}
        ours = [op.path for op in created if op.ephemeral]
        shared = [op.path for op in created if not op.ephemeral]
        lists = lists_for(policy, ours, shared, self._acls_of)
        return {path: acl if isinstance(acl, OffsetMgrError) else encode(acl) for path, acl in lists.items()}

    def _acls_of(self, paths: Sequence[str]) -> list[Acl | OffsetMgrError]:
        """The ACLs of nodes. A node that does not exist gets the open ACL, because nothing can be created below it."""
        full = [self.chroot + path if path != "/" else self.chroot or "/" for path in paths]
        found: list[Acl | OffsetMgrError] = [OPEN] * len(full)
        for index, answer in self._ask([requests.GetACL(path) for path in full], _SINGLE_READS_IN_FLIGHT):
            if isinstance(answer, kazoo.NoAuthError):
                found[index] = self._no_auth(paths[index], "read its ACL, to give it to new nodes below it")
            elif isinstance(answer, Exception):
                if not isinstance(answer, kazoo.NoNodeError):
                    raise self._error(answer)
            else:
                acl = tuple(AclEntry(entry.perms, entry.id.scheme, entry.id.id) for entry in answer[0])
                whole = "see its whole ACL (a), to give it to new nodes below it"
                found[index] = self._no_auth(paths[index], whole) if is_masked(acl) else acl
        return found

    def _next_answer(
        self, inbox: SimpleQueue[tuple[int, Any, Exception | None]], outcomes: list[TransactionResult | None]
    ) -> tuple[int | None, Any, Exception | None]:
        """The next first response; index None if none arrived within the timeout."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                index, value, exception = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return None, None, None
            if outcomes[index] is None:  # kazoo can report one request twice when its connection closes
                return index, value, exception

    def _outcome(
        self, operations: Sequence[Operation], request: TransactionRequest, value: Any, exception: Exception | None
    ) -> TransactionResult:
        if isinstance(exception, _LOST):
            return _without_answer(request, self._connection.lost())
        if exception is not None:
            return TransactionResult(OperationState.REFUSED, error=self._error(exception))
        try:
            codes = self._decoded(jute.multi_codes, *value, len(operations))
        except ServerError as broken:  # the server did respond, but the outcome is unknown
            return TransactionResult(OperationState.UNKNOWN, error=broken)
        index = failed_operation(codes)
        if index is None:
            return TransactionResult(OperationState.COMMITTED)
        error = self._node_error(codes[index], operations[index].path, _NEEDED[type(operations[index])])
        return TransactionResult(
            OperationState.REFUSED, index, codes[index], error or self._server_error("NO_NODE", operations[index].path)
        )

    # --- in bulk, sent now and collected later -------------------------------------------------------

    def reads_in_bulk(self) -> bool:
        """Whether the server supports `begin_reads`: servers since 3.6 do."""
        return self._can_multi_read()

    def begin_reads(self, reads: Sequence[BulkRead[T]]) -> Callable[[], list[T]]:
        """Sends reads without waiting for their responses. The returned function waits and returns the result of each
        read. Both raise as `get_many`, but they do not check that the chroot exists."""
        inbox = self._sent(reads)

        def answers() -> list[T]:
            found: dict[int, T] = {}
            lost: list[int] = []
            for index, value, exception in self._each(inbox, len(reads)):
                if isinstance(exception, _LOST):
                    lost.append(index)
                else:
                    found[index] = self._found(reads[index], value if exception is None else exception)
            for at, answer in self._ask([reads[index] for index in lost], _MULTI_READS_IN_FLIGHT) if lost else ():
                found[lost[at]] = self._found(reads[lost[at]], answer)
            return [found[index] for index in range(len(reads))]

        return answers

    def _found(self, read: BulkRead[T], answer: Any) -> T:
        if isinstance(answer, Exception):
            raise self._error(answer)
        found: T = self._decoded(read.decoded, *answer)
        return found

    def begin_transactions(self, writes: Sequence[BulkWrite]) -> Callable[[], list[TransactionResult]]:
        """Sends transactions without waiting for their responses; raises if nothing could be sent. The returned
        function waits, raises nothing, and returns the outcome of each, as `transactions`."""
        inbox = self._sent(writes)

        def outcomes() -> list[TransactionResult]:
            found: list[TransactionResult | None] = [None] * len(writes)
            try:
                for index, value, exception in self._each(inbox, len(writes)):
                    found[index] = self._bulk_outcome(writes[index], value, exception)
            except OffsetMgrError as silence:
                return [
                    outcome or _without_answer(write, silence) for outcome, write in zip(found, writes, strict=True)
                ]
            return [outcome for outcome in found if outcome is not None]

        return outcomes

    def _bulk_outcome(self, write: BulkWrite, value: Any, exception: Exception | None) -> TransactionResult:
        count = len(write.paths)
        if exception is None:
            buffer, offset = value
            if jute.all_set(buffer, offset, count):
                return TransactionResult(OperationState.COMMITTED)

        chroot = len(self.chroot)
        operations = [SetData(jute.path_of(path)[chroot:], b"", 0) for path in write.paths]
        return self._outcome(operations, write, value, exception)

    def _sent(self, requests: Sequence[Any]) -> _Inbox:
        self._connection.ready(time.monotonic() + self._timeout_s)
        inbox: _Inbox = SimpleQueue()
        for index, request in enumerate(requests):
            self._connection.send(request, Completion(inbox, index))
        return inbox

    def _each(self, inbox: _Inbox, count: int) -> Iterator[tuple[int, Any, Exception | None]]:
        """The first response to each of ``count`` requests. Raises if none arrives within the timeout."""
        waiting = set(range(count))
        while waiting:
            try:
                index, value, exception = inbox.get(timeout=self._timeout_s)
            except Empty:
                raise self._connection.silence() from None
            if index in waiting:  # kazoo can report one request twice when its connection closes
                waiting.remove(index)
                yield index, value, exception

    # --- watches ----------------------------------------------------------------------------------

    def watch_children(self, path: str, callback: WatchCallback) -> list[str] | None:
        """Returns the children of a node and starts to watch it; None if the node does not exist (yet).

        ``callback`` is called once: when a child is created or deleted, when the node itself is, or when the watch was
        lost with the connection. It means "read again, and watch again" and does not describe the change.
        """
        answer = self._watch(requests.GetChildren, path, callback)
        return None if answer is None else list(answer)

    def watch_data(self, path: str, callback: WatchCallback) -> NodeData | None:
        """Returns the data of a node and starts to watch it, as `watch_children`."""
        answer = self._watch(requests.GetData, path, callback)
        if answer is None:
            return None
        data, stat = answer
        return NodeData(data or b"", stat.czxid, stat.ctime, stat.mtime, stat.version, stat.ephemeralOwner)

    def watch_many(self, nodes: Sequence[str], parents: Sequence[str], callback: WatchCallback) -> list[str]:
        """Watches the data of ``nodes`` and the children of ``parents``, many requests in flight.

        Returns the nodes that do not exist, which are not watched. ``callback`` as in `watch_children`. To watch a
        changing tree, watch first and read afterwards, so that every change in between calls the callback.
        """

        def watcher(path: str) -> Callable[[object], None]:
            return lambda _event: callback(path)

        asked = [requests.GetData(self.chroot + path, watcher(path)) for path in nodes]
        asked += [requests.GetChildren(self.chroot + path, watcher(path)) for path in parents]
        paths = [*nodes, *parents]
        missing: list[str] = []
        for index, answer in self._ask(asked, _SINGLE_READS_IN_FLIGHT):
            if isinstance(answer, kazoo.NoNodeError):
                missing.append(paths[index])
            elif isinstance(answer, kazoo.NoAuthError):
                raise self._no_auth(paths[index], "read this node")
            elif isinstance(answer, Exception):
                raise self._error(answer)
        return missing

    def _watch(self, request: Any, path: str, callback: WatchCallback) -> Any:
        # kazoo's own request classes, because kazoo keeps watchers only for these.
        full = self.chroot + path if path != "/" else self.chroot or "/"

        def watcher(_: object) -> None:
            callback(path)

        while True:
            ((_, answer),) = self._ask([request(full, watcher)], 1)
            if not isinstance(answer, kazoo.NoNodeError):
                break
            ((_, stat),) = self._ask([requests.Exists(full, watcher)], 1)
            if isinstance(stat, Exception):
                raise self._error(stat)
            if stat is None:
                return None
        if isinstance(answer, kazoo.NoAuthError):
            raise self._no_auth(path, "read this node")
        if isinstance(answer, Exception):
            raise self._error(answer)
        return answer


def _without_answer(request: TransactionRequest, error: OffsetMgrError) -> TransactionResult:
    return TransactionResult(OperationState.NOT_SENT if request.cancel() else OperationState.UNKNOWN, error=error)


def _listed(operation: Operation, acls: Mapping[str, bytes | OffsetMgrError]) -> bytes:
    acl = acls.get(operation.path, _OPEN)
    return acl if isinstance(acl, bytes) else _OPEN  # an error has kept its transaction from being sent, if it creates


def _unlisted(operations: Sequence[Operation], acls: Mapping[str, bytes | OffsetMgrError]) -> TransactionResult | None:
    """The outcome of a transaction that creates a node whose ACL could not be determined."""
    for index, operation in enumerate(operations):
        error = acls.get(operation.path)
        if isinstance(operation, Create) and isinstance(error, OffsetMgrError):
            return TransactionResult(OperationState.REFUSED, index, ZookeeperError.NO_AUTH, error)
    return None
