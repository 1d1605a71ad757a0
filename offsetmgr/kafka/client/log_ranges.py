"""Requests partition counts of topics, log ranges of partitions, and offsets by time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from offsetmgr.core.errors import ErrorCode, OffsetMgrError, ServerError, UnknownTopicOrPartition
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition, is_valid_topic_name
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error

_OTHER_BROKER_TIMEOUT_S: Final = 1.0
"""The maximum time for the request to each further broker after the first broker has responded."""


async def partition_counts(client: Client, topics: Collection[str] | None, deadline: float) -> dict[str, int]:
    """Returns the partition counts of ``topics``, or of all topics if None. Missing topics are left out.

    A topic counts as missing only if no responding broker knows it (see `leader_router.find_leaders`). Raises
    `TopicNotAuthorized` for a topic that the principal may not describe, and the errors of `Client.any_connection`.
    """
    if topics is None:
        return await _counts_of(await client.any_connection(deadline), None, deadline)
    topics = list(filter(is_valid_topic_name, topics))
    if not topics:
        return {}
    first = await client.any_connection(deadline)
    found = await _counts_of(first, topics, deadline)
    for address in client.addresses:
        missing = [topic for topic in topics if topic not in found]
        if not missing:
            break
        if address != first.address:
            try:
                by_then = min(deadline, asyncio.get_running_loop().time() + _OTHER_BROKER_TIMEOUT_S)
                found |= await _counts_of(await client.node(address).connection(by_then), missing, by_then)
            except OffsetMgrError:
                continue
    return found


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
    starts = await list_offsets(client, leaders, dict.fromkeys(partitions, EARLIEST), deadline)
    existing = [tp for tp, start in starts.items() if isinstance(start, int)]
    ends = await list_offsets(client, leaders, dict.fromkeys(existing, LATEST), deadline)
    return _ranges_between(starts, ends)


def _ranges_between(
    starts: Mapping[TopicPartition, int | OffsetMgrError], ends: Mapping[TopicPartition, int | OffsetMgrError]
) -> dict[TopicPartition, LogRange | OffsetMgrError]:
    """Returns the log range of each partition in ``starts``, or the error of its start or of its end."""
    found: dict[TopicPartition, LogRange | OffsetMgrError] = {}
    for tp, start in starts.items():
        end = ends.get(tp)
        if isinstance(start, int) and isinstance(end, int):
            found[tp] = LogRange(start, end)
        else:
            failed = next((one for one in (start, end) if isinstance(one, OffsetMgrError)), None)
            found[tp] = failed or ServerError(str(tp), "the broker's response does not contain it")
    return found


async def offsets_for_time(
    client: Client, partitions: Iterable[TopicPartition], timestamp_ms: int, deadline: float
) -> dict[TopicPartition, int | OffsetMgrError | None]:
    """Returns, for each partition, the offset of the first record with a timestamp at or after ``timestamp_ms``, or an
    error. The offset is None if there is no such record. Raises an error only if no broker has ever responded."""
    requested = dict.fromkeys(partitions, timestamp_ms)
    found = await list_offsets(client, PartitionLeaders(client), requested, deadline)
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
    client: Client,
    leaders: PartitionLeaders,
    timestamps: Mapping[TopicPartition, int],
    deadline: float,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int | OffsetMgrError]:
    """Sends ListOffsets to the leader of each partition (see `fetch.list_offsets`). Raises an error only if no broker
    has ever responded."""

    async def send(
        leader: Address, partitions: list[TopicPartition], attempt: float
    ) -> dict[TopicPartition, int | OffsetMgrError]:
        connection = await client.node(leader).connection(attempt)
        times = {tp: timestamps[tp] for tp in partitions}
        return await fetch.list_offsets(connection, times, remaining(attempt), read_committed=read_committed)

    impossible = impossible_partitions(timestamps)
    possible = [tp for tp in timestamps if tp not in impossible]
    return {**impossible, **(await leaders.per_partition(possible, send, deadline) if possible else {})}
