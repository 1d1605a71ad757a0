"""Read requests in the form that kazoo's connection accepts.

kazoo sends any object that has a ``type`` and ``serialize()``, and passes the response's bytes to its ``deserialize``.
It has no class for multi-read (opcode 22, ZooKeeper 3.6 and later), so this module adds it. These classes decode
nothing: ``deserialize`` runs in kazoo's connection thread, which also sends pings and must not be kept busy. The
calling thread decodes the bytes.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.jute import Expected, NodeData, Op

RawAnswer: TypeAlias = tuple[bytes, int]
"""A response's buffer, and the offset where its body begins."""

NodeAnswer: TypeAlias = NodeData | int
ChildrenAnswer: TypeAlias = list[str] | int
"""The names found, or the `jute.Code` of that node alone."""

PATHS_A_REQUEST: Final = 500
"""Measured: larger requests are no faster, and make other clients of the server wait."""

BYTES_A_REQUEST: Final = 512 * 1024
"""Half of the server's default ``jute.maxbuffer`` (1 MiB); the server drops the connection if a request is larger."""


class SingleRead:
    """getData or getChildren of one node, without a watch."""

    def __init__(self, op: Op, path: bytes) -> None:
        self.type = int(op)
        self._path = path

    def serialize(self) -> bytes:
        return jute.single_read(self._path)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawAnswer:
        return buffer, offset


class MultiRead:
    """getData or getChildren of many nodes in one request, with a result or an error for each."""

    type = int(Op.MULTI_READ)

    def __init__(self, op: Op, paths: list[bytes]) -> None:
        self.op = op
        self.paths = paths

    def serialize(self) -> bytes:
        return jute.multi_read(self.op, self.paths)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawAnswer:
        return buffer, offset


T = TypeVar("T")


class BulkRead(Generic[T]):
    """A multi-read whose operations (`jute.reads`, ``count`` of them in all) the caller encodes.

    Each subclass defines one kind of request and decodes its response.
    """

    type = int(Op.MULTI_READ)

    def __init__(self, operations: list[bytes], count: int) -> None:
        self._operations = operations
        self.count = count

    def serialize(self) -> bytes:
        return jute.multi_read_of(self._operations)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawAnswer:
        return buffer, offset

    def decoded(self, buffer: bytes, offset: int) -> T:
        """Decodes the response, in the calling thread. Raises `jute.ZookeeperProtocolError`."""
        raise NotImplementedError


class BulkGet(BulkRead[list[NodeData | int]]):
    """getData of many nodes."""

    def decoded(self, buffer: bytes, offset: int) -> list[NodeData | int]:
        return jute.multi_node_data(buffer, offset, self.count)


class BulkList(BulkRead[list[bytes | int]]):
    """getChildren of many nodes; the names are in the form of `jute.multi_name_vectors`."""

    def decoded(self, buffer: bytes, offset: int) -> list[bytes | int]:
        return jute.multi_name_vectors(buffer, offset, self.count)


class BulkVerify(BulkRead[tuple[RawAnswer, list[NodeData | int] | None]]):
    """getData of many nodes whose content is ``expected`` (in the form of `jute.holds`; None: unknown).

    If all of them match, the nodes stay undecoded.
    """

    def __init__(self, operations: list[bytes], count: int, expected: Expected | None) -> None:
        super().__init__(operations, count)
        self._expected = expected

    def decoded(self, buffer: bytes, offset: int) -> tuple[RawAnswer, list[NodeData | int] | None]:
        answer = buffer, offset
        if self._expected is not None and jute.holds(buffer, offset, self._expected):
            return answer, None
        return answer, jute.multi_node_data(buffer, offset, self.count)


class BulkChildren(BulkRead[list[int | None]]):
    """getData of many nodes, decoded by `jute.multi_children_zxids`."""

    def decoded(self, buffer: bytes, offset: int) -> list[int | None]:
        return jute.multi_children_zxids(buffer, offset, self.count)


def in_requests(paths: list[bytes]) -> list[list[bytes]]:
    """Splits the paths, in order, into lists that each fit one request."""
    requests: list[list[bytes]] = []
    for begin in range(0, len(paths), PATHS_A_REQUEST):
        chunk = paths[begin : begin + PATHS_A_REQUEST]
        if sum(map(len, chunk)) <= BYTES_A_REQUEST:
            requests.append(chunk)
        else:  # only with very long paths: a quarter of them fits, as no path of ours is over 4 KiB
            quarter = PATHS_A_REQUEST // 4
            requests += [chunk[at : at + quarter] for at in range(0, len(chunk), quarter)]
    return requests
