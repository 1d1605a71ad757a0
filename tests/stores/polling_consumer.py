"""A consumer that polls in a thread, as an application would."""

from __future__ import annotations

import threading

import confluent_kafka as ck


class PollingConsumer:
    def __init__(self, bootstrap: str, group: str, topic: str, **extra: object) -> None:
        self.first: dict[int, int] = {}
        self.assigned: list[int] = []
        self.revocations = 0
        self.errors: list[str] = []
        own = {"client.id": "the-app", "auto.offset.reset": "earliest", "enable.auto.commit": False, **extra}
        self._consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": group, **own})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                self.first.setdefault(partition, offset)
        self._consumer.close()

    def _on_assign(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.assigned = sorted(p.partition for p in partitions)

    def _on_revoke(self, *_: object) -> None:
        self.revocations += 1

    def __enter__(self) -> PollingConsumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
