"""Exactly-once workers: a source of numbered records, jobs that read and write in one cluster, and copiers between two.

A job or copier sends each batch in a transaction, together with its position in the topic that it reads. When anything
fails, a new producer with the same transactional id ends the transaction, and the worker goes on from the position that
the brokers know. So it needs no memory of its own, and a lost answer to a commit does no harm.

After a lost connection, librdkafka's ``send_offsets_to_transaction`` may never return (its issues 5456 and 5511). So
each job and copier is a process, and `Kept` kills one that hangs. Otherwise its late TxnOffsetCommit could reach the
coordinator of Kafka 3.9 during the next transaction: it rejects the old epoch, and also drops the pending offsets.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from select import select
from subprocess import PIPE, Popen
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position

PARTITIONS = 2
KEYS = 20
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

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(240)
            assert not self._thread.is_alive(), f"{self.name} does not stop"
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
                key = number % KEYS
                producer.produce(self._topic, b"%d" % number, b"%d" % key, partition=key % PARTITIONS)
                self.written += 1
            producer.poll(0)
        assert producer.flush(120) == 0, "the source's records are not acknowledged"


class Transactional(ABC):
    """Moves records from the topic ``source`` to the topic ``target`` of the cluster ``to``, and keeps its positions
    there in the group of the consumer ``group``. Its counts are those since the last sign of life."""

    def __init__(self, name: str, source: str, target: str, to: str, consumer: Consumer, group: Consumer) -> None:
        self._name, self._source, self._target, self._to = name, source, target, to
        self._consumer, self._group = consumer, group
        self._stopping = threading.Event()
        self._counts = Counter[str]()
        self._reached = [-1] * PARTITIONS
        self._moved = Counter[int | None]()
        self._empty_reads = 0

    @abstractmethod
    def _rewind(self) -> None:
        """Goes back to the positions that the brokers know."""

    def _may_end(self) -> bool:
        """Whether the worker ends if it is to stop."""
        return True

    def work(self) -> None:
        """Ends when told to stop, but only once the last transaction is settled."""
        threading.Thread(target=self._listen, daemon=True).start()
        while not self._settles():
            pass
        self._consumer.close()
        self._group.close()

    def _listen(self) -> None:
        """Ends the process at once if the process that started it is gone."""
        while os.read(sys.stdin.fileno(), 100):
            self._stopping.set()
        os._exit(1)

    def _settles(self) -> bool:
        """Works with one producer and destroys it. Returns whether its last transaction is settled."""
        try:
            self._give_sign_of_life()
            producer = Producer({"bootstrap.servers": self._to, "transactional.id": self._name, **QUICK})
            producer.init_transactions(TIMEOUT_S)  # ends the transaction of the producer before
            self._rewind()
            self._moved.clear()
            while not (self._stopping.is_set() and self._may_end()):
                self._give_sign_of_life()
                self._move_batch(producer)
            return True
        except KafkaException as error:
            self._counts[error.args[0].name()] += 1
            return False

    def _give_sign_of_life(self) -> None:
        os.write(sys.stdout.fileno(), json.dumps([self._counts, self._reached]).encode() + b"\n")
        self._counts.clear()

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
            self._moved.update(one.partition() for one in batch)
        self._empty_reads = 0 if batch else self._empty_reads + 1
        for one in ends:
            self._reached[one.partition() or 0] = one.offset() or 0

    def _after(self, last: Message) -> Position:
        """The position after a record. A leader epoch goes along only to the cluster of its log."""
        epoch = last.leader_epoch() if self._group is self._consumer else -1
        return Position(self._source, last.partition() or 0, (last.offset() or 0) + 1, leader_epoch=epoch)


class Job(Transactional):
    """A member of ``group`` that reads one topic of a cluster and writes to another one."""

    def __init__(self, cluster: str, group: str, source: str, target: str) -> None:
        # A member that hangs leaves the group before it is killed, so that the next one need not wait for that.
        leaving = {"session.timeout.ms": 1_000 * TIMEOUT_S, "max.poll.interval.ms": 1_000 * TIMEOUT_S}
        member = reader(cluster, group, **leaving)
        member.subscribe([source])
        super().__init__(f"job-{group}", source, target, cluster, member, member)

    def _rewind(self) -> None:
        for one in self._consumer.committed(self._consumer.assignment(), TIMEOUT_S):
            one.offset = max(one.offset, OFFSET_BEGINNING)
            self._consumer.seek(one)

    def _may_end(self) -> bool:
        """Only the first batch after a rewind may hold records of an aborted transaction, too. If they were the last
        ones of the output, nothing would tell which of them is copied."""
        return min(self._moved[one] for one in range(PARTITIONS)) > BATCH or self._empty_reads > 20


class Copier(Transactional):
    """Copies a topic from the cluster ``at`` to the cluster ``to``. Its group is ``copier-TOPIC``."""

    def __init__(self, topic: str, at: str, to: str) -> None:
        name = f"copier-{topic}"
        consumer, group = reader(at, name, **{"enable.partition.eof": True}), reader(to, name)
        super().__init__(name, topic, topic, to, consumer, group)

    def _rewind(self) -> None:
        self._reached = [-1] * PARTITIONS
        known = self._group.committed([Position(self._source, number) for number in range(PARTITIONS)], TIMEOUT_S)
        self._consumer.assign([Position(one.topic, one.partition, max(one.offset, 0)) for one in known])


class Kept(Worker):
    """Runs a job or copier in a process of its own, kills the process if it hangs, and starts the next one."""

    def __init__(self, kind: type[Transactional], *arguments: str) -> None:
        super().__init__(f"{kind.__name__} {' '.join(arguments)}")
        self.counts = Counter[str]()
        self.reached = [-1] * PARTITIONS
        self._command = [sys.executable, __file__, kind.__name__, *arguments]

    def _work(self) -> None:
        while self._hangs():
            self.counts["hangs"] += 1

    def _hangs(self) -> bool:
        """Runs a process until it ends or hangs."""
        with Popen(self._command, bufsize=0, stdin=PIPE, stdout=PIPE, process_group=0) as process:
            assert process.stdin and process.stdout
            while select([process.stdout], [], [], HANGS_S)[0]:
                sign = process.stdout.readline()
                if not sign:
                    assert process.wait() == 0, f"{self.name}: exit code {process.returncode}"
                    return False
                counts, self.reached = json.loads(sign)
                self.counts.update(counts)
                if self._stopping.is_set():
                    with suppress(BrokenPipeError):
                        process.stdin.write(b"stop\n")
            process.kill()
            return True


if __name__ == "__main__":
    {"Job": Job, "Copier": Copier}[sys.argv[1]](*sys.argv[2:]).work()
