"""A steady load on a topic, for tests that count which messages a group consumes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from confluent_kafka import Producer


class Load:
    """Produces a numbered message to each of the partitions after each pause. Tests can also send single messages."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: Iterable[int], pause_s: float = 0.05, form: str = "{number}"
    ) -> None:
        self._topic, self._partitions, self._pause_s, self._form = topic, list(partitions), pause_s, form
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: Counter[int] = Counter()

    def send(self, partition: int, count: int = 1) -> None:
        with self._lock:
            for _ in range(count):
                value = self._form.format(partition=partition, number=self.sent[partition])
                self._producer.produce(self._topic, value=value, partition=partition)
                self.sent[partition] += 1
        self._producer.poll(0)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for partition in self._partitions:
                self.send(partition)

    def __enter__(self) -> Load:
        self._producer.flush(30)
        self._thread.start()
        return self

    def end(self) -> Counter[int]:
        """Stops the load once all messages are acknowledged. Returns how many each partition has."""
        self._stop.set()
        self._thread.join(90)
        assert self._producer.flush(30) == 0
        return self.sent

    def __exit__(self, *_: object) -> None:
        self.end()
