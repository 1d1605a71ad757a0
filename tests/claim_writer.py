"""Writes batches, claims and fences to a partition with the protocol client, as owners and other programs do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.background_loop import ClientThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.client.leader_router import PartitionLeaders
from offsetmgr.kafka.client.producers import ProducerEpoch, init_producer_ids
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import FENCE_EPOCH, FENCE_KEY, Claim, encode_claim
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record

T = TypeVar("T")

TIMEOUT_S = 60.0


class ClaimWriter(Closeable):
    """A client that appends batches with any producer id. Each method waits for the acknowledgement."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._thread = ClientThread(Client(bootstrap, Security()), TIMEOUT_S)
        self._sequences: dict[tuple[ProducerEpoch, int], int] = {}

    def producer(self, transactional_id: str) -> ProducerEpoch:
        """Returns the producer id of a transactional id, with the next epoch."""

        async def call(deadline: float) -> ProducerEpoch:
            found = await init_producer_ids(self._thread.client, {transactional_id: None}, deadline)
            return _result(found[transactional_id])

        return self._thread.run(call)

    def append(
        self,
        partition: int,
        records: Sequence[EncodedRecord],
        producer: ProducerEpoch | None,
        *,
        codec: int = 0,
        acks: int = -1,
    ) -> int:
        """Appends one batch and returns its first offset. Without a producer the batch is not idempotent."""
        identity, sequence = None, 0
        if producer is not None:
            sequence = self._sequences.get((producer, partition), 0)
            identity = Producer(producer.id, producer.epoch, sequence)
        now = int(time.time() * 1000)
        data = batch(
            [Record(offset, now, key, value) for offset, (key, value) in enumerate(records)], codec, producer=identity
        )
        offset = self._produce(partition, data, acks)
        if producer is not None:
            self._sequences[producer, partition] = sequence + len(records)
        return offset

    def _produce(self, partition: int, data: bytes, acks: int) -> int:
        tp = TopicPartition(self._topic, partition)
        parts = [{"index": partition, "records": data}]
        message = {
            "transactional_id": None,
            "acks": acks,
            "timeout": 10_000,
            "topic_data": [{"name": self._topic, "partition_data": parts}],
        }

        async def send(
            leader: Address, _: list[TopicPartition], deadline: float
        ) -> dict[TopicPartition, int | OffsetMgrError]:
            connection = await self._thread.client.node(leader).connection(deadline)
            answer = await connection.call(Request(ApiKey.PRODUCE, 7, message), remaining(deadline))
            (part,) = answer["responses"][0]["partition_responses"]
            code = part["error_code"]
            return {tp: kafka_error(code, str(tp)) if code else int(part["base_offset"])}

        async def call(deadline: float) -> int:
            leaders = PartitionLeaders(self._thread.client)
            return _result((await leaders.per_partition([tp], send, deadline))[tp])

        return self._thread.run(call)

    def claim(self, partition: int, producer: ProducerEpoch, ids: Sequence[int] = (), token: str = "token") -> int:
        """Appends a claim that lists these producer ids and the claim's own. Returns its offset."""
        claim = Claim(token, "test", int(time.time() * 1000), tuple(sorted({*ids, producer.id})))
        return self.append(partition, [encode_claim(claim)], producer)

    def fence(self, partition: int, producer_id: int) -> int:
        """Appends a fence of a producer id."""
        return self.append(partition, [(FENCE_KEY, None)], ProducerEpoch(producer_id, FENCE_EPOCH))

    def close(self) -> None:
        """Closes the connections."""
        self._thread.close()


def _result(outcome: T | OffsetMgrError) -> T:
    if isinstance(outcome, OffsetMgrError):
        raise outcome
    return outcome
