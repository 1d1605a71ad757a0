"""Transactions: their operations, their results, and the requests in the form that kazoo's connection accepts.

Ordering contract: the server carries out a transaction entirely or not at all. A transaction that was never sent has no
effect. If a transaction was sent and got no response (`OperationState.UNKNOWN`), the server may have carried it out, so
the caller must read again and decide.
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

MAX_OPERATIONS_PER_TRANSACTION: Final = 450
"""Benchmarks show 54,000 to 77,000 written nodes a second with 400 to 500 operations; more operations are no faster."""

MAX_BYTES_PER_TRANSACTION: Final = 700 * 1024
"""Less than the server's default ``jute.maxbuffer`` (1 MiB), which also limits a record of the server's log."""

_OVERHEAD: Final = 128
"""Bytes of a header, three lengths, an open ACL, a version, and a chroot of usual length."""

_OPEN: Final = encode(OPEN)


class Create(NamedTuple):
    """Creates a node with the ACL from the session's policy. The server deletes an ``ephemeral`` node with its session.

    The server rejects it with NODE_EXISTS, or with NO_NODE if the parent is missing.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetData(NamedTuple):
    """Sets the data of a node that is at ``version``. The server rejects it with BAD_VERSION or NO_NODE."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Deletes a node that is at ``version``. The server rejects it with BAD_VERSION, NO_NODE, or NOT_EMPTY
    (children)."""

    path: str
    version: int


class CheckVersion(NamedTuple):
    """Checks that a node is at ``version`` and changes nothing. The server rejects it with BAD_VERSION or NO_NODE."""

    path: str
    version: int


TransactionOperation: TypeAlias = Create | SetData | Delete | CheckVersion


class OperationState(Enum):
    """The possible outcomes of a transaction."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    """The server rejected the transaction because of the operation `TransactionResult.failed_index`."""
    NOT_SENT = "not sent"
    """The client has not sent the transaction and will never send it."""
    UNKNOWN = "unknown"
    """The client sent the transaction and got no response."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The outcome of one transaction.

    ``failed_index`` is the index of the rejected operation and ``code`` its error code. ``error`` is set in every state
    except COMMITTED.
    """

    state: OperationState
    failed_index: int | None = None
    code: int = ZookeeperError.OK
    error: OffsetMgrError | None = None


def max_encoded_size(operation: TransactionOperation) -> int:
    """An upper limit for the encoded size of an operation, in bytes."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path.encode()) + len(data) + _OVERHEAD


def encode_operation(operation: TransactionOperation, chroot: str, acl: bytes = _OPEN) -> bytes:
    """Encodes one operation for a transaction's body; ``acl`` is the encoded ACL of a node that it creates."""
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
    """The index of the operation at which a transaction failed; None if it committed.

    The server returns OK for the operations before it and RUNTIME_INCONSISTENCY for those after it.
    """
    for index, code in enumerate(codes):
        if code not in (ZookeeperError.OK, ZookeeperError.RUNTIME_INCONSISTENCY):
            return index
    return None


class TransactionRequest:
    """A transaction that the caller can cancel until kazoo sends it.

    kazoo queues requests while the connection is down and sends them after it is restored, even if the caller stopped
    waiting long ago and has reported a failure. The write must not happen then. kazoo serializes a request when it
    sends it: if the caller has cancelled the request before, kazoo sends a transaction without operations instead.
    """

    type = int(Op.MULTI)
    _body = staticmethod(jute.multi)

    def __init__(self, operations: list[bytes]) -> None:
        """``operations`` are the results of `encode_operation`."""
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
        # A list, because kazoo passes each item of a transaction's result to its own unchroot.
        return [buffer, offset]

    def cancel(self) -> bool:
        """Cancels the request. Returns False if kazoo has already sent it."""
        with self._lock:
            self._cancelled = True
            return not self._sent


class BulkWrite(TransactionRequest):
    """A transaction of setData operations from `jute.encode_set_data`; ``paths`` are their paths as `jute.ustring`."""

    _body = staticmethod(jute.multi_set)

    def __init__(self, operations: list[bytes], paths: list[bytes]) -> None:
        super().__init__(operations)
        self.paths = paths
