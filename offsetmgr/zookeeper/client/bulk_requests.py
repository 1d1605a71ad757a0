"""Read requests in the form that kazoo's connection accepts.

kazoo sends any object that has a ``type`` and ``serialize()``, and passes the response's bytes to its ``deserialize``.
It has no class for multi-read (opcode 22, ZooKeeper 3.6 and later), so this module adds it. These classes decode
nothing: ``deserialize`` runs in kazoo's connection thread, which also sends pings and must not be kept busy. The
calling thread decodes the bytes.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.jute import ExpectedContent, NodeData, Op

RawResponse: TypeAlias = tuple[bytes, int]
"""A response's buffer, and the offset where its body begins."""

MAX_PATHS_PER_REQUEST: Final = 500
"""Benchmarks show that larger requests are no faster and delay other clients of the server."""

MAX_BYTES_PER_REQUEST: Final = 512 * 1024
"""Half of the server's default ``jute.maxbuffer`` (1 MiB); the server drops the connection if a request is larger."""


class SingleRead:
    """getData or getChildren of one node, without a watch."""

    def __init__(self, op: Op, path: bytes) -> None:
        self.type = int(op)
        self._path = path

    def serialize(self) -> bytes:
        return jute.single_read(self._path)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawResponse:
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
    def deserialize(buffer: bytes, offset: int) -> RawResponse:
        return buffer, offset


T = TypeVar("T")


class BulkRead(Generic[T]):
    """A multi-read of ``count`` operations, which the caller encodes with `jute.read_operations`.

    Each subclass decodes the response of one kind of request.
    """

    type = int(Op.MULTI_READ)

    def __init__(self, operations: list[bytes], count: int) -> None:
        self._operations = operations
        self.count = count

    def serialize(self) -> bytes:
        return jute.multi_read_of_operations(self._operations)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawResponse:
        return buffer, offset

    def decode(self, buffer: bytes, offset: int) -> T:
        """Decodes the response; the calling thread runs it. Raises `jute.ZookeeperProtocolError`."""
        raise NotImplementedError


class BulkGet(BulkRead[list[NodeData | int]]):
    """getData of many nodes."""

    def decode(self, buffer: bytes, offset: int) -> list[NodeData | int]:
        return jute.multi_node_data(buffer, offset, self.count)


class BulkList(BulkRead[list[bytes | int]]):
    """getChildren of many nodes; `jute.multi_name_vectors` decodes the names."""

    def decode(self, buffer: bytes, offset: int) -> list[bytes | int]:
        return jute.multi_name_vectors(buffer, offset, self.count)


class BulkVerify(BulkRead[tuple[RawResponse, list[NodeData | int] | None]]):
    """getData of many nodes, compared with their ``expected`` content, as in `jute.matches_expected`.

    If every node matches, the result contains no decoded nodes. If ``expected`` is None, the response is always
    decoded.
    """

    def __init__(self, operations: list[bytes], count: int, expected: ExpectedContent | None) -> None:
        super().__init__(operations, count)
        self._expected = expected

    def decode(self, buffer: bytes, offset: int) -> tuple[RawResponse, list[NodeData | int] | None]:
        answer = buffer, offset
        if self._expected is not None and jute.matches_expected(buffer, offset, self._expected):
            return answer, None
        return answer, jute.multi_node_data(buffer, offset, self.count)


class BulkChildren(BulkRead[list[int | None]]):
    """getData of many nodes, reduced to the zxid of the last change of their children: `jute.multi_children_zxids`."""

    def decode(self, buffer: bytes, offset: int) -> list[int | None]:
        return jute.multi_children_zxids(buffer, offset, self.count)


def split_into_requests(paths: list[bytes]) -> list[list[bytes]]:
    """Splits the paths, in order, into lists that each fit one request."""
    requests: list[list[bytes]] = []
    for begin in range(0, len(paths), MAX_PATHS_PER_REQUEST):
        chunk = paths[begin : begin + MAX_PATHS_PER_REQUEST]
        if sum(map(len, chunk)) <= MAX_BYTES_PER_REQUEST:
            requests.append(chunk)
        else:  # very long paths: a quarter fits, because no path of Kafka is over 4 KiB
            quarter = MAX_PATHS_PER_REQUEST // 4
            requests += [chunk[at : at + quarter] for at in range(0, len(chunk), quarter)]
    return requests
