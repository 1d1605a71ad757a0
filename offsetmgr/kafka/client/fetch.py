"""Sends Fetch and ListOffsets requests to the leader of a partition.

In a response to Fetch v11, the records are in the message format in which the broker stores them. Kafka 2.3 to 4.x
support Fetch v11. For older brokers, `old_versions` translates the request. ListOffsets v0 is the only version of
ListOffsets that returns several offsets of a partition, one for each segment. Kafka 4.0 removed ListOffsets v0
(KIP-896). kio has no schema for ListOffsets v0, so this module encodes the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import EncodedRequest, Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.frames import send_and_read

LATEST: Final = -1
EARLIEST: Final = -2
"""The special timestamps of ListOffsets for the end and the start of a log."""

MAX_TIMESTAMP: Final = -3
"""The special timestamp of ListOffsets for the record with the largest timestamp (KIP-734)."""
MAX_TIMESTAMP_VERSION: Final = 7
"""The first version of ListOffsets that supports `MAX_TIMESTAMP` (Kafka 3.0)."""

_FETCH_VERSION: Final = 11
_LIST_OFFSETS_VERSION: Final = 5
"""In earlier versions a broker reports LEADER_NOT_AVAILABLE instead of OFFSET_NOT_AVAILABLE (KIP-207)."""
_CONSUMER_REPLICA_ID: Final = -1
"""The replica id in requests of clients that are not brokers."""
_NO_BYTE_LIMIT: Final = 0x7FFFFFFF


class FetchLimits(NamedTuple):
    """The size limits of a broker's response, and the maximum time that the broker may wait for ``min_bytes``."""

    max_bytes: int = 1024 * 1024
    """The limit for one partition. If the first batch is larger than this limit, the broker returns the whole batch
    (KIP-74)."""
    min_bytes: int = 0
    max_wait_ms: int = 0
    response_bytes: int = _NO_BYTE_LIMIT
    """The limit for the whole response. The broker adds partitions in the order of the request until it reaches the
    limit, and returns the other partitions without records."""


class FetchedPartition(NamedTuple):
    """Consecutive bytes of a partition's log. The bytes may begin with records before the requested offset and may end
    within a batch.

    ``log_start_offset`` is None if the broker does not report it.
    """

    high_watermark: int
    log_start_offset: int | None
    data: bytes


async def fetch_log(
    connection: BrokerConnection, offsets: Mapping[TopicPartition, int], limits: FetchLimits, timeout_s: float
) -> dict[TopicPartition, FetchedPartition | OffsetMgrError]:
    """Fetches the logs of partitions from these offsets on, within ``timeout_s`` seconds. Raises the errors of
    `BrokerConnection.call`."""
    message = {
        "replica_id": _CONSUMER_REPLICA_ID,
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.response_bytes,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": number,
                        "fetch_offset": offsets[TopicPartition(topic, number)],
                        "partition_max_bytes": limits.max_bytes,
                    }
                    for number in numbers
                ],
            }
            for topic, numbers in by_key(offsets).items()
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer = await connection.call(Request(ApiKey.FETCH, _FETCH_VERSION, message), timeout_s)
    if answer["error_code"]:
        raise kafka_error(answer["error_code"], f"fetch from broker {connection.address}")
    found: dict[TopicPartition, FetchedPartition | OffsetMgrError] = {}
    for topic in answer["responses"]:
        for part in topic["partitions"]:
            tp = TopicPartition(topic["topic"], part["partition_index"])
            if part["error_code"]:
                found[tp] = kafka_error(part["error_code"], f"fetch of {tp}")
            else:
                start = part["log_start_offset"]
                found[tp] = FetchedPartition(
                    part["high_watermark"], start if start >= 0 else None, part["records"] or b""
                )
    return found


async def offsets_before(
    connection: BrokerConnection, times: Mapping[TopicPartition, int], max_offsets: int, timeout_s: float
) -> dict[TopicPartition, list[int] | OffsetMgrError]:
    """Returns at most ``max_offsets`` offsets for each partition, in descending order. The result contains the start
    offsets of the segments that were last written at or before the given time. It may also contain the log end offset.

    Brokers from 4.0 on do not support ListOffsets v0 and cannot list segments. For these brokers the function supports
    only `EARLIEST` and `LATEST` with ``max_offsets`` 1. For any other request, the outcome is `UnsupportedOperation`.
    Raises the errors of `BrokerConnection.call`.
    """
    if connection.versions.get(ApiKey.LIST_OFFSETS, (0, 0))[0] == 0:
        return await _segment_offsets(connection, times, max_offsets, timeout_s)
    found: dict[TopicPartition, list[int] | OffsetMgrError] = {}
    ends = {tp: time for tp, time in times.items() if time in (LATEST, EARLIEST)}
    if max_offsets == 1 and ends:
        end_offsets = await list_offsets(connection, ends, timeout_s)
        found |= {tp: [offset] if isinstance(offset, int) else offset for tp, offset in end_offsets.items()}
    for tp in times.keys() - found.keys():
        found[tp] = UnsupportedOperation(
            f"offsets of {tp} before a time",
            f"broker {connection.address} does not list segments: Kafka 4.0 removed that (ListOffsets version 0)",
            "request one offset, the earliest or the latest; KafkaCluster.offsets_for_time finds a message by its time",
        )
    return found


async def _segment_offsets(
    connection: BrokerConnection, times: Mapping[TopicPartition, int], max_offsets: int, timeout_s: float
) -> dict[TopicPartition, list[int] | OffsetMgrError]:
    from offsetmgr.kafka.protocol.old_versions import encode_list_offsets_v0, read_list_offsets_v0

    body = encode_list_offsets_v0(times, max_offsets)
    answer = await send_and_read(
        connection, EncodedRequest(ApiKey.LIST_OFFSETS, 0, body), timeout_s, read_list_offsets_v0
    )
    return {tp: kafka_error(code, f"offsets of {tp}") if code else offsets for tp, (code, offsets) in answer.items()}


async def list_offsets(
    connection: BrokerConnection,
    timestamps: Mapping[TopicPartition, int],
    timeout_s: float,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int | OffsetMgrError]:
    """Returns the start (`EARLIEST`) or end (`LATEST`) of logs, or the first offset at or after a time. With
    ``read_committed``, a log ends at its first open transaction (Kafka 0.11 and later).

    ``timestamps`` maps each partition to `EARLIEST`, `LATEST`, or milliseconds since 1970. The offset is -1 if the log
    has no record at or after the time. Raises the errors of `BrokerConnection.call`.
    """
    message = {
        "replica_id": _CONSUMER_REPLICA_ID,
        "isolation_level": int(read_committed),
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "timestamp": timestamps[TopicPartition(topic, number)]}
                    for number in numbers
                ],
            }
            for topic, numbers in by_key(timestamps).items()
        ],
    }
    answer = await connection.call(Request(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, message), timeout_s)
    found: dict[TopicPartition, int | OffsetMgrError] = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp = TopicPartition(topic["name"], part["partition_index"])
            code = part["error_code"]
            found[tp] = kafka_error(code, f"offsets of {tp}") if code else part["offset"]
    return found


async def newest_timestamp(
    connection: BrokerConnection, partitions: Iterable[TopicPartition], timeout_s: float
) -> int | None:
    """Returns the largest timestamp of all records of these partitions, in milliseconds since 1970. Returns None if
    they have no records, or if the client may not describe the topics. The broker must support
    `MAX_TIMESTAMP_VERSION`. Raises the errors of `BrokerConnection.call`."""
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": number, "current_leader_epoch": -1, "timestamp": MAX_TIMESTAMP}
                for number in numbers
            ],
        }
        for topic, numbers in by_key(partitions).items()
    ]
    message = {"replica_id": _CONSUMER_REPLICA_ID, "isolation_level": 0, "topics": topics}
    answer = await connection.call(Request(ApiKey.LIST_OFFSETS, MAX_TIMESTAMP_VERSION, message), timeout_s)
    times = [part["timestamp"] for topic in answer["topics"] for part in topic["partitions"] if not part["error_code"]]
    return max((time for time in times if time > 0), default=None)
