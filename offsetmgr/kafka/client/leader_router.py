"""Routes requests to the leaders of partitions, with retries.

`PartitionLeaders.per_partition` is the counterpart of `Client.per_group` for partitions and returns one outcome for
each partition. After a *retriable* error (the leader moved, the connection broke) the method waits, looks up the leader
again and repeats the request. The method stops at the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.retry import Retries, is_retriable
from offsetmgr.kafka.client.client import Client, ask_each
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.deadline import MIN_ATTEMPT_S, attempt_deadline, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error

T = TypeVar("T")

UNKNOWN_TOPIC_TIMEOUT_S: Final = 2.0
"""How long the client retries a request about an unknown topic. The topic may be new, or all brokers may have just
started."""


class PartitionLeaders:
    """Caches the leaders of partitions and sends requests to them. Use it within the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[TopicPartition, Address] = {}

    async def per_partition(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Address, list[TopicPartition], float], Awaitable[Mapping[TopicPartition, T | OffsetMgrError]]],
        deadline: float,
        wait_s: float = 0.0,
    ) -> dict[TopicPartition, T | OffsetMgrError]:
        """Sends a request to the leader of each partition, and returns one outcome for each partition.

        ``ask`` sends the request to one leader. Its arguments are the address of the leader, the partitions of this
        leader, and the deadline of the attempt. ``wait_s`` is the number of seconds for which a leader may delay its
        response on purpose (long poll). Raises an error only if no broker has ever responded, or if the lookup of the
        leaders fails with an error that is not retriable.
        """
        loop = asyncio.get_running_loop()
        unknown_topic_deadline = min(deadline, loop.time() + UNKNOWN_TOPIC_TIMEOUT_S)
        done: dict[TopicPartition, T | OffsetMgrError] = {}
        pending = list(partitions)
        retries = Retries(deadline)
        while True:
            answers, unknown = await self._attempt(pending, ask, attempt_deadline(deadline, wait_s))
            done |= answers
            now = loop.time()
            pending = [
                tp for tp in pending if _worth_retrying(done[tp], now < unknown_topic_deadline or tp not in unknown)
            ]
            for tp in pending:
                self._known.pop(tp, None)
            if not pending or not await retries.pause():
                return done

    async def _attempt(
        self,
        partitions: Sequence[TopicPartition],
        ask: Callable[[Address, list[TopicPartition], float], Awaitable[Mapping[TopicPartition, T | OffsetMgrError]]],
        deadline: float,
    ) -> tuple[dict[TopicPartition, T | OffsetMgrError], Collection[TopicPartition]]:
        """Makes one attempt. Returns an outcome for every partition, and the partitions without a known leader."""
        try:
            unknown = await self._look_up([tp for tp in partitions if tp not in self._known], deadline)
        except OffsetMgrError as error:
            if not self._client.reached or not error.retriable:
                raise
            return dict.fromkeys(partitions, error), partitions
        where = {tp: unknown.get(tp) or self._known[tp] for tp in partitions}
        answers = await ask_each(partitions, where, lambda leader, tps: ask(leader, tps, deadline))
        return answers, unknown.keys()

    async def _look_up(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError]:
        """Looks up and caches the leaders of these partitions. Returns the errors of partitions without a known
        leader."""
        if not partitions:
            return {}
        failed: dict[TopicPartition, OffsetMgrError] = {}
        for tp, found in (await find_leaders(self._client, partitions, deadline)).items():
            if isinstance(found, Address):
                self._known[tp] = found
            else:
                failed[tp] = found
        return failed


async def find_leaders(
    client: Client, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, Address | OffsetMgrError]:
    """Returns the leader of each partition, or an error if the leader is unknown.

    A partition counts as missing only if no responding broker knows it, because a broker that has just started knows no
    partitions. Raises the errors of `Client.any_connection`.
    """
    first = await client.any_connection(deadline)
    found = await _leaders_from(first, partitions, deadline)
    for address in client.addresses:
        missing = [tp for tp, answer in found.items() if isinstance(answer, UnknownTopicOrPartition)]
        if not missing:
            break
        if address != first.address:
            try:
                # Another broker has already responded, so the client waits only briefly for a response from this
                # broker.
                by_then = min(deadline, asyncio.get_running_loop().time() + MIN_ATTEMPT_S)
                connection = await client.node(address).connection(by_then)
                found |= await _leaders_from(connection, missing, by_then)
            except OffsetMgrError:
                continue
    return found


async def _leaders_from(
    connection: BrokerConnection, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, Address | OffsetMgrError]:
    """Returns the leaders of the partitions according to one broker."""
    topics = list(dict.fromkeys(tp.topic for tp in partitions))
    answer = await connection.call(requests.metadata(topics), remaining(deadline))
    brokers = requests.broker_addresses(answer)
    codes = {topic["name"]: topic["error_code"] for topic in answer["topics"]}
    known = {
        TopicPartition(topic["name"], part["partition_index"]): part
        for topic in answer["topics"]
        for part in topic["partitions"]
    }
    found: dict[TopicPartition, Address | OffsetMgrError] = {}
    for tp in partitions:
        part = known.get(tp)
        leader = brokers.get(part["leader_id"]) if part is not None else None
        if leader is not None:
            found[tp] = leader
        elif part is not None:
            found[tp] = kafka_error(part["error_code"] or ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
        else:
            found[tp] = kafka_error(codes.get(tp.topic) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
    return found


def _worth_retrying(answer: object, wait_for_topic: bool) -> bool:
    """Returns whether to repeat the request for a partition with this outcome."""
    if isinstance(answer, UnknownTopicOrPartition):
        return wait_for_topic
    return isinstance(answer, OffsetMgrError) and is_retriable(answer)
