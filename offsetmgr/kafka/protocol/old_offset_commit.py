"""OffsetCommit for older brokers. This module encodes version 1 itself, because kio has no schema for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Channel
from offsetmgr.kafka.protocol.old_metadata import metadata
from offsetmgr.kafka.protocol.older_broker import OlderBroker
from offsetmgr.kafka.protocol.primitives import INT16, INT32, INT64, Cursor, request_string
from offsetmgr.kafka.protocol.schema_codec import Message

_CHECKS_PARTITIONS_VERSION: Final = 4
"""The OffsetCommit version that Kafka 2.0 introduced. Brokers of Kafka 2.0 and later reject commits for partitions that
do not exist."""
_PARTITION_COUNTS_TTL_S: Final = 5.0
_partition_counts_cache: Final[dict[Address, tuple[float, Mapping[str, int]]]] = {}
"""A cache of the partition counts of all topics, by address of the broker. An entry contains the time of the request,
on the event loop's clock, and the partition counts."""


async def offset_commit(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Commits in version 1 or later, because version 0 would commit to ZooKeeper. Brokers of 0.8.2 support only
    versions 0 and 1.

    Brokers of Kafka 1.1 and earlier accept commits for partitions that do not exist. The function does not send such
    commits to these brokers, and returns UNKNOWN_TOPIC_OR_PARTITION for the partitions.
    """
    version = broker.version(api_key, requested)
    if version >= _CHECKS_PARTITIONS_VERSION:
        return await broker.send(api_key, version, {"retention_time": -1, **message})
    counts = await _partition_counts(broker, message)
    topics: list[Message] = []
    rejected: list[Message] = []
    for topic in message["topics"]:
        known = [part for part in topic["partitions"] if part["partition_index"] < counts.get(topic["name"], 0)]
        unknown = [part["partition_index"] for part in topic["partitions"] if part not in known]
        if known:
            topics.append({"name": topic["name"], "partitions": known})
        if unknown:
            codes = [
                {"partition_index": number, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} for number in unknown
            ]
            rejected.append({"name": topic["name"], "partitions": codes})
    answer: Message = {"topics": []}
    if topics and version >= 2:
        answer = await broker.send(api_key, version, {"retention_time": -1, **message, "topics": topics})
    elif topics:
        body = encode_offset_commit_v1({**message, "topics": topics}, timestamp=-1)
        answer = await broker.exchange_encoded(api_key, 1, body, _read_offset_commit_v1)
    return {**answer, "topics": [*answer["topics"], *rejected]}


async def _partition_counts(broker: OlderBroker, commit: Mapping[str, Any]) -> Mapping[str, int]:
    """Returns the partition counts of the cluster's topics, cached for some seconds. Requests the counts again if
    ``commit`` contains a partition that is not in the cache."""
    now = asyncio.get_running_loop().time()
    at, counts = _partition_counts_cache.get(broker.connection.address, (0.0, {}))
    committed = {
        topic["name"]: max(part["partition_index"] for part in topic["partitions"]) for topic in commit["topics"]
    }
    if now - at > _PARTITION_COUNTS_TTL_S or any(counts.get(name, 0) <= highest for name, highest in committed.items()):
        answer = await metadata(broker, ApiKey.METADATA, 8, {"topics": None, "allow_auto_topic_creation": False})
        counts = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}
        _partition_counts_cache[broker.connection.address] = (now, counts)
    return counts


def encode_offset_commit_v1(message: Mapping[str, Any], timestamp: int) -> bytes:
    """Encodes the body of OffsetCommit version 1. The retention of the offsets starts at ``timestamp`` (milliseconds
    since 1970), or at the broker's present time if ``timestamp`` is -1."""
    body = bytearray(request_string(message["group_id"], flexible=False))
    body += INT32.pack(message["generation_id_or_member_epoch"]) + request_string(message["member_id"], flexible=False)
    body += INT32.pack(len(message["topics"]))
    for topic in message["topics"]:
        body += request_string(topic["name"], flexible=False) + INT32.pack(len(topic["partitions"]))
        for part in topic["partitions"]:
            body += INT32.pack(part["partition_index"]) + INT64.pack(part["committed_offset"]) + INT64.pack(timestamp)
            body += request_string(part["committed_metadata"] or "", flexible=False)
    return bytes(body)


async def expire_offsets(connection: Channel, commit: Mapping[str, Any], timeout_s: float) -> Message:
    """Deletes offsets on a broker that cannot delete single offsets: commits them with a retention that has expired.

    The broker removes them at its next check for expired offsets (every 10 minutes by default). ``commit`` is an
    OffsetCommit request of version 7; the result is a response of that version.
    """
    broker = OlderBroker(connection, timeout_s)
    if broker.version(ApiKey.OFFSET_COMMIT, 2) == 2:
        return await broker.send(ApiKey.OFFSET_COMMIT, 2, {**commit, "retention_time": 1})
    return await broker.exchange_encoded(
        ApiKey.OFFSET_COMMIT, 1, encode_offset_commit_v1(commit, timestamp=0), _read_offset_commit_v1
    )


def _read_offset_commit_v1(cursor: Cursor) -> Message:
    def part() -> Message:
        return {"partition_index": cursor.int32(), "error_code": cursor.number(INT16)}

    def topic() -> Message:
        return {"name": cursor.string(), "partitions": [part() for _ in range(cursor.count(6))]}

    return {"topics": [topic() for _ in range(cursor.count(6))]}
