"""Requests partition counts of topics, log ranges of partitions, and offsets by time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from kio.schema.metadata.v8.response import MetadataResponse

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition, is_valid_topic_name
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST
from offsetmgr.kafka.client.leader_router import PartitionLeaders
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address

_OTHER_BROKER_TIMEOUT_S: Final = 1.0
"""The maximum time for the request to each further broker after the first broker has responded."""


async def partition_counts(client: Client, topics: Collection[str] | None, deadline: float) -> dict[str, int]:
    """Returns the partition counts of ``topics``, or of all topics if None. Missing topics are left out.

    A topic counts as missing only if no responding broker knows it (see `leader_router.find_leaders`). Raises the
    errors of `Client.any_connection`.
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
    answer = await connection.call(request, MetadataResponse, remaining(deadline))
    counts = {str(topic.name): len(topic.partitions) for topic in answer.topics if topic.partitions}
    return dict(sorted(counts.items()))


async def log_ranges(
    client: Client, partitions: Collection[TopicPartition], deadline: float
) -> dict[TopicPartition, LogRange | OffsetMgrError]:
    """Returns the log range of each partition, or its error.

    The client sends two requests to each leader, first for the start offsets of the logs and then for the end offsets.
    The client sends no request about a topic whose name is invalid. Raises an error only if no broker has ever
    responded.
    """
    leaders = PartitionLeaders(client)
    found: dict[TopicPartition, LogRange | OffsetMgrError] = {**_invalid_name_errors(partitions)}
    valid = [tp for tp in dict.fromkeys(partitions) if tp not in found]
    starts = await _list_offsets(client, leaders, valid, EARLIEST, deadline)
    ends = await _list_offsets(client, leaders, [tp for tp in valid if isinstance(starts[tp], int)], LATEST, deadline)
    for tp in valid:
        start, end = starts[tp], ends.get(tp)
        if isinstance(start, OffsetMgrError):
            found[tp] = start
        elif isinstance(end, OffsetMgrError):
            found[tp] = end
        else:
            assert end is not None  # The partition has a start, so the client has requested its end.
            found[tp] = LogRange(start, end)
    return found


async def offsets_for_time(
    client: Client, partitions: Collection[TopicPartition], timestamp_ms: int, deadline: float
) -> dict[TopicPartition, int | OffsetMgrError | None]:
    """Returns, for each partition, the offset of the first record with a timestamp at or after ``timestamp_ms``, or an
    error. The offset is None if there is no such record. Raises an error only if no broker has ever responded."""
    invalid = _invalid_name_errors(partitions)
    valid = [tp for tp in dict.fromkeys(partitions) if tp not in invalid]
    found = await _list_offsets(client, PartitionLeaders(client), valid, timestamp_ms, deadline)
    return {**invalid, **{tp: None if isinstance(at, int) and at < 0 else at for tp, at in found.items()}}


def _invalid_name_errors(partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetMgrError]:
    """Returns an error for each partition whose topic name is not valid."""
    return {
        tp: UnknownTopicOrPartition(str(tp), "no topic of Kafka can have this name")
        for tp in partitions
        if not is_valid_topic_name(tp.topic)
    }


async def _list_offsets(
    client: Client, leaders: PartitionLeaders, partitions: list[TopicPartition], timestamp: int, deadline: float
) -> dict[TopicPartition, int | OffsetMgrError]:
    async def ask(
        leader: Address, its_partitions: list[TopicPartition], attempt: float
    ) -> dict[TopicPartition, int | OffsetMgrError]:
        connection = await client.node(leader).connection(attempt)
        return await fetch.list_offsets(connection, dict.fromkeys(its_partitions, timestamp), remaining(attempt))

    return await leaders.per_partition(partitions, ask, deadline) if partitions else {}
