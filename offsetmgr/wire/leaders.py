"""Finding the brokers that lead partitions, and asking each for its own, repeating what may succeed later.

The counterpart for partitions of `Client.per_group` for groups: one outcome a partition, and a *retriable* error (the
leader moved, the connection broke) leads to a new look for the leader, after a pause, until the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from kio.schema.metadata.v8.response import MetadataResponse

from offsetmgr.errors import OffsetMgrError, ServerError, UnknownTopicOrPartition
from offsetmgr.model import TopicPartition
from offsetmgr.wire import requests
from offsetmgr.wire.client import Client, backoff, remaining
from offsetmgr.wire.connection import Address
from offsetmgr.wire.errors import kafka_error

T = TypeVar("T")

UNKNOWN_PATIENCE: Final = 2.0
"""Seconds for which a topic that a broker does not know is asked for again: one that has just come back, or just heard
of the topic, does not know it yet."""
_SHARE: Final = 3
"""A broker that does not answer gets a third of the time that is left: the others must have theirs."""
_SHORTEST: Final = 1.0


class Leaders:
    """Where partitions are led, as far as is known. Use it within the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[TopicPartition, Address] = {}

    async def per_partition(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Address, list[TopicPartition], float], Awaitable[Mapping[TopicPartition, T | OffsetMgrError]]],
        deadline: float,
        wait: float = 0.0,
    ) -> dict[TopicPartition, T | OffsetMgrError]:
        """Asks each partition's leader: ``ask`` is given it, its partitions, and when the attempt must have ended.

        ``wait`` is for how many seconds a leader may wait on purpose before it answers. Raises only if no broker was
        ever reached.
        """
        loop = asyncio.get_running_loop()
        patience = min(deadline, loop.time() + UNKNOWN_PATIENCE)
        done: dict[TopicPartition, T | OffsetMgrError] = {}
        pending = list(partitions)
        for pause in backoff():
            now = loop.time()
            attempt = min(deadline, now + wait + max((deadline - now) / _SHARE, _SHORTEST))
            done |= await self._ask_once(pending, ask, attempt)
            now = loop.time()
            pending = [tp for tp in pending if _again(done[tp], now < patience)]
            for tp in pending:
                self._known.pop(tp, None)
            if not pending or now + pause >= deadline:
                return done
            await asyncio.sleep(pause)
        raise AssertionError("the pauses do not end")

    async def _ask_once(
        self,
        partitions: Sequence[TopicPartition],
        ask: Callable[[Address, list[TopicPartition], float], Awaitable[Mapping[TopicPartition, T | OffsetMgrError]]],
        deadline: float,
    ) -> dict[TopicPartition, T | OffsetMgrError]:
        """One attempt; an answer for every partition."""
        answers: dict[TopicPartition, T | OffsetMgrError] = {
            tp: ServerError(str(tp), "the broker did not answer for it") for tp in partitions
        }
        try:
            unknown = await self._look_up([tp for tp in partitions if tp not in self._known], deadline)
        except OffsetMgrError as error:
            if not self._client.reached or not error.retriable:
                raise
            return dict.fromkeys(partitions, error)
        answers |= unknown
        by_leader: dict[Address, list[TopicPartition]] = {}
        for tp in partitions:
            if tp not in unknown:
                by_leader.setdefault(self._known[tp], []).append(tp)

        async def ask_at(leader: Address, of_it: list[TopicPartition]) -> Mapping[TopicPartition, T | OffsetMgrError]:
            try:
                return await ask(leader, of_it, deadline)
            except OffsetMgrError as error:
                return dict.fromkeys(of_it, error)

        for found in await asyncio.gather(*(ask_at(leader, of_it) for leader, of_it in by_leader.items())):
            answers |= found
        return answers

    async def _look_up(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError]:
        """Learns who leads these partitions; the errors of those of which nobody says it."""
        if not partitions:
            return {}
        connection = await self._client.any_connection(deadline)
        topics = list(dict.fromkeys(tp.topic for tp in partitions))
        answer = await connection.call(requests.metadata(topics), MetadataResponse, remaining(deadline))
        brokers = {int(broker.node_id): Address(broker.host, int(broker.port)) for broker in answer.brokers}
        codes = {str(topic.name): int(topic.error_code) for topic in answer.topics}
        layout = {
            TopicPartition(str(topic.name), int(part.partition_index)): part
            for topic in answer.topics
            for part in topic.partitions
        }
        failed: dict[TopicPartition, OffsetMgrError] = {}
        for tp in partitions:
            part = layout.get(tp)
            leader = brokers.get(int(part.leader_id)) if part is not None else None
            if leader is not None:
                self._known[tp] = leader
            elif part is not None:
                failed[tp] = kafka_error(int(part.error_code) or 5, str(tp))
            else:
                failed[tp] = kafka_error(codes.get(tp.topic) or 3, str(tp))
        return failed


def _again(answer: object, patient: bool) -> bool:
    """Whether the partition is worth asking for again."""
    if isinstance(answer, UnknownTopicOrPartition):
        return patient
    return isinstance(answer, OffsetMgrError) and answer.retriable
