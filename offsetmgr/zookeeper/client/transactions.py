"""Transactions: their operations, their results, and the requests in the form that kazoo's connection accepts.

Ordering contract: the server executes a transaction entirely or not at all. A transaction with the outcome
`OperationState.NOT_SENT` has no effect. If the client sent a transaction but got no response
(`OperationState.UNKNOWN`), the server may have carried it out. To find out, the caller must read the nodes.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.connection import OPEN, Acl, encode
from offsetmgr.zookeeper.client.jute import Op, ZookeeperError

MAX_OPERATIONS_PER_TRANSACTION: Final = 450
"""In benchmarks, transactions of 400 to 500 operations write 54,000 to 77,000 nodes per second; larger transactions are
not faster."""

MAX_BYTES_PER_TRANSACTION: Final = 700 * 1024
"""Less than the server's default ``jute.maxbuffer`` (1 MiB), which limits both requests and the records of the server's
transaction log."""

_OVERHEAD: Final = 128
"""An upper limit for the encoded size of an operation without its path and data. It covers the header, three lengths,
the open ACL, the version, and a chroot of usual length."""

_OPEN: Final = encode(OPEN)
_INT: Final = struct.Struct("!i")


class Create(NamedTuple):
    """Creates a node, with the ACL from the session's policy unless ``acl`` is given. The server deletes an
    ``ephemeral`` node with its session.

    If the node exists, the server rejects the operation with NODE_EXISTS. If the parent is missing, the server rejects
    it with NO_NODE.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    acl: Acl | None = None


class SetData(NamedTuple):
    """Sets the data of a node if its data version is ``version``. If the version differs, the server rejects the
    operation with BAD_VERSION. If the node does not exist, the server rejects it with NO_NODE."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Deletes a node if its data version is ``version`` and it has no children. Otherwise the server rejects the
    operation with BAD_VERSION, NO_NODE or NOT_EMPTY."""

    path: str
    version: int


class CheckVersion(NamedTuple):
    """Changes nothing, but fails the transaction with BAD_VERSION or NO_NODE if the node's data version is not
    ``version``."""

    path: str
    version: int


TransactionOperation: TypeAlias = Create | SetData | Delete | CheckVersion


class OperationState(Enum):
    """The possible outcomes of a transaction."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    """The server rejected the transaction because the operation at index `TransactionResult.failed_index` failed."""
    NOT_SENT = "not sent"
    """The client has not sent the transaction and will never send it."""
    UNKNOWN = "unknown"
    """The client sent the transaction and got no response."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The outcome of one transaction.

    ``failed_index`` is the index of the failed operation, and ``code`` is the error code of this operation. ``error``
    is set in every state except COMMITTED.
    """

    state: OperationState
    failed_index: int | None = None
    code: int = ZookeeperError.OK
    error: OffsetMgrError | None = None


def max_encoded_size(operation: TransactionOperation) -> int:
    """An upper limit for the encoded size of an operation, in bytes."""
    data = operation.data if isinstance(operation, (SetData, Create)) else b""
    return len(operation.path.encode()) + len(data) + _OVERHEAD


def encode_operation(operation: TransactionOperation, chroot: str, acl: Acl | None = None) -> bytes:
    """Encodes one operation of a transaction. ``acl`` is the ACL for a `Create` without one (default: `OPEN`)."""
    path = chroot + operation.path
    if isinstance(operation, SetData):
        return jute.set_data(path, operation.data, operation.version)
    if isinstance(operation, Create):
        acl = operation.acl or acl
        encoded = _OPEN if acl is None else encode(acl)
        flags = _INT.pack(operation.ephemeral)
        return jute.operation(Op.CREATE, path, jute.ustring(operation.data), encoded, flags)
    op = Op.DELETE if isinstance(operation, Delete) else Op.CHECK
    return jute.operation(op, path, _INT.pack(operation.version))


def failed_operation(codes: Sequence[int]) -> int | None:
    """Returns the index of the operation at which a transaction failed, or None if the transaction was committed.

    For a failed transaction, the server returns OK for the operations before the failed one, and RUNTIME_INCONSISTENCY
    for the operations after it.
    """
    for index, code in enumerate(codes) if any(codes) else ():
        if code not in (ZookeeperError.OK, ZookeeperError.RUNTIME_INCONSISTENCY):
            return index
    return None


class TransactionRequest:
    """A transaction that the caller can cancel until kazoo sends it.

    While the connection is down, kazoo queues requests. kazoo sends the queued requests when the connection is
    restored, even if the caller has stopped waiting and has reported a failure. Therefore the caller cancels a request
    when it stops waiting. kazoo calls `serialize` just before it sends the request. If the request has been cancelled,
    `serialize` returns a transaction without operations.
    """

    type = int(Op.MULTI)

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
        return jute.multi(self._operations)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[object]:
        # Returns a list, because kazoo calls its own unchroot for each item of a transaction's result.
        return [buffer, offset]

    def cancel(self) -> bool:
        """Cancels the request. Returns False if kazoo has already sent it."""
        with self._lock:
            self._cancelled = True
            return not self._sent


# Requests for bulk reads, in the form that kazoo's connection accepts. kazoo accepts any object with a ``type`` and
# ``serialize()`` as a request, and passes the bytes of the response to the object's ``deserialize``. kazoo has no
# class for multi-reads (opcode 22, ZooKeeper 3.6 and later), so this module defines one. ``deserialize`` runs in
# kazoo's connection thread, which also sends pings and must not be blocked. Therefore ``deserialize`` in the classes
# of this module returns the bytes without decoding them. The thread that made the call decodes the bytes.

RawResponse: TypeAlias = tuple[bytes, int]
"""A response's buffer, and the offset where its body begins."""

MAX_PATHS_PER_REQUEST: Final = 500
"""The maximum number of paths in one request. In benchmarks, larger requests are not faster, and they delay other
clients of the server."""

MAX_BYTES_PER_REQUEST: Final = 512 * 1024
"""Half of the server's default ``jute.maxbuffer`` (1 MiB); the server drops the connection if a request is larger."""


class SingleRead:
    """A request that reads the data or the children of one node, without a watch (getData or getChildren)."""

    def __init__(self, op: Op, path: bytes) -> None:
        self.type = int(op)
        self._path = path

    def serialize(self) -> bytes:
        return jute.ustring(self._path) + b"\0"

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawResponse:
        return buffer, offset


T = TypeVar("T")


class BulkKind(NamedTuple, Generic[T]):
    """A kind of multi-read: the operation, and the decoder of its response, which has a result or an error code for
    each node."""

    op: Op
    decode: Callable[[bytes, int, int], list[T]]


BULK_DATA: Final = BulkKind(Op.GET, jute.multi_node_data)
BULK_NAMES: Final = BulkKind(Op.CHILDREN, jute.multi_child_names)
BULK_VECTORS: Final = BulkKind(Op.CHILDREN, jute.multi_name_vectors)
"""Each result is an error code, or a vector of names that `jute.names_in` decodes."""


class BulkRead(Generic[T]):
    """A request that reads the data or the children of many nodes. The caller encodes the ``count`` operations with
    `jute.read_operations`."""

    type = int(Op.MULTI_READ)

    def __init__(self, kind: BulkKind[T], operations: list[bytes], count: int) -> None:
        self._kind = kind
        self._operations = operations
        self.count = count

    @classmethod
    def of(cls, kind: BulkKind[T], paths: list[bytes]) -> Self:
        """Returns the request that reads the nodes at these (UTF-8) paths."""
        return cls(kind, [jute.read_operations(kind.op, list(map(jute.ustring, paths)))], len(paths))

    def serialize(self) -> bytes:
        return jute.multi(self._operations)

    deserialize = staticmethod(SingleRead.deserialize)

    def decode(self, buffer: bytes, offset: int) -> list[T]:
        """Decodes the response. Runs in the thread that made the call. Raises `jute.ZookeeperProtocolError`."""
        return self._kind.decode(buffer, offset, self.count)


def split_into_requests(paths: list[bytes]) -> list[list[bytes]]:
    """Splits the paths into lists, each of which fits in one request. Keeps the order of the paths."""
    requests: list[list[bytes]] = []
    for begin in range(0, len(paths), MAX_PATHS_PER_REQUEST):
        chunk = paths[begin : begin + MAX_PATHS_PER_REQUEST]
        if sum(map(len, chunk)) <= MAX_BYTES_PER_REQUEST:
            requests.append(chunk)
        else:  # a quarter of the paths always fits: no path of Kafka exceeds 4 KiB
            quarter = MAX_PATHS_PER_REQUEST // 4
            requests += [chunk[at : at + quarter] for at in range(0, len(chunk), quarter)]
    return requests
