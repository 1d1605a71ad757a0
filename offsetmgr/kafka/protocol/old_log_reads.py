"""Fetch and ListOffsets for older brokers, in versions for which kio has no schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offsetmgr.core.batches import by_key
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.older_broker import OlderBroker
from offsetmgr.kafka.protocol.primitives import INT16, INT32, INT64, Cursor, request_string
from offsetmgr.kafka.protocol.schema_codec import Message


async def list_offsets(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Requests offsets in version 1 or later if the broker supports such a version, and in version 0 otherwise. In
    version 0 the function can request only the start and the end of a log."""
    version = broker.version(api_key, requested)
    if version:
        return await broker.send(api_key, version, {"isolation_level": 0, **message})
    for topic in message["topics"]:
        if any(part["timestamp"] >= 0 for part in topic["partitions"]):
            where = str(broker.connection.address)
            raise releases.FINDS_BY_TIME.unsupported_error(where, broker.connection.versions)
    times = {
        TopicPartition(topic["name"], part["partition_index"]): part["timestamp"]
        for topic in message["topics"]
        for part in topic["partitions"]
    }
    found = await broker.exchange_encoded(api_key, 0, encode_list_offsets_v0(times, 1), read_list_offsets_v0)
    parts = (
        (tp.topic, {"partition_index": tp.partition, "error_code": code, "offset": offsets[0] if offsets else -1})
        for tp, (code, offsets) in found.items()
    )
    return {"topics": [{"name": topic, "partitions": of_topic} for topic, of_topic in by_key(parts).items()]}


def encode_list_offsets_v0(times: Mapping[TopicPartition, int], max_offsets: int) -> bytes:
    """Encodes the body of ListOffsets version 0, with the special or real time of each partition."""
    topics = by_key(times)
    body = bytearray(INT32.pack(-1) + INT32.pack(len(topics)))  # -1: the client is not a replica
    for topic, numbers in topics.items():
        body += request_string(topic, flexible=False) + INT32.pack(len(numbers))
        for number in numbers:
            body += INT32.pack(number) + INT64.pack(times[TopicPartition(topic, number)]) + INT32.pack(max_offsets)
    return bytes(body)


def read_list_offsets_v0(cursor: Cursor) -> dict[TopicPartition, tuple[int, list[int]]]:
    """Decodes ListOffsets version 0: the error code and the offsets of each partition."""
    found: dict[TopicPartition, tuple[int, list[int]]] = {}
    for _ in range(cursor.count(6)):
        topic = cursor.string()
        for _ in range(cursor.count(10)):
            tp, code = TopicPartition(topic, cursor.int32()), cursor.number(INT16)
            found[tp] = code, [cursor.int64() for _ in range(cursor.count(8))]
    return found


async def fetch(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Fetches records. kio has no schema for versions before 4, so this function encodes them."""
    version = broker.version(api_key, requested)
    if version >= 4:
        answer = await broker.send(api_key, version, message)
    else:
        body = bytearray(INT32.pack(message["replica_id"]) + INT32.pack(message["max_wait"]))
        body += INT32.pack(message["min_bytes"])
        if version >= 3:
            body += INT32.pack(message["max_bytes"])
        body += INT32.pack(len(message["topics"]))
        for topic in message["topics"]:
            body += request_string(topic["topic"], flexible=False) + INT32.pack(len(topic["partitions"]))
            for part in topic["partitions"]:
                body += INT32.pack(part["partition"]) + INT64.pack(part["fetch_offset"])
                body += INT32.pack(part["partition_max_bytes"])
        answer = await broker.exchange_encoded(api_key, version, bytes(body), _fetch_reader(version))
    return {"error_code": ErrorCode.NONE, **answer}


def _fetch_reader(version: int) -> Callable[[Cursor], Message]:
    def read(cursor: Cursor) -> Message:
        def part() -> Message:
            return {
                "partition_index": cursor.int32(),
                "error_code": cursor.number(INT16),
                "high_watermark": cursor.int64(),
                "aborted_transactions": None,
                "log_start_offset": -1,
                "records": cursor.nullable_octets(),
            }

        def topic() -> Message:
            return {"topic": cursor.string(), "partitions": [part() for _ in range(cursor.count(18))]}

        if version >= 1:
            cursor.int32()  # throttle time
        return {"responses": [topic() for _ in range(cursor.count(6))]}

    return read
