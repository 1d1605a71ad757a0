"""A client process for the tests that kill managers: commits to its own groups, fetches the offsets of all groups, and
records every operation.

It is an unmodified confluent-kafka client, and ends when its standard input is closed.
    python committing_client.py NAME BOOTSTRAP HISTORY_FILE TOPIC OWN_GROUPS ALL_GROUPS   (comma-separated)
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
from history import COMMIT, FETCH, Operation

PARTITIONS = 3
FETCH_TIMEOUT_S = 20.0
"""Seconds that librdkafka may take to find the coordinator."""


def consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "socket.timeout.ms": 6000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def commit(client: Consumer, topic: str, value: int) -> dict[int, bool]:
    """Commits one value to all partitions. Returns whether each commit was acknowledged."""
    offsets = [TopicPartition(topic, p, value) for p in range(PARTITIONS)]
    try:
        answer = client.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return dict.fromkeys(range(PARTITIONS), False)
    return {o.partition: o.error is None for o in answer}


def fetch(client: Consumer, topic: str) -> dict[int, int | None] | None:
    """The committed value of each partition, or None for no offset. Returns None if the fetch failed."""
    try:
        answer = client.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=FETCH_TIMEOUT_S)
    except KafkaException:
        return None
    if any(o.error is not None for o in answer):
        return None
    return {o.partition: None if o.offset == OFFSET_INVALID else o.offset for o in answer}


def main(name: str, bootstrap: str, history: str, topic: str, own: list[str], all_groups: list[str]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    clients = {group: consumer(bootstrap, group) for group in all_groups}
    value = 0
    with Path(history).open("a") as file:

        def record(kind: str, group: str, begin: int, outcome: dict[int, tuple[bool, int | None]]) -> None:
            end = time.monotonic_ns()
            for partition, (done, recorded_value) in outcome.items():
                file.write(Operation(kind, name, group, partition, begin, end, done, recorded_value).line())
            file.flush()

        while not ended.is_set():
            value += 1
            group = random.choice(own)
            begin = time.monotonic_ns()
            acknowledged = commit(clients[group], topic, value)
            record(COMMIT, group, begin, {p: (done, value) for p, done in acknowledged.items()})
            group = random.choice(all_groups)
            begin = time.monotonic_ns()
            found = fetch(clients[group], topic)
            record(
                FETCH, group, begin, {p: (found is not None, found[p] if found else None) for p in range(PARTITIONS)}
            )
    for client in clients.values():
        client.close()


if __name__ == "__main__":
    _, name, bootstrap, history, topic, own, all_groups = sys.argv
    main(name, bootstrap, history, topic, own.split(","), all_groups.split(","))
