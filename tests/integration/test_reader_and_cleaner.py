"""`RawReader` while the log cleaner removes claims from the part of the log that the reader has not read yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claim_writer import ClaimWriter
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from conftest import MakeTopic
from processes import wait_for

from offsetmgr.kafka.client.fetch import FetchLimits
from offsetmgr.kafka.client.security import Security
from offsetmgr.manager.log.kafka import log_load
from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.partition_load import PartitionLoad
from offsetmgr.manager.log.kafka.raw_reader import RawReader
from offsetmgr.sandbox import KraftBroker
from offsetmgr.testing.log_read_contract import numbered

pytestmark = pytest.mark.servers

ROUNDS, KEYS = 4, 500
SETTINGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "internal.segment.bytes": "5000",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
    "min.compaction.lag.ms": "3600000",
}


def start_cleaner(bootstrap: str, topic: str) -> None:
    """Lets the cleaner remove records without a delay."""
    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource: Any = ConfigResource("topic", topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(90)


def is_removed(bootstrap: str, topic: str, offset: int) -> bool:
    """Whether the log has no record at an offset any more."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        message = consumer.poll(10)
    finally:
        consumer.close()
    return message is not None and message.offset() != offset


def after_first_chunk(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Makes a load request small chunks, and calls ``action`` between the first two."""
    add, calls = PartitionLoad.add, iter([action])

    def add_chunk(self: PartitionLoad, data: bytes) -> None:
        add(self, data)
        for call in calls:
            call()

    monkeypatch.setattr(PartitionLoad, "add", add_chunk)
    monkeypatch.setattr(log_load, "_LIMITS", FetchLimits(max_bytes=2_000, min_bytes=1, max_wait_ms=100))


def test_a_load_needs_no_claim_that_the_cleaner_removes_while_it_reads(
    tmp_path: Path, make_topic: MakeTopic, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KraftBroker(tmp_path, config={"log.cleaner.backoff.ms": 50}) as broker:
        topic = make_topic(unique, 1, bootstrap=broker.bootstrap, config=SETTINGS)
        claims: list[int] = []
        ids: list[int] = []
        with ClaimWriter(broker.bootstrap, topic) as writer:
            for round_ in range(ROUNDS):
                owner = writer.producer(f"{topic}-{round_ // 2}")
                ids.append(owner.id)
                claims.append(writer.claim(0, owner, ids=ids))
                for first in range(round_ * KEYS, (round_ + 1) * KEYS, 50):
                    end = writer.append(0, numbered(first, first + 50), owner) + 50

        def compact() -> None:
            start_cleaner(broker.bootstrap, topic)
            wait_for(lambda: is_removed(broker.bootstrap, topic, claims[1]), "the second claim is removed")
            wait_for(lambda: is_removed(broker.bootstrap, topic, claims[2]), "the third claim is removed")

        after_first_chunk(monkeypatch, compact)
        reader = RawReader(broker.bootstrap, Security(), topic, ClaimHistory(topic))
        with contextlib.closing(reader):
            newest: dict[int, dict[bytes, bytes | None]] = {0: {}}
            reader.load({0: 0}, {0: end}, newest)
            assert reader.invalid_keys == {}
            assert newest == {0: dict(numbered(0, ROUNDS * KEYS))}
