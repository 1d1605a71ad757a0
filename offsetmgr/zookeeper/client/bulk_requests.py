"""Requests for bulk reads, in the form that kazoo's connection accepts.

kazoo accepts any object with a ``type`` and ``serialize()`` as a request, and passes the bytes of the response to the
object's ``deserialize``. kazoo has no class for multi-reads (opcode 22, ZooKeeper 3.6 and later), so this module
defines one. ``deserialize`` runs in kazoo's connection thread, which also sends pings and must not be blocked.
Therefore ``deserialize`` in the classes of this module returns the bytes without decoding them. The thread that made
the call decodes the bytes.
"""

from __future__ import annotations

from typing import Final, Generic, Self, TypeAlias, TypeVar

from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.jute import NodeData, Op

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


class BulkRead(Generic[T]):
    """A request that reads the data or the children of many nodes. The response has a result or an error for each node.

    The caller encodes the ``count`` operations with `jute.read_operations`. Each subclass decodes the response of one
    kind of request.
    """

    type = int(Op.MULTI_READ)
    op: Op

    def __init__(self, operations: list[bytes], count: int) -> None:
        self._operations = operations
        self.count = count

    @classmethod
    def of(cls, paths: list[bytes]) -> Self:
        """Returns the request that reads the nodes at these (UTF-8) paths."""
        return cls([jute.read_operations(cls.op, list(map(jute.ustring, paths)))], len(paths))

    def serialize(self) -> bytes:
        return jute.multi(self._operations)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawResponse:
        return buffer, offset

    def decode(self, buffer: bytes, offset: int) -> T:
        """Decodes the response. Runs in the thread that made the call. Raises `jute.ZookeeperProtocolError`."""
        raise NotImplementedError


class BulkGet(BulkRead[list[NodeData | int]]):
    """getData of many nodes."""

    op = Op.GET

    def decode(self, buffer: bytes, offset: int) -> list[NodeData | int]:
        return jute.multi_node_data(buffer, offset, self.count)


class BulkList(BulkRead[list[bytes | int]]):
    """getChildren of many nodes. Each result is an error code, or a vector of names that `jute.names_in` decodes."""

    op = Op.CHILDREN

    def decode(self, buffer: bytes, offset: int) -> list[bytes | int]:
        return jute.multi_name_vectors(buffer, offset, self.count)


class BulkNames(BulkRead[list[list[str] | int]]):
    """getChildren of many nodes. Each result is an error code, or the names of the node's children."""

    op = Op.CHILDREN

    def decode(self, buffer: bytes, offset: int) -> list[list[str] | int]:
        return jute.multi_child_names(buffer, offset, self.count)


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
