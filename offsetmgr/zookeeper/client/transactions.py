"""Writes: the operations of a transaction, what became of it, and the request as kazoo's connection wants it.

Ordering contract: a transaction is carried out entirely or not at all.  One that was never sent is known not to have
happened; one that was sent and not answered (`OperationState.UNKNOWN`) may have happened, and whoever sent it must read
again and decide.
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
"""Measured: 400 to 500 operations write 54,000 to 77,000 nodes a second; more of them gain nothing."""

BYTES_A_TRANSACTION: Final = 700 * 1024
"""Below the server's default ``jute.maxbuffer`` (1 MiB), which the server's own log record must respect as well."""

_OVERHEAD: Final = 128
"""A header, three lengths, an open ACL, a version; and room for a chroot of ordinary length."""

_OPEN: Final = encode(OPEN)


class Create(NamedTuple):
    """Creates a node, with the ACL that the session's policy gives it; refused with NODE_EXISTS, or NO_NODE where its
    parent is missing.

    An ``ephemeral`` one goes with the session that created it.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetData(NamedTuple):
    """Sets the data of a node that is at ``version``; refused with BAD_VERSION or NO_NODE."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Deletes a node that is at ``version`` and has no children; refused with BAD_VERSION, NO_NODE, NOT_EMPTY."""

    path: str
    version: int


class CheckVersion(NamedTuple):
    """Changes nothing; refused unless the node exists and is at ``version``."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | CheckVersion


class OperationState(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    REFUSED = "refused"
    """The server answered that it did not do it; `TransactionResult.failed_operation` is the operation that was to
    blame."""
    NOT_SENT = "not sent"
    """It never left this process and never will."""
    UNKNOWN = "unknown"
    """It was sent, and no answer came."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What became of one transaction.

    ``culprit`` is the index of the operation that was refused and ``code`` why; ``error`` is set in every state but
    COMMITTED.
    """

    state: OperationState
    failed_operation: int | None = None
    code: int = ZookeeperError.OK
    error: OffsetMgrError | None = None


def weight(operation: Operation) -> int:
    """An upper bound of what an operation adds to a transaction, in bytes."""
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
    """Index of the operation that a transaction failed at. Those before it carry OK, those after it
    RUNTIME_INCONSISTENCY; None where the transaction was carried out."""
    for index, code in enumerate(codes):
        if code not in (ZookeeperError.OK, ZookeeperError.RUNTIME_INCONSISTENCY):
            return index
    return None


class TransactionRequest:
    """A transaction that can be taken back as long as it has not been sent.

    kazoo keeps requests in its queue while the connection is down, and sends them when it is up again, however long
    the caller has stopped waiting.  A write must not happen then: the caller has long reported that it failed.  kazoo
    serializes a request at the moment of sending, so that is where `cancel` and the sending meet: whichever comes
    first wins, and a request cancelled in time goes out as a transaction without operations.
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
        """Takes the request back. False where it is too late, because it may have reached the server."""
        with self._lock:
            self._cancelled = True
            return not self._sent


class BulkWrite(TransactionRequest):
    """A transaction of nothing but setData, each as `jute.set_data_at`; ``paths`` are theirs, as `jute.ustring`."""

    _body = staticmethod(jute.multi_set)

    def __init__(self, operations: list[bytes], paths: list[bytes]) -> None:
        super().__init__(operations)
        self.paths = paths
