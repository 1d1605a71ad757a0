"""Decodes OffsetCommit requests and encodes their responses, versions 2 to 9.

The codec is hand-written for speed, because commits are the most frequent requests. If no partition of a topic has
metadata (the usual case), all partitions of the topic have the same size, and one call decodes all of them. Otherwise,
the codec decodes the partitions one after the other. Version 10 is not supported, because it identifies topics by id
and an offset manager stores topic names only.

The formats are from Kafka's OffsetCommitRequest.json and OffsetCommitResponse.json. Tests compare the codec with kio's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.requests import EXPECTED, EXPECTED_TAG
from offsetmgr.kafka.protocol.schema_codec import NO_TAGS, Cursor, count, string
from offsetmgr.manager.results import CommitRequest, CommitResponse
from offsetmgr.records.base import PartitionCommit

MIN_VERSION: Final = 2
MAX_VERSION: Final = 9
FLEXIBLE: Final = 8

_NO_EPOCH: Final = -1
_DEFAULT_RETENTION: Final = -1
_THROTTLE: Final = b"\0\0\0\0"

_OFFSET: Final = struct.Struct(">iq")
_OFFSET_EPOCH: Final = struct.Struct(">iqi")
_ROW: Final = struct.Struct(">iq2x")
"""A partition without metadata. The last two bytes are the metadata's length (0 or -1)."""
_ROW_EPOCH: Final = struct.Struct(">iqi2x")
"""A partition with a leader epoch and without metadata. In flexible versions the last two bytes are the metadata's
length and the number of tags."""
_MANY: Final = 256
"""Up to this number of partitions, one call encodes all results without errors."""
_RESULT: Final = struct.Struct(">ih")
_RESULT_TAGS: Final = struct.Struct(">ihx")


def decode(version: int, data: bytes, at: int) -> CommitRequest:
    """Decodes the request whose body begins at ``at``. Raises `InvalidRequest`."""
    cursor = Cursor(data, at, flexible=version >= FLEXIBLE)
    group = cursor.string()
    generation = cursor.int32()
    member_id = cursor.string()
    instance_id = cursor.nullable_string() if version >= 7 else None
    retention = cursor.int64() if version <= 4 else _DEFAULT_RETENTION
    topics: list[tuple[str, Sequence[PartitionCommit]]] = []
    expected: dict[tuple[str, int], int] = {}
    for _ in range(cursor.count(3)):
        topic = cursor.string()
        number = cursor.count(14)
        partitions = _decode_uniform(cursor, number, version)
        topics.append((topic, partitions or _decode_each(cursor, number, version, topic, expected)))
        cursor.tags()
    cursor.tags()
    return CommitRequest(
        group, topics, generation, member_id, instance_id, None if retention < 0 else retention, expected
    )


def _decode_uniform(cursor: Cursor, number: int, version: int) -> list[PartitionCommit] | None:
    """Decodes partitions without metadata. Returns None if a partition has metadata or tags."""
    data, at = cursor.data, cursor.at
    row = _ROW_EPOCH if version >= 6 else _ROW
    size = row.size
    end = at + number * size
    if end > len(data) or number == 0:
        return None
    last_but_one, last = data[at + size - 2 : end : size], data[at + size - 1 : end : size]
    if version >= FLEXIBLE:
        if last_but_one.strip(b"\0\1") or last.strip(NO_TAGS):
            return None
    elif last_but_one != last or last.strip(b"\0\xff"):
        return None
    rows = row.iter_unpack(data[at:end])
    partitions: list[PartitionCommit]
    if version >= 6:
        partitions = [(partition, offset, epoch, "") for partition, offset, epoch in rows]
    else:
        partitions = [(partition, offset, _NO_EPOCH, "") for partition, offset in rows]
    cursor.at = end
    return partitions


def _decode_each(
    cursor: Cursor, number: int, version: int, topic: str, expected: dict[tuple[str, int], int]
) -> list[PartitionCommit]:
    """Decodes one partition after the other. Invalid UTF-8 in metadata is replaced, as in a broker."""
    data, flexible = cursor.data, version >= FLEXIBLE
    head = _OFFSET_EPOCH if version >= 6 else _OFFSET
    partitions: list[PartitionCommit] = []
    for _ in range(number):
        at = cursor.take(head.size)
        if version >= 6:
            partition, offset, epoch = head.unpack_from(data, at)
        else:
            (partition, offset), epoch = head.unpack_from(data, at), _NO_EPOCH
        length = cursor.length()
        at = cursor.take(length) if length > 0 else cursor.at
        metadata = data[at : cursor.at].decode(errors="replace")
        if flexible:
            if data[cursor.at : cursor.at + 1] == NO_TAGS:
                cursor.at += 1
            else:
                _condition(cursor, (topic, partition), expected)
        partitions.append((partition, offset, epoch, metadata))
    return partitions


def _condition(cursor: Cursor, key: tuple[str, int], expected: dict[tuple[str, int], int]) -> None:
    """Reads a partition's tagged fields, and adds a condition to ``expected`` if there is one."""

    def known(tag: int, size: int) -> None:
        if tag == EXPECTED_TAG:
            if size != EXPECTED.size:
                raise InvalidRequest("OffsetCommit", f"a condition of {size} bytes")
            expected[key] = cursor.number(EXPECTED)

    cursor.tags(known)


@lru_cache(maxsize=2 * (_MANY + 1))
def _success(number: int, *, flexible: bool) -> struct.Struct:
    """Returns the format of the results of this number of partitions without errors. Error code 0 and an empty set of
    tags are zero bytes, like padding."""
    return struct.Struct(">" + ("i3x" if flexible else "i2x") * number)


def encode(version: int, topics: Sequence[tuple[str, Sequence[PartitionCommit]]], response: CommitResponse) -> bytes:
    """Encodes the body of the response to a commit of these partitions."""
    flexible = version >= FLEXIBLE
    pack = _RESULT_TAGS.pack if flexible else _RESULT.pack
    parts = [_THROTTLE] if version >= 3 else []
    parts.append(count(len(topics), flexible=flexible))
    errors = response.errors
    for topic, partitions in topics:
        parts.append(string(topic, flexible=flexible))
        parts.append(count(len(partitions), flexible=flexible))
        if errors:
            parts += [pack(p[0], response.error or errors.get((topic, p[0]), 0)) for p in partitions]
        elif response.error or len(partitions) > _MANY:
            parts += map(pack, [p[0] for p in partitions], repeat(response.error))
        else:
            parts.append(_success(len(partitions), flexible=flexible).pack(*[p[0] for p in partitions]))
        if flexible:
            parts.append(NO_TAGS)
    if flexible:
        parts.append(NO_TAGS)
    return b"".join(parts)
