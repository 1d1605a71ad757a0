"""Writes: the operations of a transaction, its outcome, and the request in the form that kazoo's connection accepts.

Ordering contract: a transaction is carried out entirely or not at all. A transaction that was never sent has not
happened. A transaction that was sent and got no response (`OperationState.UNKNOWN`) may have happened; its caller must
read again and decide.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.acl import OPEN, encode
from offsetmgr.zookeeper.client.jute import Op, ZookeeperError

OPERATIONS_A_TRANSACTION: Final = 450
"""Measured: 400 to 500 operations write 54,000 to 77,000 nodes a second; more are no faster."""

BYTES_A_TRANSACTION: Final = 700 * 1024
"""Below the server's default ``jute.maxbuffer`` (1 MiB), which also limits the server's own log record."""

_OVERHEAD: Final = 128
"""A header, three lengths, an open ACL, a version, and a chroot of ordinary length."""

_OPEN: Final = encode(OPEN)


class Create(NamedTuple):
    """Creates a node, with the ACL from the session's policy; rejected with NODE_EXISTS, or NO_NODE if its parent is
    missing.

    An ``ephemeral`` node is deleted with the session that created it.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetData(NamedTuple):
    """Sets the data of a node that is at ``version``; rejected with BAD_VERSION or NO_NODE."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Deletes a node that is at ``version`` and has no children; rejected with BAD_VERSION, NO_NODE, NOT_EMPTY."""

    path: str
    version: int


class CheckVersion(NamedTuple):
    """Changes nothing; rejected unless the node exists and is at ``version``."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | CheckVersion


class OperationState(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    REFUSED = "refused"
    """The server rejected the transaction because of the operation `TransactionResult.failed_operation`."""
    NOT_SENT = "not sent"
    """It has not left this process and never will."""
    UNKNOWN = "unknown"
    """It was sent, and no response arrived."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The outcome of one transaction.

    ``failed_index`` is the index of the rejected operation and ``code`` its error code; ``error`` is set in every state
    but COMMITTED.
    """

    state: OperationState
    failed_operation: int | None = None
    code: int = ZookeeperError.OK
    error: OffsetMgrError | None = None


def weight(operation: Operation) -> int:
    """An upper bound of the size of an operation in a transaction, in bytes."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path.encode()) + len(data) + _OVERHEAD


def encoded(operation: Operation, chroot: str, acl: bytes = _OPEN) -> bytes:
    """One operation as part of a transaction's body; ``acl`` is for a node that it creates."""
    path = chroot + operation.path
    match operation:
        case Create(_, data, ephemeral):
            return jute.create(path, data, acl, ephemeral)
        case SetData(_, data, version):
            return jute.set_data(path, data, version)
        case Delete(_, version):
            return jute.delete(path, version)
        case CheckVersion(_, version):
            return jute.check(path, version)


def failed_operation(codes: Sequence[int]) -> int | None:
    """Index of the operation at which a transaction failed; None if the transaction was carried out. Operations before
    it carry OK, those after it RUNTIME_INCONSISTENCY."""
    for index, code in enumerate(codes):
        if code not in (ZookeeperError.OK, ZookeeperError.RUNTIME_INCONSISTENCY):
            return index
    return None


class TransactionRequest:
    """A transaction that can be cancelled until it has been sent.

    kazoo queues requests while the connection is down and sends them after it is restored, even if the caller has
    stopped waiting long ago. A write must not happen then: the caller has already reported a failure. kazoo serializes
    a request at the moment of sending, so `cancel` and the sending meet there: the first of them wins, and a request
    cancelled in time is sent as a transaction without operations.
    """

    type = int(Op.MULTI)
    _body = staticmethod(jute.multi)

    def __init__(self, operations: list[bytes]) -> None:
        """``operations`` as `encoded`."""
        self._operations = operations
        self._lock = threading.Lock()
        self._sent = False
        self._cancelled = False

    def serialize(self) -> bytes:
        with self._lock:
            if self._cancelled:
                return jute.multi([])
            self._sent = True
        return self._body(self._operations)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[object]:
        # A list, because kazoo runs what it takes for a transaction's results through its own unchroot, item by item.
        return [buffer, offset]

    def cancel(self) -> bool:
        """Cancels the request. Returns False if it may already have reached the server."""
        with self._lock:
            self._cancelled = True
            return not self._sent


class BulkWrite(TransactionRequest):
    """A transaction of nothing but setData, each as `jute.set_data_at`; ``paths`` are theirs, as `jute.ustring`."""

    _body = staticmethod(jute.multi_set)

    def __init__(self, operations: list[bytes], paths: list[bytes]) -> None:
        super().__init__(operations)
        self.paths = paths
