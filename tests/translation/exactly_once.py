"""Exactly-once workers: a source of numbered records, jobs that read and write in one cluster, and copiers between two.

A job or copier sends each batch in a transaction, together with its position in the topic that it reads. When anything
fails, a new producer with the same transactional id ends the transaction, and the worker goes on from the position that
the brokers know. So it needs no memory of its own, and a lost answer to a commit does no harm. A worker that hangs is
replaced in the same way: after a lost connection, librdkafka's ``send_offsets_to_transaction`` may never return
(librdkafka issues 5456 and 5511).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Generic, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position

PARTITIONS = 2
BATCH = 500
TIMEOUT_S = 3
HANGS_S = 4
QUICK: dict[str, Any] = {
    "log_level": 0,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
}


def reader(bootstrap: str, group: str, **settings: Any) -> Consumer:
    """A consumer of committed records that commits nothing by itself."""
    reads = {"isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    # A broker answers only after this time that it has no further record.
    quick = {**QUICK, "fetch.wait.max.ms": 50}
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, **reads, **quick, **settings})


def read_all(bootstrap: str, topic: str) -> Iterator[tuple[bytes, int]]:
    """Yields the key and the number of each committed record; those of a partition are in the order of the log."""
    with closing(reader(bootstrap, "oracle", **{"enable.partition.eof": True})) as consumer:
        consumer.assign([Position(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        ended = set[int | None]()
        while len(ended) < PARTITIONS:
            for one in consumer.consume(BATCH, 0.1):
                if _is_end(one):
                    ended.add(one.partition())
                else:
                    yield bytes(one.key() or b""), int(one.value() or b"")


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


class Worker(ABC):
    """Works in a thread from `start` to `stop`. Errors that are not Kafka's are raised by `stop`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def end(self) -> None:
        """Tells the worker to stop, without waiting."""
        self._stopping.set()

    def stop(self) -> None:
        self.end()
        if self._thread is not None:
            self._thread.join(240)
            assert self.ended, f"{self.name} does not stop"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    @abstractmethod
    def _work(self) -> None: ...


class Source(Worker):
    """Writes the numbers from 0 on to the cluster ``target``, each once, ``per_s`` a second. A number is the value, and
    the key is its remainder."""

    KEYS = 20

    def __init__(self, topic: str, per_s: float) -> None:
        super().__init__(f"source of {topic}")
        self.target = ""
        self.written = 0
        self._topic, self._per_s = topic, per_s

    def _work(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": 2_000_000, **QUICK}
        producer = Producer({"bootstrap.servers": self.target, **settings})
        began, before = time.monotonic(), self.written
        while not self._stopping.wait(0.02):
            due = before + int((time.monotonic() - began) * self._per_s)
            for number in range(self.written, min(due, self.written + BATCH)):
                key = number % self.KEYS
                producer.produce(self._topic, b"%d" % number, b"%d" % key, partition=key % PARTITIONS)
                self.written += 1
            producer.poll(0)
        assert producer.flush(120) == 0, "the source's records are not acknowledged"


class Transactional(Worker):
    """Moves records from the topic ``source`` to the topic ``target`` of the cluster ``to``, with its positions.
    ``counts`` has the number of records, and of each error."""

    def __init__(self, counts: Counter[str], name: str, source: str, target: str, to: str) -> None:
        super().__init__(name)
        self.beat = time.monotonic()
        """The time of its last sign of life."""
        self.abandoned = False
        self._counts, self._source, self._target, self._to = counts, source, target, to
        self._consumer: Consumer
        self._group: Consumer
        """The consumer whose group has the positions."""

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _rewind(self) -> None:
        """Goes back to the positions that the brokers know."""

    @abstractmethod
    def _after(self, last: Message) -> Position:
        """The position to keep after the last record of a batch in a partition."""

    def _reached(self, ends: Iterable[Message]) -> None: ...

    def _work(self) -> None:
        self._open()
        settled = False
        while not self._stopping.is_set() or not (settled or self.abandoned):
            try:
                settled = False
                producer = self._settle()
                while not self._stopping.is_set():
                    self.beat = time.monotonic()
                    self._move_batch(producer)
                settled = True
            except KafkaException as error:
                self._counts[error.args[0].name()] += 1
        self._consumer.close()
        self._group.close()

    def _settle(self) -> Producer:
        """Ends the transaction of the producer before."""
        self.beat = time.monotonic()
        settings = {"transactional.id": self.name, "linger.ms": 5, **QUICK}
        producer = Producer({"bootstrap.servers": self._to, **settings})
        producer.init_transactions(TIMEOUT_S)
        self._rewind()
        return producer

    def _move_batch(self, producer: Producer) -> None:
        found = self._consumer.consume(BATCH, 0.1)
        ends = [one for one in found if _is_end(one)]
        batch = [one for one in found if one.error() is None]
        if batch:
            producer.begin_transaction()
            for one in batch:
                time_ms, partition = one.timestamp()[1], one.partition() or 0
                producer.produce(self._target, one.value(), one.key(), partition=partition, timestamp=time_ms)
            # The consumer's own positions would not do: right after a seek, they are still those before it.
            after = {one.partition(): self._after(one) for one in batch}
            producer.send_offsets_to_transaction(list(after.values()), self._group.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
            self._counts["moved"] += len(batch)
        self._reached(ends)


T = TypeVar("T", bound=Transactional)


class Job(Transactional):
    """A member of ``group`` that reads one topic of a cluster and writes to another one."""

    def __init__(self, counts: Counter[str], cluster: str, group: str, source: str, target: str) -> None:
        super().__init__(counts, f"job-{group}", source, target, cluster)
        self._name = group

    def _open(self) -> None:
        leaving = {"session.timeout.ms": 1_000 * HANGS_S, "max.poll.interval.ms": 1_000 * HANGS_S}
        self._group = self._consumer = reader(self._to, self._name, **leaving)
        self._consumer.subscribe([self._source])

    def _rewind(self) -> None:
        for one in self._consumer.committed(self._consumer.assignment(), TIMEOUT_S):
            one.offset = max(one.offset, OFFSET_BEGINNING)
            self._consumer.seek(one)

    def _after(self, last: Message) -> Position:
        place = last.partition() or 0, (last.offset() or 0) + 1
        return Position(self._source, *place, leader_epoch=last.leader_epoch())


class Copier(Transactional):
    """Copies a topic from the cluster ``at`` to the cluster ``to``, and keeps its positions there in the group
    ``copier-TOPIC``. No leader epoch goes along, as the positions are those of another log."""

    def __init__(self, counts: Counter[str], topic: str, at: str, to: str) -> None:
        super().__init__(counts, f"copier-{topic}", topic, topic, to)
        self._at = at
        self.reached = [-1] * PARTITIONS
        """Up to where everything is copied."""

    def _open(self) -> None:
        self._consumer = reader(self._at, self.name, **{"enable.partition.eof": True})
        self._group = reader(self._to, self.name)

    def _rewind(self) -> None:
        self.reached = [-1] * PARTITIONS
        known = self._group.committed([Position(self._source, number) for number in range(PARTITIONS)], TIMEOUT_S)
        self._consumer.assign([Position(one.topic, one.partition, max(one.offset, 0)) for one in known])

    def _after(self, last: Message) -> Position:
        return Position(self._source, last.partition() or 0, (last.offset() or 0) + 1)

    def _reached(self, ends: Iterable[Message]) -> None:
        for one in ends:
            self.reached[one.partition() or 0] = one.offset() or 0


class Kept(Worker, Generic[T]):
    """Replaces a worker that hangs. ``create`` gets the counts of the worker."""

    def __init__(self, create: Callable[[Counter[str]], T]) -> None:
        self.counts = Counter[str]()
        self._create = create
        self.now = create(self.counts)
        super().__init__(self.now.name)

    def _work(self) -> None:
        self.now.start()
        while not self.now.ended:
            if self._stopping.wait(0.02):
                self.now.end()
                time.sleep(0.02)
            if time.monotonic() - self.now.beat > HANGS_S:
                self.counts["hangs"] += 1
                self.now.abandoned = True
                self.now.end()
                self.now = self._create(self.counts)
                self.now.start()
        self.now.stop()
