"""Generates load on a broker until the test kills it: commits that stay, commits that expire, deletions, a group with
a member, and transactions that are committed, aborted and left open.

Prints one line for each operation that the broker has acknowledged. Usage:
    python lost_cluster_load.py BOOTSTRAP TOPIC SEED FIRST_OFFSET
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import confluent_kafka as ck

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.kafka import KafkaStore

PARTITIONS: Final = 4
DELETED: Final = 10
"""Number of groups whose offsets are deleted. A killed client keeps the lock of one of them until its session ends."""
SHORT_MS: Final = 1
"""A retention that ends before a test reads the offsets."""
LONG_MS: Final = 30 * 24 * 60 * 60 * 1000


Work: TypeAlias = Callable[[random.Random, Iterator[int]], None]
LOADING: Final = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
_OFFSET_COMMIT, _OFFSET_FETCH = (8, 2), (9, 5)
"""API key and version of each request."""


def commit_with_retention(connection: socket.socket, group: str, topic: str, offset: int, retention_ms: int) -> bool:
    """Commits offsets with their own retention, as clients before Kafka 2.1 could. Returns whether the broker accepted
    the offsets of all partitions."""
    body = _text(group) + struct.pack(">i", -1) + _text("") + struct.pack(">qi", retention_ms, 1) + _text(topic)
    body += struct.pack(">i", PARTITIONS)
    for partition in range(PARTITIONS):
        body += struct.pack(">iq", partition, offset) + _text(f"at {offset}")
    answer = _send_request(connection, _OFFSET_COMMIT, body)
    at = 4 + 2 + len(topic) + 4
    return all(struct.unpack_from(">h", answer, at + 6 * n + 4)[0] == 0 for n in range(PARTITIONS))


def fetch(bootstrap: str, group: str) -> dict[tuple[str, int], tuple[int, str]] | None:
    """Fetches a group's offsets from a single broker. If a transaction is open, these are the offsets before it.

    Returns offset and metadata by topic and partition, or None while the coordinator loads.
    """
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        answer = _send_request(connection, _OFFSET_FETCH, _text(group) + struct.pack(">i", -1))
    found: dict[tuple[str, int], tuple[int, str]] = {}
    topics, at = struct.unpack_from(">i", answer, 4)[0], 8
    for _ in range(topics):
        topic, at = _read_text(answer, at)
        partitions, at = struct.unpack_from(">i", answer, at)[0], at + 4
        for _ in range(partitions):
            partition, offset, _ = struct.unpack_from(">iqi", answer, at)
            metadata, at = _read_text(answer, at + 16)
            assert struct.unpack_from(">h", answer, at) == (0,), (group, topic, partition)
            at += 2
            found[topic, partition] = (offset, metadata)
    (error,) = struct.unpack_from(">h", answer, at)
    assert error == 0 or error in LOADING, error
    return None if error else found


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    end = at + 2 + max(size, 0)
    return data[at + 2 : end].decode(), end


def _send_request(connection: socket.socket, api: tuple[int, int], body: bytes) -> bytes:
    """Returns the response after its correlation id."""
    frame = struct.pack(">hhi", *api, 7) + _text("lost-cluster") + body
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)[4:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


class Load:
    """Prints lines ``KIND GROUP OFFSET``. The broker must never again serve a lower offset of a ``stays`` group."""

    def __init__(self, bootstrap: str, topic: str, seed: int, first: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        works = (self._plain, self._deletions, self._transactions, self._member)
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, random.Random(seed + n), itertools.count(first)))
            for n, work in enumerate(works)
        ]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _repeat(work: Work, dice: random.Random, offsets: Iterator[int]) -> None:
        while True:
            # A broker that has just started may reject requests. A killed broker closes its connections.
            with contextlib.suppress(OSError, ck.KafkaException, OffsetMgrError):
                work(dice, offsets)
            time.sleep(0.2)

    def _report(self, kind: str, group: str, offset: int) -> None:
        os.write(1, f"{kind} {group} {offset}\n".encode())

    def _plain(self, dice: random.Random, offsets: Iterator[int]) -> None:
        host, _, port = self._bootstrap.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            # Without a timeout: after a retry on another connection the order of the two commits would be unknown.
            connection.settimeout(None)
            for offset in offsets:
                number = dice.randrange(3)
                stays, expires = f"{self._topic}-stays-{number}", f"{self._topic}-expires-{number}"
                if commit_with_retention(connection, stays, self._topic, offset, LONG_MS):
                    self._report("stays", stays, offset)
                commit_with_retention(connection, expires, self._topic, offset, SHORT_MS)
                self._report("expires", expires, offset)

    def _deletions(self, dice: random.Random, offsets: Iterator[int]) -> None:
        with KafkaStore(self._bootstrap) as store:
            for offset in offsets:
                group = f"{self._topic}-deleted-{dice.randrange(DELETED)}"
                partitions = [TopicPartition(self._topic, n) for n in range(PARTITIONS)]
                at = OffsetAndMetadata(offset, "x" * dice.randrange(40))
                store.commit(group, dict.fromkeys(partitions, at), allow_rewind=True)
                store.delete(group, dice.sample(partitions, dice.randint(1, PARTITIONS)))
                self._report("deleted", group, offset)

    def _transactions(self, dice: random.Random, offsets: Iterator[int]) -> None:
        group = f"{self._topic}-txn-{dice.randrange(3)}"
        consumer = ck.Consumer({"bootstrap.servers": self._bootstrap, "group.id": group, "log_level": 0})
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": f"{self._topic}-txn", "log_level": 0}
        producer = ck.Producer({**settings, "socket.timeout.ms": 5000, "transaction.timeout.ms": 10_000})
        producer.init_transactions(20)
        for offset in offsets:
            producer.begin_transaction()
            at = [ck.TopicPartition(self._topic, n, offset, f"in {offset}") for n in range(PARTITIONS)]
            producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), 10)
            if dice.random() < 0.4:
                producer.abort_transaction(10)
                self._report("aborted", group, offset)
            else:
                producer.commit_transaction(10)
                self._report("committed", group, offset)

    def _member(self, dice: random.Random, offsets: Iterator[int]) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": f"{self._topic}-member", "log_level": 0}
        consumer = ck.Consumer({**settings, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 20})
        consumer.subscribe([self._topic])
        while True:
            if (message := consumer.poll(0.1)) is not None and message.error() is None:
                self._report("member", f"{self._topic}-member", message.offset() or 0)


def groups_of(topic: str) -> list[str]:
    """All groups to which the load commits."""
    counts = {"stays": 3, "expires": 3, "deleted": DELETED, "txn": 3}
    return [*(f"{topic}-{kind}-{n}" for kind, count in counts.items() for n in range(count)), f"{topic}-member"]


if __name__ == "__main__":
    Load(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).run()
