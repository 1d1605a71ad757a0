"""The requests that read nodes, as kazoo's connection wants to be given them.

kazoo sends anything that has a ``type`` and ``serialize()``, and hands the answer's bytes to its ``deserialize``.  It
has no class for multi-read (opcode 22, ZooKeeper 3.6 and later), so these stand beside its own.  None of them decodes
anything: ``deserialize`` runs in kazoo's connection thread, which also answers pings and must not be kept busy; the
bytes are decoded by the thread that asked.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.jute import Expected, NodeData, Op

RawAnswer: TypeAlias = tuple[bytes, int]
"""An answer's buffer, and the offset where its body begins."""

NodeAnswer: TypeAlias = NodeData | int
ChildrenAnswer: TypeAlias = list[str] | int
"""What was found, or the `jute.Code` of that node alone."""

PATHS_A_REQUEST: Final = 500
"""Measured: larger requests gain nothing more, and keep others on the server waiting."""

BYTES_A_REQUEST: Final = 512 * 1024
"""Half of the server's default ``jute.maxbuffer`` (1 MiB), above which it drops the connection."""


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
    """getData or getChildren of many nodes in one request, each with a result or an error of its own."""

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
    """A multi-read whose operations (`jute.reads`, ``count`` of them in all) are encoded by whoever asks.

    A kind of it says what is asked, and understands the answer.
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
        """What was found, in the thread that asked. Raises `jute.BrokenAnswer`."""
        raise NotImplementedError


class BulkGet(BulkRead[list[NodeData | int]]):
    """getData of many nodes."""

    def decoded(self, buffer: bytes, offset: int) -> list[NodeData | int]:
        return jute.multi_node_data(buffer, offset, self.count)


class BulkList(BulkRead[list[bytes | int]]):
    """getChildren of many nodes; the names as `jute.multi_name_vectors` has them."""

    def decoded(self, buffer: bytes, offset: int) -> list[bytes | int]:
        return jute.multi_name_vectors(buffer, offset, self.count)


class BulkVerify(BulkRead[tuple[RawAnswer, list[NodeData | int] | None]]):
    """getData of many nodes of which it is ``expected`` what they hold (as `jute.holds` has it; None: no telling).

    Where they all do, the nodes stay undecoded.
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
    """getData of many nodes for the sake of `jute.multi_children_zxids`."""

    def decoded(self, buffer: bytes, offset: int) -> list[int | None]:
        return jute.multi_children_zxids(buffer, offset, self.count)


def in_requests(paths: list[bytes]) -> list[list[bytes]]:
    """The paths in their order, cut into lists that each fit one request."""
    requests: list[list[bytes]] = []
    for begin in range(0, len(paths), PATHS_A_REQUEST):
        chunk = paths[begin : begin + PATHS_A_REQUEST]
        if sum(map(len, chunk)) <= BYTES_A_REQUEST:
            requests.append(chunk)
        else:  # only with very long paths: a quarter of them fits, as no path of ours is over 4 KiB
            quarter = PATHS_A_REQUEST // 4
            requests += [chunk[at : at + quarter] for at in range(0, len(chunk), quarter)]
    return requests
