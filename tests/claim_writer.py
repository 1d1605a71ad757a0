"""Writes batches, claims and fences to a partition with the protocol client, as owners and other programs do."""

from __future__ import annotations

import time
from collections.abc import Sequence

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.background_loop import ClientThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.client.leader_router import find_leaders
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.manager.log.kafka.batch_audit import BatchProducer
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import FENCE_EPOCH, FENCE_KEY, Claim, encode_claim
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record

TIMEOUT_S = 20.0


class ClaimWriter(Closeable):
    """A client that appends batches with any producer id. Each method waits for the acknowledgement."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._thread = ClientThread(Client(bootstrap, Security()), TIMEOUT_S)
        self._sequences: dict[tuple[BatchProducer, int], int] = {}

    def producer(self, transactional_id: str) -> BatchProducer:
        """Returns the producer id of a transactional id, with the next epoch."""

        async def call(deadline: float) -> BatchProducer:
            client = self._thread.client
            while True:
                connection = await client.any_connection(deadline)
                request = Request(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [transactional_id]})
                (found,) = (await connection.call(request, remaining(deadline)))["coordinators"]
                if not found["error_code"]:
                    node = client.node(Address(found["host"], found["port"]))
                    message = {
                        "transactional_id": transactional_id,
                        "transaction_timeout": 60_000,
                        "producer_id": -1,
                        "producer_epoch": -1,
                    }
                    init = Request(ApiKey.INIT_PRODUCER_ID, 4, message)
                    answer = await (await node.connection(deadline)).call(init, remaining(deadline))
                    if not answer["error_code"]:
                        return BatchProducer(answer["producer_id"], answer["producer_epoch"])
                time.sleep(0.05)

        return self._thread.run(call)

    def append(
        self,
        partition: int,
        records: Sequence[EncodedRecord],
        producer: BatchProducer | None,
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

        async def call(deadline: float) -> int:
            client = self._thread.client
            leader = (await find_leaders(client, [tp], deadline))[tp]
            if not isinstance(leader, Address):
                raise leader
            connection = await client.node(leader).connection(deadline)
            answer = await connection.call(Request(ApiKey.PRODUCE, 7, message), remaining(deadline))
            (part,) = answer["responses"][0]["partition_responses"]
            assert part["error_code"] == 0, part
            return int(part["base_offset"])

        return self._thread.run(call)

    def claim(self, partition: int, producer: BatchProducer, ids: Sequence[int] = (), token: str = "token") -> int:
        """Appends a claim that lists these producer ids and the claim's own. Returns its offset."""
        claim = Claim(token, "test", int(time.time() * 1000), tuple(sorted({*ids, producer.id})))
        return self.append(partition, [encode_claim(claim)], producer)

    def fence(self, partition: int, producer_id: int) -> int:
        """Appends a fence of a producer id."""
        return self.append(partition, [(FENCE_KEY, None)], BatchProducer(producer_id, FENCE_EPOCH))

    def close(self) -> None:
        """Closes the connections."""
        self._thread.close()
