"""Decodes Metadata responses of versions 0 to 8. Pure.

The codec is hand-written, because it takes a third of the time of the schema codec. It skips the replica ids, which no
caller of the client needs and which make up most of the response of a large cluster.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Final

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.primitives import INT16, INT32, Cursor
from offsetmgr.kafka.protocol.schema_codec import Message

_PARTITION: Final = struct.Struct(">hiii")
"""The start of a partition before version 7: error code, partition number, leader, and the number of replicas."""
_PARTITION_EPOCH: Final = struct.Struct(">hiiii")
"""The start of a partition from version 7 on: error code, partition number, leader, leader epoch, and the number of
replicas."""


def metadata_reader(version: int, topics: Collection[str] | None = None) -> Callable[[Cursor], Message]:
    """Returns a decoder of Metadata responses of this version. The result has the fields of the schema codec, without
    the replicas and the authorized operations.

    If ``topics`` is not None, the decoder skips the partitions of the topics that are not in ``topics``.
    """

    def read(cursor: Cursor) -> Message:
        answer: Message = {}
        if version >= 3:
            cursor.int32()  # throttle time
        answer["brokers"] = [_broker(cursor, version) for _ in range(cursor.count(10))]
        if version >= 2:
            answer["cluster_id"] = cursor.nullable_string()
        if version >= 1:
            answer["controller_id"] = cursor.int32()
        answer["topics"] = [_topic(cursor, version, topics) for _ in range(cursor.count(8))]
        if version >= 8:
            cursor.int32()  # authorized operations on the cluster
        return answer

    return read


def _broker(cursor: Cursor, version: int) -> Message:
    found: Message = {"node_id": cursor.int32(), "host": cursor.string(), "port": cursor.int32()}
    if version >= 1:
        found["rack"] = cursor.nullable_string()
    return found


def _topic(cursor: Cursor, version: int, topics: Collection[str] | None) -> Message:
    found: Message = {"error_code": cursor.number(INT16), "name": cursor.string()}
    if version >= 1:
        found["is_internal"] = cursor.boolean()
    partitions = _partitions(cursor, version)
    found["partitions"] = partitions if topics is None or found["name"] in topics else []
    if version >= 8:
        cursor.int32()  # authorized operations on the topic
    return found


def _partitions(cursor: Cursor, version: int) -> list[dict[str, int]]:
    form = _PARTITION_EPOCH if version >= 7 else _PARTITION
    unpack, size = form.unpack_from, form.size
    further_lists = range(2 if version >= 5 else 1)  # replicas in sync; from version 5 on also offline replicas
    data, partitions = cursor.data, []
    number = cursor.count(size + len(further_lists) * INT32.size)
    at = cursor.at
    try:
        for _ in range(number):
            error, index, leader, *epoch, ids = unpack(data, at)
            at = _after(at + size, ids)
            for _ in further_lists:
                (ids,) = INT32.unpack_from(data, at)
                at = _after(at + INT32.size, ids)
            leader_epoch = epoch[0] if epoch else -1
            partitions.append(
                {"error_code": error, "partition_index": index, "leader_id": leader, "leader_epoch": leader_epoch}
            )
    except struct.error:
        raise InvalidRequest("message", "it ends too early") from None
    cursor.take(at - cursor.at)
    return partitions


def _after(at: int, ids: int) -> int:
    """Returns the position after this number of replica ids, which begin at ``at``."""
    if ids < 0:
        raise InvalidRequest("message", f"an array of {ids} items")
    return at + ids * INT32.size
