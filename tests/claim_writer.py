"""Writes batches, claims and fences to a partition with the protocol client, as owners and other programs do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from event_loop_thread import EventLoopThread
from partition_leaders import leaders

from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.producers import ProducerEpoch, init_producer_ids
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import FENCE_EPOCH, FENCE_KEY, Claim, encode_claim
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record

TIMEOUT_S = 60.0
PRODUCE = 0
NO_LEADER = (3, 5, 6)
"""Error codes of a broker that does not lead the partition."""


class ClaimWriter(EventLoopThread):
    """A client that appends batches with any producer id. Each method waits for the acknowledgement."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._address = bootstrap
        self._topic = topic
        self._sequences: dict[tuple[ProducerEpoch, int], int] = {}

    async def _start(self) -> None:
        self._client = Client(self._address, Security())

    async def _stop(self) -> None:
        await self._client.close()

    def producer(self, transactional_id: str) -> ProducerEpoch:
        """Returns the producer id of a transactional id, with the next epoch."""

        async def call() -> ProducerEpoch:
            deadline = self.loop.time() + TIMEOUT_S
            found = (await init_producer_ids(self._client, {transactional_id: None}, deadline))[transactional_id]
            assert isinstance(found, ProducerEpoch), found
            return found

        return self.run(call())

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
        offset = self.run(self._produce(partition, data, acks))
        if producer is not None:
            self._sequences[producer, partition] = sequence + len(records)
        return offset

    async def _produce(self, partition: int, data: bytes, acks: int) -> int:
        """Sends a batch until the leader has appended it. Raises `TimedOut` at the deadline."""
        topics = [{"name": self._topic, "partition_data": [{"index": partition, "records": data}]}]
        request = Request(PRODUCE, 7, {"transactional_id": None, "acks": acks, "timeout": 10_000, "topic_data": topics})
        deadline = self.loop.time() + TIMEOUT_S
        while self.loop.time() < deadline:
            until = min(deadline, self.loop.time() + 5)  # the test may have frozen the broker that is asked
            try:
                leader = (await leaders(self._client, self._topic, until)).get(partition)
                if leader is not None:
                    connection = await self._client.node(leader).connection(deadline)
                    answer = await connection.call(request, deadline - self.loop.time())
                    (part,) = answer["responses"][0]["partition_responses"]
                    if not part["error_code"]:
                        return int(part["base_offset"])
                    assert part["error_code"] in NO_LEADER, part
            except OffsetMgrError as error:
                if not error.retriable:
                    raise
                self._client.rotate_lookup_broker()
            await asyncio.sleep(0.05)
        raise TimedOut(f"{self._topic}-{partition}")

    def claim(self, partition: int, producer: ProducerEpoch, ids: Sequence[int] = (), token: str = "token") -> int:
        """Appends a claim that lists these producer ids and the claim's own. Returns its offset."""
        claim = Claim(token, "test", int(time.time() * 1000), tuple(sorted({*ids, producer.id})))
        return self.append(partition, [encode_claim(claim)], producer)

    def fence(self, partition: int, producer_id: int) -> int:
        """Appends a fence of a producer id."""
        return self.append(partition, [(FENCE_KEY, None)], ProducerEpoch(producer_id, FENCE_EPOCH))
