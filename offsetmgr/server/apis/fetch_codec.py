"""Decodes OffsetFetch requests and encodes their responses, versions 1 to 9.

The codec is hand-written for speed: the offsets are in memory, so creating kio's objects would take longer than reading
the offsets. From version 8 on, one request can fetch many groups (KIP-709). Version 10 is not supported, because it
identifies topics by id and an offset manager stores topic names only.

The formats are from Kafka's OffsetFetchRequest.json and OffsetFetchResponse.json. Tests compare the codec with kio's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Final

from offsetmgr.kafka.protocol.schema_codec import INT16, NO_TAGS, Cursor, count, string
from offsetmgr.manager.results import FetchRequest, FetchResponse, PartitionOffset

MIN_VERSION: Final = 1
MAX_VERSION: Final = 9
FLEXIBLE: Final = 6
BATCHED: Final = 8

_NOTHING: Final = (-1, -1, "")
_THROTTLE: Final = b"\0\0\0\0"

_ROW: Final = struct.Struct(">iqhh")
"""A partition without metadata: number, offset, length of the metadata, error."""
_ROW_EPOCH: Final = struct.Struct(">iqihh")
_ROW_FLEXIBLE: Final = struct.Struct(">iqibhx")
_HEAD: Final = struct.Struct(">iq")
_HEAD_EPOCH: Final = struct.Struct(">iqi")


def decode(version: int, data: bytes, at: int) -> Sequence[FetchRequest]:
    """Decodes the groups of the request whose body begins at ``at``. Raises `InvalidRequest`."""
    cursor = Cursor(data, at, flexible=version >= FLEXIBLE)
    if version < BATCHED:
        group = cursor.string()
        topics = _topics(cursor, null_is_all=version >= 2)
        if version >= 7:
            cursor.boolean()  # whether only stable offsets are wanted
        cursor.tags()
        return (FetchRequest(group, topics),)
    groups = []
    for _ in range(cursor.count(3)):
        group = cursor.string()
        if version >= 9:
            cursor.nullable_string()  # the member
            cursor.int32()  # its epoch
        groups.append(FetchRequest(group, _topics(cursor, null_is_all=True)))
        cursor.tags()
    cursor.boolean()
    cursor.tags()
    return groups


def _topics(cursor: Cursor, *, null_is_all: bool) -> list[tuple[str, Sequence[int]]] | None:
    """Decodes the topics of a group, each topic and each partition once. A broker of 3.9 does the same."""
    number = cursor.nullable_count(3) if null_is_all else cursor.count(3)
    if number < 0:
        return None
    topics: list[tuple[str, Sequence[int]]] = []
    for _ in range(number):
        name = cursor.string()
        partitions = cursor.count(4)
        topics.append((name, struct.unpack_from(f">{partitions}i", cursor.data, cursor.at)))
        cursor.at += 4 * partitions
        cursor.tags()
    if len(dict(topics)) < len(topics) or any(len(set(partitions)) < len(partitions) for _, partitions in topics):
        distinct: dict[str, dict[int, None]] = {}
        for name, numbers in topics:
            distinct.setdefault(name, {}).update(dict.fromkeys(numbers))
        return [(name, tuple(numbers)) for name, numbers in distinct.items()]
    return topics


def encode(version: int, requests: Sequence[FetchRequest], responses: Sequence[FetchResponse]) -> bytes:
    """Encodes the body of the response. ``responses`` are in the order of ``requests``."""
    if version >= BATCHED:
        parts = [encode_group(version, *both) for both in zip(requests, responses, strict=True)]
        return encode_batch(parts)
    (request,), (response,) = requests, responses
    parts = [_THROTTLE] if version >= 3 else []
    _put_topics(parts, version, _failed(request, response.error) if version < 2 and response.error else response)
    if version >= 2:
        parts.append(INT16.pack(response.error))
    if version >= FLEXIBLE:
        parts.append(NO_TAGS)
    return b"".join(parts)


def encode_group(version: int, request: FetchRequest, response: FetchResponse) -> bytes:
    """Encodes one group's part of a response of version `BATCHED` or later."""
    parts = [string(request.group, flexible=True)]
    _put_topics(parts, version, response)
    parts.append(INT16.pack(response.error))
    parts.append(NO_TAGS)
    return b"".join(parts)


def encode_batch(groups: Sequence[bytes]) -> bytes:
    """Joins the groups' parts into the body of a response of version `BATCHED` or later."""
    return b"".join([_THROTTLE, count(len(groups), flexible=True), *groups, NO_TAGS])


def _failed(request: FetchRequest, error: int) -> FetchResponse:
    """Returns a response that reports the group's error for each partition, because version 1 has no error field for
    the group."""
    return FetchResponse(
        topics=[(topic, [(p, *_NOTHING, error) for p in partitions]) for topic, partitions in request.topics or ()]
    )


def _put_topics(parts: list[bytes], version: int, response: FetchResponse) -> None:
    flexible = version >= FLEXIBLE
    topics = () if response.error else response.topics
    parts.append(count(len(topics), flexible=flexible))
    for topic, partitions in topics:
        parts.append(string(topic, flexible=flexible))
        parts.append(count(len(partitions), flexible=flexible))
        if partitions:
            _put_partitions(parts, version, partitions)
        if flexible:
            parts.append(NO_TAGS)


def _put_partitions(parts: list[bytes], version: int, partitions: Sequence[PartitionOffset]) -> None:
    numbers, offsets, epochs, metadata, errors = zip(*partitions, strict=True)
    if any(metadata):
        parts += [_with_metadata(version, partition) for partition in partitions]
    elif version >= FLEXIBLE:
        parts += map(_ROW_FLEXIBLE.pack, numbers, offsets, epochs, repeat(1), errors)
    elif version == 5:
        parts += map(_ROW_EPOCH.pack, numbers, offsets, epochs, repeat(0), errors)
    else:
        parts += map(_ROW.pack, numbers, offsets, repeat(0), errors)


def _with_metadata(version: int, partition: PartitionOffset) -> bytes:
    number, offset, epoch, metadata, error = partition
    flexible = version >= FLEXIBLE
    head = _HEAD_EPOCH.pack(number, offset, epoch) if version >= 5 else _HEAD.pack(number, offset)
    tail = INT16.pack(error) + NO_TAGS if flexible else INT16.pack(error)
    return head + string(metadata, flexible=flexible) + tail
