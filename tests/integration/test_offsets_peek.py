"""``offsetmgr offsets peek`` on real brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic

from offsetmgr.cli.app import run
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[Position(topic, p, offset) for p, offset in enumerate(offsets)], asynchronous=False)
    consumer.close()


def peeked(capsys: pytest.CaptureFixture[str], bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["offsets", "peek", *arguments, "--bootstrap-server", bootstrap, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert isinstance(rows, list)
    return rows


def test_the_record_at_each_offset_is_shown(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic(unique, 6, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        headers: list[tuple[str, Any]] = [("trace", b"abc"), ("raw", b"\xff")]
        producer.produce(topic, f"value {number}", key=f"key {number}", partition=0, headers=headers, timestamp=1_000)
        producer.produce(topic, b"\xfe" * 2_000, partition=2)
        producer.produce(topic, b"x", partition=3)
    assert producer.flush(30) == 0
    transactions = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique})
    transactions.init_transactions(60)
    for _ in range(2):
        transactions.begin_transaction()
        for partition in (4, 5):
            transactions.produce(topic, b"in a transaction", partition=partition)
        transactions.commit_transaction(60)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([Position(topic, 2, 5)])[Position(topic, 2, 5)].result(90)
    commit(kafka.bootstrap, unique, topic, 3, 0, 4, 99, 1, 3)

    rows = peeked(capsys, kafka.bootstrap, unique)

    first = rows[0]
    assert (first["offset"], first["record_offset"], first["key"], first["value"]) == (3, 3, "key 3", "value 3")
    assert first["timestamp"] == 1_000
    assert first["age_ms"] > 0
    assert first["headers"] == [{"name": "trace", "value": "abc"}, {"name": "raw", "value": {"hex": "ff"}}]
    assert first["size"] == len("key 3value 3traceabcraw") + 1
    assert [row["note"] for row in rows] == [
        None,
        "no record yet: consumers may read up to 0 (high watermark)",
        "removed: the log begins at 5",
        "beyond the log, which ends at 10",
        "1 transaction marker skipped; record 2; part of a transaction, which may be open or aborted",
        "no record from 3 up to 4 (high watermark); 1 transaction marker skipped",
    ]
    assert rows[4]["value"] == "in a transaction"


def test_long_values_are_cut(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic(unique)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 900_000})
    producer.produce(topic, "ä" * 400_000, partition=0)
    assert producer.flush(30) == 0
    commit(kafka.bootstrap, unique, topic, 0)

    (row,) = peeked(capsys, kafka.bootstrap, unique, "--topic", f"{topic}:0", "--max-bytes", "5")

    assert (row["value"], row["size"]) == ("ää... (800,000 bytes)", 800_000)
    assert run(["offsets", "peek", unique, "--bootstrap-server", kafka.bootstrap]) == 0
    assert "... (800,000 bytes)" in capsys.readouterr().out
