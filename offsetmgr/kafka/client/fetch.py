"""Sends Fetch and ListOffsets requests to the leader of a partition.

In a response to Fetch v11, the records are in the message format in which the broker stores them. Kafka 2.3 to 4.x
support Fetch v11. For older brokers, `old_versions` translates the request. ListOffsets v0 is the only version of
ListOffsets that returns several offsets of a partition, one for each segment. Kafka 4.0 removed ListOffsets v0
(KIP-896). kio has no schema for ListOffsets v0, so this module encodes the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    ErrorCode,
    NotAuthorized,
    OffsetMgrError,
    TimedOut,
    UnknownTopicOrPartition,
    UnsupportedOperation,
)
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition, is_valid_topic_name
from offsetmgr.core.retry import Backoff, Retries, UnusableAddress
from offsetmgr.kafka.client.client import UNKNOWN_TOPIC_TIMEOUT_S, Client, PartitionLeaders, ask_until_known
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.topics import describe_topic
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import checked, kafka_error
from offsetmgr.kafka.protocol.frames import EncodedRequest, Request, send_and_read
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import INT16, INT32, INT64, Cursor, request_string

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
    connection: BrokerConnection, offsets: Mapping[TopicPartition, int], timeout_s: float, limits: FetchLimits
) -> dict[TopicPartition, FetchedPartition | OffsetMgrError]:
    """Fetches the logs of partitions from these offsets on, within ``timeout_s`` seconds. Raises the errors of
    `BrokerConnection.call`."""
    parts = by_key(
        (topic, {"partition": number, "fetch_offset": offset, "partition_max_bytes": limits.max_bytes})
        for (topic, number), offset in offsets.items()
    )
    message = {
        "replica_id": _CONSUMER_REPLICA_ID,
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.response_bytes,
        "topics": [{"topic": topic, "partitions": of_topic} for topic, of_topic in parts.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    request = Request(ApiKey.FETCH, _FETCH_VERSION, message)
    answer = checked(await connection.call(request, timeout_s), f"fetch from broker {connection.address}")
    found: dict[TopicPartition, FetchedPartition | OffsetMgrError] = {}
    for tp, part in requests.parts_of(answer, "responses", "topic"):
        if part["error_code"]:
            found[tp] = kafka_error(part["error_code"], f"fetch of {tp}")
        else:
            start = part["log_start_offset"]
            found[tp] = FetchedPartition(part["high_watermark"], start if start >= 0 else None, part["records"] or b"")
    return found


async def offsets_before(
    connection: BrokerConnection, times: Mapping[TopicPartition, int], timeout_s: float, max_offsets: int
) -> dict[TopicPartition, list[int] | OffsetMgrError]:
    """Returns at most ``max_offsets`` offsets for each partition, in descending order. The result contains the start
    offsets of the segments that were last written at or before the given time. It may also contain the log end offset.

    Brokers from 4.0 on do not support ListOffsets v0 and cannot list segments. For these brokers the function supports
    only `EARLIEST` and `LATEST` with ``max_offsets`` 1. For any other request, the outcome is `UnsupportedOperation`.
    Raises the errors of `BrokerConnection.call`.
    """
    if connection.versions.get(ApiKey.LIST_OFFSETS, (0, 0))[0] == 0:
        from offsetmgr.kafka.protocol.old_versions import encode_list_offsets_v0, read_list_offsets_v0

        request = EncodedRequest(ApiKey.LIST_OFFSETS, 0, encode_list_offsets_v0(times, max_offsets))
        listed = (await send_and_read(connection, request, timeout_s, read_list_offsets_v0)).items()
        return {tp: kafka_error(code, f"offsets of {tp}") if code else offsets for tp, (code, offsets) in listed}
    found: dict[TopicPartition, list[int] | OffsetMgrError] = {}
    ends = {tp: time for tp, time in times.items() if time in (LATEST, EARLIEST)}
    if max_offsets == 1 and ends:
        end_offsets = await list_offsets_at(connection, ends, timeout_s)
        found |= {tp: [offset] if isinstance(offset, int) else offset for tp, offset in end_offsets.items()}
    for tp in times.keys() - found.keys():
        found[tp] = UnsupportedOperation(
            f"offsets of {tp} before a time",
            f"broker {connection.address} does not list segments: Kafka 4.0 removed that (ListOffsets version 0)",
            "request one offset, the earliest or the latest; KafkaCluster.offsets_for_time finds a message by its time",
        )
    return found


async def list_offsets_at(
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
        "topics": requests.topics_with((tp, {"timestamp": time}) for tp, time in timestamps.items()),
    }
    answer = await connection.call(Request(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, message), timeout_s)
    return {
        tp: kafka_error(part["error_code"], f"offsets of {tp}") if part["error_code"] else part["offset"]
        for tp, part in requests.parts_of(answer)
    }


async def newest_timestamp(
    connection: BrokerConnection, partitions: Iterable[TopicPartition], timeout_s: float
) -> int | None:
    """Returns the largest timestamp of all records of these partitions, in milliseconds since 1970. Returns None if
    they have no records, or if the client may not describe the topics. The broker must support
    `MAX_TIMESTAMP_VERSION`. Raises the errors of `BrokerConnection.call`."""
    topics = requests.topics_with((tp, {"current_leader_epoch": -1, "timestamp": MAX_TIMESTAMP}) for tp in partitions)
    message = {"replica_id": _CONSUMER_REPLICA_ID, "isolation_level": 0, "topics": topics}
    answer = await connection.call(Request(ApiKey.LIST_OFFSETS, MAX_TIMESTAMP_VERSION, message), timeout_s)
    times = [part["timestamp"] for _, part in requests.parts_of(answer) if not part["error_code"]]
    return max((time for time in times if time > 0), default=None)


# Sends record batches to the leader of partitions (Produce), without a producer's queue and without retries.

_VERSION: Final = 7
"""Every broker from 2.1 to 4.x supports this version."""
_NO_TRANSACTION: Final = INT16.pack(-1)
_ALL_IN_SYNC_REPLICAS: Final = INT16.pack(-1)


class ProduceResult(NamedTuple):
    """The broker's response for one partition."""

    error_code: int
    first_offset: int
    """The offset of the batch's first record; -1 after an error."""
    append_time_ms: int = -1
    """The time of the broker at the append; -1 after an error, and for a topic without LogAppendTime."""


async def produce(
    connection: BrokerConnection, topic: str, batches: Mapping[int, bytes], timeout_s: float
) -> dict[int, ProduceResult]:
    """Sends one batch for each partition. The broker responds once every in-sync replica has the batches, at the latest
    after ``timeout_s`` seconds. Raises the errors of `BrokerConnection.call`.

    A request must not have two batches for one partition, because brokers may ignore the second one.
    """
    body = bytearray(_NO_TRANSACTION + _ALL_IN_SYNC_REPLICAS + INT32.pack(round(timeout_s * 1000)))
    body += INT32.pack(1) + request_string(topic, flexible=False) + INT32.pack(len(batches))
    for partition, batch in batches.items():
        body += INT32.pack(partition) + INT32.pack(len(batch))
        body += batch
    return await send_and_read(connection, EncodedRequest(ApiKey.PRODUCE, _VERSION, bytes(body)), timeout_s, _read)


def _read(cursor: Cursor) -> dict[int, ProduceResult]:
    results = {}
    for _ in range(cursor.count(6)):
        cursor.string()
        for _ in range(cursor.count(30)):
            partition, code, first = cursor.int32(), cursor.number(INT16), cursor.number(INT64)
            results[partition] = ProduceResult(code, first, cursor.number(INT64))
            cursor.take(8)  # the log start offset
    return results


# Requests partition counts of topics, log ranges of partitions, and offsets by time.


async def partition_counts(client: Client, topics: Collection[str] | None, deadline: float) -> dict[str, int]:
    """Returns the partition counts of ``topics``, or of all topics if None. Missing topics are left out.

    A topic counts as missing only if no responding broker knows it (see `ask_until_known`). Raises
    `TopicNotAuthorized` for a topic that the principal may not describe, and the errors of `Client.ask_any`.
    """
    if topics is None:
        return await client.ask_any(lambda connection, until: _counts_of(connection, None, until), deadline)
    topics = list(filter(is_valid_topic_name, topics))
    return await ask_until_known(client, topics, _counts_of, lambda _: False, deadline) if topics else {}


async def _counts_of(connection: BrokerConnection, topics: Collection[str] | None, deadline: float) -> dict[str, int]:
    request = requests.metadata(None if topics is None else sorted(topics))
    answer = await connection.call(request, remaining(deadline))
    for topic in answer["topics"]:
        if topic["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise kafka_error(topic["error_code"], f"topic {topic['name']}")
    counts = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"] if topic["partitions"]}
    return dict(sorted(counts.items()))


async def log_ranges(
    client: Client,
    partitions: Iterable[TopicPartition],
    deadline: float,
    leaders: PartitionLeaders | None = None,
) -> dict[TopicPartition, LogRange | OffsetMgrError]:
    """Returns the log range of each partition, or its error.

    The client sends two requests to each leader, first for the start offsets of the logs and then for the end offsets.
    The client sends no request about a partition that no log of the cluster can have (see `impossible_partitions`).
    Raises an error only if no broker has ever responded.
    """
    leaders = leaders or PartitionLeaders(client)
    starts = await list_offsets(leaders, dict.fromkeys(partitions, EARLIEST), deadline)
    start_of = {tp: start for tp, start in starts.items() if isinstance(start, int)}
    ends = await list_offsets(leaders, dict.fromkeys(start_of, LATEST), deadline)
    found = {**starts, **ends}  # the errors of the starts, and an end or its error for each known start
    return {tp: LogRange(start_of[tp], end) if isinstance(end, int) else end for tp, end in found.items()}


async def offsets_for_time(
    client: Client, partitions: Iterable[TopicPartition], timestamp_ms: int, deadline: float
) -> dict[TopicPartition, int | OffsetMgrError | None]:
    """Returns, for each partition, the offset of the first record with a timestamp at or after ``timestamp_ms``, or an
    error. The offset is None if there is no such record. Raises an error only if no broker has ever responded."""
    requested = dict.fromkeys(partitions, timestamp_ms)
    found = await list_offsets(PartitionLeaders(client), requested, deadline)
    return {tp: None if isinstance(at, int) and at < 0 else at for tp, at in found.items()}


def impossible_partitions(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetMgrError]:
    """Returns an error for each partition that is a partition of Kafka 0.7, and for each partition whose topic name is
    not valid."""
    errors: dict[TopicPartition, OffsetMgrError] = {}
    for tp in partitions:
        if isinstance(tp.partition, BrokerPartition):
            why = "is a partition of Kafka 0.7, of which this cluster has no log"
            errors[tp] = UnknownTopicOrPartition(str(tp), why)
        elif not is_valid_topic_name(tp.topic):
            errors[tp] = UnknownTopicOrPartition(str(tp), "no topic of Kafka can have this name")
    return errors


async def list_offsets(
    leaders: PartitionLeaders,
    timestamps: Mapping[TopicPartition, int],
    deadline: float,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int | OffsetMgrError]:
    """Sends ListOffsets to the leader of each partition (see `list_offsets_at`). Raises an error only if no broker
    has ever responded."""
    ask = partial(list_offsets_at, read_committed=read_committed)
    impossible = impossible_partitions(timestamps)
    possible = {tp: time for tp, time in timestamps.items() if tp not in impossible}
    return {**impossible, **(await leaders.per_partition(possible, ask, deadline) if possible else {})}


# `StableOffsets`: requests the start and the last stable offset of partitions, and retries until the response is
# complete and plausible. `topic_id` requests the id of a topic in the same way. A manager needs these responses while
# brokers fail. Therefore the first attempt is short, and each further attempt has twice the time. After a failed
# attempt the next one looks up the leaders again, at another broker, because a broker that has missed a change of the
# leader returns an outdated leader. There are three exceptions. An error that a retry cannot fix (`_NOT_RETRIED`) is
# raised at once. An unknown partition is retried for `UNKNOWN_TOPIC_TIMEOUT_S` seconds, because the broker that leads
# a new partition may not know it yet. The first retries after an outdated end offset ask the same leader, because the
# broker may still be writing the transaction markers.

_FIRST_ATTEMPT_S: Final = 0.5
_MIN_ATTEMPT_S: Final = 0.05
_BACKOFF: Final = Backoff(0.002, 0.25)
_MARKER_WRITE_S: Final = 0.1
_NOT_RETRIED: Final = (AuthenticationFailed, NotAuthorized, ConfigError, UnusableAddress)


class StableOffsets:
    """Requests for the offsets of logs. Any number of tasks on the loop of ``client`` may use it. It caches the leaders
    of the partitions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = PartitionLeaders(client)

    async def starts(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        """Returns the first offset of each log. Raises `OffsetMgrError` if one is missing at the deadline."""
        return await self._request_until_complete(dict.fromkeys(partitions, EARLIEST), deadline, lambda _: 0)

    async def ends(
        self,
        partitions: Iterable[TopicPartition],
        deadline: float,
        lower_bound: Callable[[TopicPartition], int] = lambda _: 0,
    ) -> dict[TopicPartition, int]:
        """Returns the last stable offset of each log. An offset below the ``lower_bound`` of its partition is outdated,
        so the offset is requested again. Raises `OffsetMgrError` if one is missing at the deadline."""
        return await self._request_until_complete(dict.fromkeys(partitions, LATEST), deadline, lower_bound)

    async def _request_until_complete(
        self, times: Mapping[TopicPartition, int], deadline: float, lower_bound: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        attempts = _Attempts(self._client, deadline)
        offsets: dict[TopicPartition, int] = {}
        while missing := {tp: time for tp, time in times.items() if tp not in offsets}:
            failure: OffsetMgrError | None = None
            outdated: list[TopicPartition] = []
            try:
                until = attempts.next_deadline()
                found = await list_offsets(self._leaders, missing, until, read_committed=True)
            except OffsetMgrError as error:
                found, failure = {}, error
            for tp, outcome in found.items():
                if isinstance(outcome, OffsetMgrError):
                    failure = outcome
                elif outcome < lower_bound(tp):
                    outdated.append(tp)
                else:
                    offsets[tp] = outcome
            if outdated and failure is None:
                failure = TimedOut(f"log of {outdated[0]}", "no broker returns its current offset yet")
            if failure is not None and await attempts.pause_or_raise(failure, outdated=bool(outdated)):
                self._leaders = PartitionLeaders(self._client)
        return offsets


async def topic_id(client: Client, topic: str, deadline: float) -> str:
    """Returns the current id of the topic; empty if the brokers do not support topic ids. Raises `OffsetMgrError`."""
    attempts = _Attempts(client, deadline)
    while True:
        try:
            found = await describe_topic(client, topic, attempts.next_deadline())
            if found is not None:
                return found.topic_id
            failure: OffsetMgrError = UnknownTopicOrPartition(f"topic {topic}", "the cluster has no such topic")
        except OffsetMgrError as error:
            failure = error
        await attempts.pause_or_raise(failure)


class _Attempts:
    """The attempts of one request: their deadlines, the pauses between them, and the decision to make another one."""

    def __init__(self, client: Client, deadline: float) -> None:
        self._client = client
        self._deadline = deadline
        self._now = asyncio.get_running_loop().time
        self._unknown_topic_deadline = self._now() + UNKNOWN_TOPIC_TIMEOUT_S
        self._attempt_s = _FIRST_ATTEMPT_S
        self._retries = Retries(deadline, _BACKOFF)

    def next_deadline(self) -> float:
        """Returns the deadline of an attempt that begins now."""
        now = self._now()
        return now + max(min(self._attempt_s, self._deadline - now), _MIN_ATTEMPT_S)

    async def pause_or_raise(self, error: OffsetMgrError, *, outdated: bool = False) -> bool:
        """Waits before the next attempt. Raises ``error`` if another attempt cannot succeed, or if no time is left.
        ``outdated`` is whether a broker has returned an outdated end offset. Returns whether the next attempt has to
        look up the leaders again."""
        if isinstance(error, UnknownTopicOrPartition):
            final = self._now() >= self._unknown_topic_deadline
        else:
            final = isinstance(error, _NOT_RETRIED)
        if final or self._retries.exhausted:
            raise error
        look_up = not outdated or self._retries.next_pause_s > _MARKER_WRITE_S
        if look_up:
            self._client.rotate_lookup_broker()
            self._attempt_s *= 2
        await self._retries.pause()
        return look_up
