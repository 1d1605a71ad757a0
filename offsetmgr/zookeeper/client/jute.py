"""Encodes and decodes ZooKeeper's multi-reads and transactions (jute). Pure: bytes in, bytes out.

kazoo encodes and decodes operations one by one, which is slow for thousands of nodes. This module encodes hundreds of
operations together. Source: zookeeper.jute, MultiOperationRecord, MultiTransactionRecord and MultiResponse of
ZooKeeper's own source (multi-read: ZOOKEEPER-1444, since 3.6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple


class ZookeeperError(IntEnum):
    """The result codes of org.apache.zookeeper.KeeperException that offsetmgr handles."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    """The result code of each operation after the failed operation, in the response to a rejected transaction."""
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111


class Op(IntEnum):
    """Operation codes of requests (ZooDefs.OpCode)."""

    CREATE = 1
    DELETE = 2
    GET = 4
    SET = 5
    CHILDREN = 8
    CHECK = 13
    MULTI = 14
    MULTI_READ = 22


class NodeData(NamedTuple):
    """A node's data with the fields of its Stat that offsetmgr uses. Times are milliseconds since 1970."""

    data: bytes
    czxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    """The data version, which each setData increases by one."""
    ephemeral_owner: int
    """The id of the session that owns an ephemeral node; 0 for a persistent node."""
    children: int = 0
    """The number of the node's children."""

    @property
    def session(self) -> str | None:
        """The owner of an ephemeral node, formatted like ZooKeeper's own tools; None for a persistent node."""
        return f"{self.ephemeral_owner & 0xFFFFFFFFFFFFFFFF:#x}" if self.ephemeral_owner else None


class ZookeeperProtocolError(ValueError):
    """A response from the server does not follow the protocol."""


_INT: Final = struct.Struct("!i")
_MULTI_HEADER: Final = struct.Struct("!iBi")
_TYPE_AND_FIRST_INT: Final = struct.Struct("!i5xi")
_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_HEADERS: Final = {op: _MULTI_HEADER.pack(op, False, -1) for op in Op}


@lru_cache(maxsize=1024)
def _node_struct(length: int) -> struct.Struct:
    # Unpacks the data and the fields of Stat that `NodeData` contains. The fields of Stat are czxid, (mzxid), ctime,
    # mtime, version, (cversion, aversion), ephemeralOwner, (dataLength), numChildren, (pzxid). The fields in
    # parentheses are skipped.
    return struct.Struct(f"!{length}sq8xqqi8xq4xi8x")


# --- requests -------------------------------------------------------------------------------------


def operation(op: Op, path: str, *parts: bytes) -> bytes:
    """Encodes an operation of a transaction. ``parts`` are its encoded fields after the path."""
    raw = path.encode()
    return b"".join((_HEADERS[op], _INT.pack(len(raw)), raw, *parts))


def set_data(path: str, data: bytes, version: int) -> bytes:
    """Like `operation`, for the operation of nearly all large edits."""
    raw = path.encode()
    return b"".join((_HEADERS[Op.SET], _INT.pack(len(raw)), raw, _INT.pack(len(data)), data, _INT.pack(version)))


def multi(operations: list[bytes]) -> bytes:
    """Body of a transaction or a multi-read with these operations."""
    return b"".join(operations) + _END


# --- responses ---------------------------------------------------------------------------------------


@contextmanager
def _response_to(what: str) -> Iterator[None]:
    """Converts the error for a response that is too short. ``what`` names the request."""
    try:
        yield
    except struct.error as broken:
        raise ZookeeperProtocolError(f"{what}: {broken}") from broken


@_response_to("getData")
def node_data(buffer: bytes, offset: int) -> NodeData:
    """Decodes the response to a single getData."""
    length = max(_INT.unpack_from(buffer, offset)[0], 0)
    return NodeData._make(_node_struct(length).unpack_from(buffer, offset + 4))


@_response_to("multi-read")
def multi_node_data(buffer: bytes, offset: int, count: int) -> list[NodeData | int]:
    """Decodes the response to a multi-read of ``count`` getData operations. Returns the data or the error code of each
    node."""
    results: list[NodeData | int] = []
    # NodeData._make calls tuple.__new__. Calling tuple.__new__ directly avoids a Python frame for every node.
    append, peek, new = results.append, _TYPE_AND_FIRST_INT.unpack_from, tuple.__new__
    get: int = Op.GET
    for _ in range(count):
        # The header has nine bytes and begins with the type. The length of the data, or the error code, follows the
        # header.
        kind, number = peek(buffer, offset)
        offset += 13
        if kind == get:
            length = number if number > 0 else 0
            append(new(NodeData, _node_struct(length).unpack_from(buffer, offset)))
            offset += length + 68
        elif kind == -1:
            append(number)
        else:
            raise ZookeeperProtocolError(f"multi-read: a result of type {kind} instead of getData")
    return results


@_response_to("transaction")
def multi_codes(buffer: bytes, offset: int, count: int) -> list[int]:
    """Decodes the result codes of a transaction's ``count`` operations; all are `ZookeeperError.OK` if the transaction
    was committed."""
    codes: list[int] = []
    unpack = _MULTI_HEADER.unpack_from
    for _ in range(count):
        kind = unpack(buffer, offset)[0]
        offset += 9
        if kind == -1:
            codes.append(_INT.unpack_from(buffer, offset)[0])
            offset += 4
            continue
        codes.append(ZookeeperError.OK)
        if kind == Op.SET:
            offset += 68
        elif kind == Op.CREATE:
            offset += 4 + _INT.unpack_from(buffer, offset)[0]
        elif kind not in (Op.DELETE, Op.CHECK):
            raise ZookeeperProtocolError(f"transaction: a result of type {kind}")
    return codes


def names_in(buffer: bytes, offset: int = 0) -> list[str]:
    """Decodes the vector of names at an offset."""
    unpack = _INT.unpack_from
    count = unpack(buffer, offset)[0]
    offset += 4
    names = []
    for _ in range(count):
        end = offset + 4 + unpack(buffer, offset)[0]
        names.append(buffer[offset + 4 : end].decode())
        offset = end
    return names


child_names: Final = _response_to("getChildren")(names_in)
"""Decodes the response to a single getChildren."""


# --- many operations of one kind, encoded and decoded together ----------------------------------------


def ustring(raw: bytes) -> bytes:
    """Encodes a UTF-8 string, such as a path, as jute's type ustring."""
    return _INT.pack(len(raw)) + raw


def read_operations(op: Op, paths: list[bytes]) -> bytes:
    """Encodes the operations of a multi-read that apply ``op`` to each of ``paths``, which must not be empty. Each path
    must be encoded by `ustring`."""
    header = _HEADERS[op]
    return b"".join((header, (b"\0" + header).join(paths), b"\0"))


def read_operations_below(op: Op, parent: int, names: list[bytes]) -> list[bytes]:
    """Returns a template that encodes ``op`` for the children ``names`` of any node whose path is ``parent`` bytes
    long.

    ``path.join(template)`` returns the operations for the children of the node at ``path``, in the same encoding as
    `read_operations`.
    """
    header, pack = _HEADERS[op], _INT.pack
    heads = [header + pack(parent + 1 + len(name)) for name in names]
    tails = [b"/" + name + b"\0" for name in names]
    return [heads[0], *map(bytes.__add__, tails, heads[1:]), tails[-1]]


@_response_to("multi-read")
def multi_name_vectors(buffer: bytes, offset: int, count: int) -> list[bytes | int]:
    """Splits the response to a multi-read of ``count`` getChildren operations. Each result is an error code, or an
    encoded vector of names that `names_in` decodes.

    Equal lists of names have equal encoded vectors, so callers can cache the decoded names. If consecutive vectors are
    equal, they are the same object.
    """
    results: list[bytes | int] = []
    peek, unpack = _TYPE_AND_FIRST_INT.unpack_from, _INT.unpack_from
    last = b"\xff\xff\xff\xff"  # no vector begins with these bytes
    children: int = Op.CHILDREN
    for _ in range(count):
        kind, number = peek(buffer, offset)
        offset += 9
        if kind == children:
            if not buffer.startswith(last, offset):
                end = offset + 4
                for _ in range(number):
                    end += 4 + unpack(buffer, end)[0]
                last = buffer[offset:end]
            results.append(last)
            offset += len(last)
        elif kind == -1:
            results.append(number)
            offset += 4
        else:
            raise ZookeeperProtocolError(f"multi-read: a result of type {kind} instead of getChildren")
    return results


def multi_child_names(buffer: bytes, offset: int, count: int) -> list[list[str] | int]:
    """Decodes the response to a multi-read of ``count`` getChildren operations. Returns the children's names or the
    error code of each node."""
    return [one if isinstance(one, int) else names_in(one) for one in multi_name_vectors(buffer, offset, count)]
