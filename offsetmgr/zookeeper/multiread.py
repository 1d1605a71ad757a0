"""The requests that read nodes, as kazoo's connection wants to be given them.

kazoo sends anything that has a ``type`` and ``serialize()``, and hands the answer's bytes to its ``deserialize``.  It
has no class for multi-read (opcode 22, ZooKeeper 3.6 and later), so these stand beside its own.  None of them decodes
anything: ``deserialize`` runs in kazoo's connection thread, which also answers pings and must not be kept busy; the
bytes are decoded by the thread that asked.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from offsetmgr.zookeeper import jute
from offsetmgr.zookeeper.jute import NodeData, Op

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


class BulkRead:
    """getData of many nodes in one request, as `MultiRead`; ``paths`` are each a `jute.ustring` with the chroot."""

    type = int(Op.MULTI_READ)

    def __init__(self, paths: list[bytes]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        return jute.multi_get(self.paths)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> RawAnswer:
        return buffer, offset


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
