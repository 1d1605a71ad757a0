"""The history of a group from the transaction log of a ZooKeeper server: every owner node and every written offset.

A client that polls or watches sees only samples; the log has every change, in order, with its time and session. Format:
org.apache.zookeeper.server.persistence.FileTxnLog and the records of zookeeper.jute (3.6 and later).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from offsetmgr.core.model import TopicPartition

_HEADER: Final = struct.Struct("!iiq")
_ENTRY: Final = struct.Struct("!qi")
_TXN: Final = struct.Struct("!qiqqi")
_MAGIC: Final = int.from_bytes(b"ZKLG", "big")
_INT: Final = struct.Struct("!i")

_CREATE, _DELETE, _SET, _MULTI, _CREATE2, _CLOSE, _ERROR = 1, 2, 5, 14, 15, -11, -1

End = Literal["released", "closed", "expired", "deleted by others"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one node. ``kind`` is ``create``, ``set``, ``delete``, or ``end`` for a session (without a
    path)."""

    zxid: int
    time_ms: int
    session: int
    kind: str
    path: str = ""
    data: bytes = b""
    ephemeral: bool = False
    by_server: bool = False
    """For an ``end``: the server ended the session, not the client."""


@dataclass(slots=True)
class OwnerNode:
    """One owner node from its creation to its end; times are the server's, in ms since 1970."""

    partition: TopicPartition
    owner: str
    session: int
    created_zxid: int
    created_ms: int
    ended_zxid: int | None = None
    ended_ms: int | None = None
    how: End | None = None

    @property
    def member(self) -> str:
        return self.owner.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Commit:
    partition: TopicPartition
    offset: int
    zxid: int
    time_ms: int
    session: int


@dataclass(slots=True)
class GroupHistory:
    owner_nodes: list[OwnerNode] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    members: dict[int, str] = field(default_factory=dict)
    """The member that registered in each session."""
    session_ends: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """For each session the time of its end (ms), and whether the server ended it."""


def changes(data_directory: Path) -> Iterator[Change]:
    """All changes in their order. The log may be read while the server runs."""
    logs = (data_directory / "version-2").glob("log.*")
    for file in sorted(logs, key=lambda path: int(path.suffix[1:], 16)):
        content = file.read_bytes()
        if not content:  # the server has just created the file
            continue
        assert _HEADER.unpack_from(content)[0] == _MAGIC
        at = _HEADER.size
        while at + _ENTRY.size <= len(content):
            checksum, length = _ENTRY.unpack_from(content, at)
            at += _ENTRY.size
            entry = content[at : at + length]
            if length == 0 or zlib.adler32(entry) != checksum:  # preallocated, or not completely written
                break
            yield from _of_transaction(entry)
            at += length + 1


def group_history(data_directory: Path, chroot: str, group: str) -> GroupHistory:
    root = f"{chroot}/consumers/{group}/"
    found = GroupHistory()
    alive: dict[str, OwnerNode] = {}
    for change in changes(data_directory):
        if change.kind == "end":
            found.session_ends[change.session] = change.time_ms, change.by_server
            how: End = "expired" if change.by_server else "closed"
            for path in [path for path, node in alive.items() if node.session == change.session]:
                _end(alive.pop(path), change, how)
            continue
        if not change.path.startswith(root):
            continue
        match change.path[len(root) :].split("/"):
            case ["ids", member] if change.kind == "create":
                found.members[change.session] = member
            case ["owners", topic, number] if change.kind == "create":
                node = OwnerNode(
                    TopicPartition(topic, int(number)),
                    change.data.decode(),
                    change.session,
                    change.zxid,
                    change.time_ms,
                )
                alive[change.path] = node
                found.owner_nodes.append(node)
            case ["owners", _, _] if change.kind == "delete" and change.path in alive:
                node = alive.pop(change.path)
                _end(node, change, "released" if node.session == change.session else "deleted by others")
            case ["offsets", topic, number] if change.kind in ("create", "set") and change.data:
                partition = TopicPartition(topic, int(number))
                found.commits.append(Commit(partition, int(change.data), change.zxid, change.time_ms, change.session))
    return found


def _end(node: OwnerNode, change: Change, how: End) -> None:
    node.ended_zxid, node.ended_ms, node.how = change.zxid, change.time_ms, how


def _of_transaction(txn: bytes) -> Iterator[Change]:
    session, cxid, zxid, time_ms, kind = _TXN.unpack_from(txn)
    body = txn[_TXN.size :]
    if kind == _CLOSE:
        # Clients number their requests from 1; the requests of the server itself have the number 0.
        yield Change(zxid, time_ms, session, "end", by_server=cxid == 0)
    elif kind == _MULTI:
        at = _INT.size
        operations: list[tuple[int, bytes]] = []
        for _ in range(_INT.unpack_from(body)[0]):
            (inner,) = _INT.unpack_from(body, at)
            data, at = _buffer(body, at + _INT.size)
            operations.append((inner, data))
        # The log also contains rejected transactions, in which the operations before the failed one look successful.
        if all(inner != _ERROR for inner, _ in operations):
            for inner, data in operations:
                yield from _of_operation(inner, data, zxid, time_ms, session)
    else:
        yield from _of_operation(kind, body, zxid, time_ms, session)


def _of_operation(kind: int, body: bytes, zxid: int, time_ms: int, session: int) -> Iterator[Change]:
    if kind in (_CREATE, _CREATE2):
        path, at = _buffer(body, 0)
        data, at = _buffer(body, at)
        (entries,) = _INT.unpack_from(body, at)
        at += _INT.size
        for _ in range(entries):
            _, at = _buffer(body, at + _INT.size)
            _, at = _buffer(body, at)
        yield Change(zxid, time_ms, session, "create", path.decode(), data, ephemeral=body[at] != 0)
    elif kind == _SET:
        path, at = _buffer(body, 0)
        yield Change(zxid, time_ms, session, "set", path.decode(), _buffer(body, at)[0])
    elif kind == _DELETE:
        yield Change(zxid, time_ms, session, "delete", _buffer(body, 0)[0].decode())


def _buffer(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(body, at)
    start = at + _INT.size
    end = start + max(length, 0)
    return body[start:end], end
