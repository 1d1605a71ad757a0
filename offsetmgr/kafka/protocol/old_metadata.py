"""Metadata for older brokers, in versions for which kio has no schema, and without creating missing topics."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.older_broker import OlderBroker, legacy_string
from offsetmgr.kafka.protocol.primitives import INT16, INT32, Cursor
from offsetmgr.kafka.protocol.schema_codec import Message

IMPOSSIBLE_TOPIC: Final = "?"
"""An invalid topic name. A Metadata request that names only this topic neither returns nor creates a topic."""
_PARTITION: Final = struct.Struct(">hiii")
"""The start of a partition in Metadata 0 to 3: error code, partition number, leader, and the number of replica ids that
follow."""
_NO_REPLICAS: Final[Mapping[str, Any]] = {"replica_nodes": (), "isr_nodes": ()}


async def metadata(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Requests metadata of topics without creating missing topics.

    If a request before version 4 names a missing topic, the broker may create the topic, so the function requests all
    topics instead. In version 0 an empty list of topics is a request for all topics, so the function requests an
    invalid name if ``message`` has an empty list. A broker of 0.8.2 lists no brokers while the cluster has no topics.
    If the response lists no brokers, the result contains the responding broker with the id -1.
    """
    version = broker.version(api_key, requested)
    names = None if message["topics"] is None else [topic["name"] for topic in message["topics"]]
    if version >= 4:
        return await broker.send(api_key, version, message)
    everything = b"\xff\xff\xff\xff" if version else INT32.pack(0)
    nothing = INT32.pack(0) if version else INT32.pack(1) + legacy_string(IMPOSSIBLE_TOPIC)
    topics = None if names is None else frozenset(names)
    body = nothing if names == [] else everything
    answer = await broker.exchange_encoded(api_key, version, body, _metadata_reader(version, topics))
    if not answer["brokers"]:
        host, port = broker.connection.address
        answer["brokers"] = [{"node_id": -1, "host": host, "port": port}]
    if names is not None:
        found = {topic["name"]: topic for topic in answer["topics"]}
        missing: Message = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partitions": []}
        answer["topics"] = [found.get(name) or {**missing, "name": name} for name in names]
    return answer


def _metadata_reader(version: int, topics: Collection[str] | None) -> Callable[[Cursor], Message]:
    """Returns a decoder of Metadata 0 to 3.

    The decoder skips the replica ids, because no caller needs them and they make up most of a large response. If
    ``topics`` is not None, the decoder also skips the partitions of the topics that are not in ``topics``.
    """

    def read(cursor: Cursor) -> Message:
        def broker() -> Message:
            found = {"node_id": cursor.int32(), "host": cursor.string(), "port": cursor.int32()}
            return found | ({"rack": cursor.nullable_string()} if version >= 1 else {})

        def topic() -> Message:
            found: Message = {"error_code": cursor.number(INT16), "name": cursor.string()}
            if version >= 1:
                found["is_internal"] = cursor.boolean()
            found["partitions"] = partitions = []
            included = topics is None or found["name"] in topics
            for _ in range(cursor.count(_PARTITION.size + INT32.size)):
                error, index, leader, replicas = _PARTITION.unpack_from(cursor.data, cursor.take(_PARTITION.size))
                skip(replicas)
                skip(cursor.int32())  # replicas in sync
                if included:
                    partitions.append(
                        {**_NO_REPLICAS, "error_code": error, "partition_index": index, "leader_id": leader}
                    )
            return found

        def skip(ids: int) -> None:
            if ids < 0:
                raise InvalidRequest("message", f"an array of {ids} items")
            cursor.take(ids * INT32.size)

        answer: Message = {}
        if version >= 3:
            cursor.int32()  # throttle time
        answer["brokers"] = [broker() for _ in range(cursor.count(10))]
        if version >= 2:
            answer["cluster_id"] = cursor.nullable_string()
        if version >= 1:
            answer["controller_id"] = cursor.int32()
        answer["topics"] = [topic() for _ in range(cursor.count(8))]
        return answer

    return read
