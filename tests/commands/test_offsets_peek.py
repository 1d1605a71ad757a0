"""``offsetmgr offsets peek`` on real brokers."""

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from in_process import command, rows
from kazoo_client import connected

from offsetmgr.cli.app import run
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers


def commit(bootstrap: str, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[Position(topic, p, offset) for p, offset in enumerate(offsets)], asynchronous=False)
    consumer.close()


def peeked(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    return list(rows("offsets", "peek", *arguments, "--bootstrap-server", bootstrap))


def test_the_record_at_each_offset_is_shown(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> None:
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
    servers = ["--bootstrap-server", kafka.bootstrap]
    shown = peeked(kafka.bootstrap, unique)
    first = shown[0]
    assert (first["offset"], first["record_offset"], first["key"], first["value"]) == (3, 3, "key 3", "value 3")
    assert first["timestamp"] == 1_000
    assert first["age_ms"] > 0
    assert first["headers"] == [{"name": "trace", "value": "abc"}, {"name": "raw", "value": {"hex": "ff"}}]
    assert first["size"] == len("key 3value 3traceabcraw") + 1
    assert [row["note"] for row in shown] == [
        None,
        "no record yet: consumers may read up to 0 (high watermark)",
        "removed: the log begins at 5",
        "beyond the log, which ends at 10",
        "1 transaction marker skipped; record 2; part of a transaction, which may be open or aborted",
        "no record from 3 up to 4 (high watermark); 1 transaction marker skipped",
    ]
    assert shown[4]["value"] == "in a transaction"
    skip = command("offsets", "reset", unique, "--topic", f"{topic}:2", "--skip", "1", *servers, code=1).stderr
    assert "the log begins at 5 and ends at 10" in skip
    assert "hint: --to-earliest goes to the log's start, --to-latest to its end\n" in skip


def test_long_values_are_cut(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> None:
    topic = make_topic(unique)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 900_000})
    producer.produce(topic, "ä" * 400_000, key=b"a" * 20 + b"\xff" * 5, partition=0)
    assert producer.flush(30) == 0
    commit(kafka.bootstrap, unique, topic, 0)
    (row,) = peeked(kafka.bootstrap, unique, "--topic", f"{topic}:0", "--max-bytes", "5")
    assert (row["value"], row["size"]) == ("ää... (800,000 bytes)", 800_025)
    assert row["key"] == "aaaaa... (25 bytes)"  # not UTF-8 as a whole
    shown = command("offsets", "peek", unique, "--bootstrap-server", kafka.bootstrap).stdout
    assert "... (800,000 bytes)" in shown


def test_80_columns_show_the_identifiers_of_servers_members_and_records(
    kafka: KafkaBroker,
    zookeeper: ZooKeeperServer,
    make_topic: MakeTopic,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic(unique)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, '{"id": 7, "state": "paid", "total": 12.50}', key="customer-10223-eu-west-1", partition=0)
    assert producer.flush(30) == 0
    commit(kafka.bootstrap, unique, topic, 0)
    member = f"{unique}_host-1-1330000000000-1a2b3c41"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    chroot = f"{zookeeper.connect}/kafka"
    with connected(chroot) as client:
        subscription = {"version": 1, "subscription": {topic: 1}, "pattern": "static", "timestamp": "1330000000000"}
        client.create(
            f"/consumers/{unique}/ids/{member}", json.dumps(subscription).encode(), ephemeral=True, makepath=True
        )
        for command, shown in (
            (["zk", "brokers", "--zookeeper", chroot], f"PLAINTEXT://{kafka.bootstrap}"),
            (["zk", "members", unique, "--zookeeper", chroot], member[-4:]),
            (["offsets", "peek", unique, "--bootstrap-server", kafka.bootstrap], '{"i'),
        ):
            capsys.readouterr()
            assert run(command) == 0
            lines = capsys.readouterr().out.splitlines()
            assert [line for line in lines if len(line) > 80] == []
            assert any(shown in line for line in lines), lines
