"""Real brokers answer random requests of producers as `simulated_log` and `simulated_transactions` do.

The simulation of the log without transactions relies on that.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field

import pytest
from simulated_log import Replica, parse_batch
from simulated_transactions import InitializedProducer, TransactionCoordinator

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import produce
from offsetmgr.kafka.client.producers import ProducerEpoch, describe_producers, init_producer_ids
from offsetmgr.kafka.protocol.errors import ProducerFenced
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record

pytestmark = pytest.mark.servers

REQUESTS = 20_000 if os.environ.get("OFFSETMGR_SOAK") else 1_500
SEED = int(os.environ.get("OFFSETMGR_SEED") or 1)
LARGEST_EPOCH = 32_767


@dataclass
class Comparison:
    """Sends each request to a broker and to the simulation, and compares the responses."""

    client: Client
    topic: str
    random: random.Random = field(default_factory=lambda: random.Random(SEED))
    replica: Replica = field(default_factory=Replica)
    transactions: TransactionCoordinator = field(default_factory=lambda: TransactionCoordinator(0))
    received: list[tuple[str, ProducerEpoch]] = field(default_factory=list)
    """The transactional ids, and the producer ids and epochs that the broker has returned."""
    simulated_ids: dict[int, int] = field(default_factory=dict)
    """The simulated producer id for each producer id of the broker."""
    next_sequences: dict[ProducerEpoch, int] = field(default_factory=dict)
    codes: set[int] = field(default_factory=set)

    async def run(self, requests: int) -> None:
        deadline = asyncio.get_running_loop().time() + 120
        connection = await self.client.any_connection(deadline)  # the only broker leads every partition
        for _ in range(requests):
            if self.random.random() < 0.05 or not self.received:
                await self.init_producer_id()
                continue
            data = self.random_batch()
            end, expected = self.replica.end, self.replica.append(parse_batch(data), 0.0)
            answer = (await produce(connection, self.topic, {0: data}, 30))[0]
            assert (answer.error_code, answer.first_offset) == expected[:2], parse_batch(data)
            self.codes.add(answer.error_code)
            if self.replica.end > end:
                producer = parse_batch(data).producer
                assert producer is not None
                following = producer.sequence + self.replica.end - end
                self.next_sequences[ProducerEpoch(producer.id, producer.epoch)] = following
            listed = await describe_producers(connection, self.topic, [0], 30)
            assert listed == {0: self.replica.epochs()}

    async def init_producer_id(self) -> None:
        """Requests an epoch unconditionally, or presents an epoch that is the newest one in most cases."""
        # A batch of the largest epoch ends a producer id, so later requests need other ones.
        name = f"{self.topic}-{self.random.randrange(3) + len(self.received) // 20}"
        own = [epoch for of, epoch in self.received if of == name]
        presented = None
        if own and self.random.random() < 0.7:
            presented = self.random.choice([own[-1], own[-1], *own[-3:], self.random.choice(self.received)[1]])
        deadline = asyncio.get_running_loop().time() + 120
        answer = (await init_producer_ids(self.client, {name: presented}, deadline))[name]
        simulated = presented and ProducerEpoch(self.simulated_ids[presented.id], presented.epoch)
        expected = self.transactions.init_producer_id(name, simulated, 0.0)
        if isinstance(answer, ProducerFenced):
            assert expected.code == ErrorCode.INVALID_PRODUCER_EPOCH
            return
        assert isinstance(answer, ProducerEpoch)
        simulated_id = self.simulated_ids.setdefault(answer.id, expected.id)
        assert expected == InitializedProducer(ErrorCode.NONE, simulated_id, answer.epoch)
        self.received.append((name, answer))

    def random_batch(self) -> bytes:
        """Returns a batch of the newest epoch or another one, with the next sequence number or another one."""
        draw = self.random
        _, (producer_id, epoch) = draw.choice(self.received[-3:])
        epoch = draw.choice([epoch] * 60 + [max(epoch - 1, 0), epoch + 1])
        if draw.random() < 0.005:
            epoch = LARGEST_EPOCH
        following = self.next_sequences.get(ProducerEpoch(producer_id, epoch), 0)
        sequence = max(0, following + draw.choice([0, 0, 0, 0, 0, 0, -1, -2, -3, -5, -8, 1]))
        count = draw.choice([1, 1, 2, 3])
        records = [Record(offset, None, b"k", b"v") for offset in range(count)]
        return batch(records, producer=Producer(producer_id, epoch, sequence))


def test_brokers_answer_as_the_simulated_log(broker, make_topic, unique) -> None:
    topic = make_topic(unique, bootstrap=broker.bootstrap)

    async def compare() -> Comparison:
        client = Client(broker.bootstrap, Security())
        try:
            comparison = Comparison(client, topic)
            await comparison.run(REQUESTS)
        finally:
            await client.close()
        return comparison

    comparison = asyncio.run(compare())
    codes = {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert comparison.codes == codes
    assert len(comparison.replica.batches) > REQUESTS / 10
