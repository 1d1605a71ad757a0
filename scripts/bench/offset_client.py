"""`OffsetClient`: an unmodified client that measures commits and fetches of one server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Semaphore
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from manager_servers import PARTITIONS, TOPIC

IN_FLIGHT = 200


class OffsetClient:
    """Commits and fetches offsets of ``groups`` groups, of `PARTITIONS` partitions each, through librdkafka."""

    def __init__(self, bootstrap: str, groups: int) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 60_000, "log_level": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "single", "enable.auto.commit": False, "log_level": 0}
        )
        self._groups = [f"bench-{n:06}" for n in range(groups)]
        self._offset = 0

    @property
    def offsets(self) -> int:
        """The number of offsets that `commits` and `fetches` transfer."""
        return len(self._groups) * PARTITIONS

    def commits(self) -> float:
        """Commits all groups once. Returns the offsets a second."""
        self._offset += 1
        requests = [
            ConsumerGroupTopicPartitions(g, [TopicPartition(TOPIC, p, self._offset) for p in range(PARTITIONS)])
            for g in self._groups
        ]
        return self._rate(requests, lambda one: self._admin.alter_consumer_group_offsets([one])[one.group_id])

    def fetches(self) -> float:
        """Fetches all groups once. Returns the offsets a second."""
        requests = [
            ConsumerGroupTopicPartitions(g, [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]) for g in self._groups
        ]
        return self._rate(requests, lambda one: self._admin.list_consumer_group_offsets([one])[one.group_id])

    def _rate(self, requests: Sequence[ConsumerGroupTopicPartitions], ask: Callable[..., Future[Any]]) -> float:
        capacity = Semaphore(IN_FLIGHT)
        futures = []
        started = time.perf_counter()
        for one in requests:
            capacity.acquire()
            future = ask(one)
            future.add_done_callback(lambda _: capacity.release())
            futures.append(future)
        found = [future.result(60) for future in futures]
        duration_s = time.perf_counter() - started
        for one in found:
            if len(one.topic_partitions) != PARTITIONS or any(p.error for p in one.topic_partitions):
                sys.exit(f"{one.group_id}: {one.topic_partitions}")
        return len(requests) * PARTITIONS / duration_s

    def single_commits(self, partitions: int, number: int) -> list[float]:
        """Commits this number of partitions synchronously, ``number`` times. Returns the durations in milliseconds."""
        durations = []
        for _ in range(number):
            self._offset += 1
            offsets = [TopicPartition(TOPIC, p, self._offset) for p in range(partitions)]
            started = time.perf_counter()
            self._consumer.commit(offsets=offsets, asynchronous=False)
            durations.append((time.perf_counter() - started) * 1000)
        return durations
