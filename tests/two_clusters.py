"""Two real clusters, and a copier that does what replicators do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from committed_offsets import commit
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position
from conftest import MakeTopic
from in_process import rows

from offsetmgr.sandbox import KafkaBroker, KraftBroker

RECORDS = 100


def producer_at(bootstrap: str) -> Producer:
    """A producer that writes each record once and in order, although a broker under load answers late."""
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})


def must_arrive(error: object, _message: Message) -> None:
    """Raises the error of a record from `flush`, which counts a lost record as done."""
    assert error is None, error


class TwoClusters:
    """Cluster A with records, and cluster B, to which `copy` copies them."""

    def __init__(self, a: str, b: str, make_topic: MakeTopic) -> None:
        self.a, self.b, self.make_topic = a, b, make_topic
        self._to_b = producer_at(b)

    def topic(self, name: str, partitions: int = 1, *, copy: str | None = None, partitions_of_copy: int = 0) -> str:
        """Creates the topic at A, with records in each partition, and an empty one at B."""
        self.make_topic(name, partitions, bootstrap=self.a)
        self.make_topic(copy or name, partitions_of_copy or partitions, bootstrap=self.b)
        producer = producer_at(self.a)
        for partition in range(partitions):
            for number in range(RECORDS):
                headers: list[Any] = [("trace", str(number))]
                key = f"key {partition} {number}"
                producer.produce(name, f"record {number}", key, partition, must_arrive, headers=headers)
        assert producer.flush(60) == 0
        return name

    def copy(
        self,
        topic: str,
        start: int = 0,
        stop: int = RECORDS,
        partition: int = 0,
        to: str = "",
        to_partition: int | None = None,
    ) -> None:
        """Copies the records from ``start`` up to ``stop``, and adds the header of a copier."""
        at = partition if to_partition is None else to_partition
        consumer = Consumer({"bootstrap.servers": self.a, "group.id": "copier", "enable.auto.commit": False})
        consumer.assign([Position(topic, partition, start)])
        found: list[Message] = []
        while len(found) < stop - start:
            found += [one for one in consumer.consume(stop - start - len(found), 10) if one.error() is None]
        consumer.close()
        for one in found:
            headers: list[Any] = [*(one.headers() or ()), ("x-original-offset", str(one.offset()))]
            time = one.timestamp()[1]
            self._to_b.produce(to or topic, one.value(), one.key(), at, must_arrive, timestamp=time, headers=headers)
        assert self._to_b.flush(60) == 0

    def foreign(self, topic: str, count: int, partition: int = 0) -> None:
        """Writes records to B that A does not hold."""
        for number in range(count):
            self._to_b.produce(topic, f"foreign {number}", partition=partition, on_delivery=must_arrive)
        assert self._to_b.flush(60) == 0

    def commit(
        self, group: str, topic: str, a: dict[int, int], b: dict[int, int] | None = None, copy: str = ""
    ) -> None:
        """Commits offsets of the partitions in A and in B."""
        commit(f"kafka://{self.a}", group, topic, a)
        if b:
            commit(f"kafka://{self.b}", group, copy or topic, b)

    def twice(self, name: str) -> str:
        """Creates a topic with a copy behind 7 foreign records in partition 0. In partition 1, the copier wrote 40 to
        59 twice after a restart."""
        topic = self.topic(name, 2)
        self.foreign(topic, 7)
        self.copy(topic)
        self.copy(topic, 0, 60, partition=1)
        self.copy(topic, 40, RECORDS, partition=1)
        return topic

    def arguments(self, *words: str) -> list[str]:
        sides = ["--from", f"kafka://{self.a}", "--to", f"kafka://{self.b}"]
        return ["offsets", "diff", *sides, "--translate", "auto", *words]

    def diff(self, *words: str, code: int = 1) -> list[tuple[Any, ...]]:
        """The rows: group, partition, from, to, right, repeats, skips, verdict."""
        names = ("group", "partition", "from_offset", "to_offset", "right_offset", "repeats", "skips", "verdict")
        return [tuple(row[name] for name in names) for row in rows(*self.arguments(*words), code=code)]


@contextmanager
def consuming(bootstrap: str, group: str, topic: str) -> Iterator[tuple[Consumer, bytes | None]]:
    """A member of a group, which commits nothing by itself, and the value of the first record that it gets."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.subscribe([topic])
        while (found := consumer.poll(120)) is not None and found.error():
            pass
        yield consumer, None if found is None else found.value()
    finally:
        consumer.close()


@pytest.fixture
def clusters(kafka: KafkaBroker, kraft: KraftBroker, make_topic: MakeTopic) -> TwoClusters:
    return TwoClusters(kafka.bootstrap, kraft.bootstrap, make_topic)
