"""``offsets import`` checks topics, partitions and log ranges as ``offsets reset`` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from conftest import MakeTopic

from offsetmgr.cli.app import run
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers


@pytest.fixture
def topic(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> str:
    """A topic of two partitions with ten records each."""
    name = make_topic(unique, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(10):
        producer.produce(name, b"x", partition=0)
        producer.produce(name, b"x", partition=1)
    assert producer.flush(30) == 0
    return name


def saved(directory: Path, group: str, *rows: tuple[str, int, int]) -> str:
    lines = [f"{group},{topic},{partition},{offset}" for topic, partition, offset in rows]
    path = directory / "saved.csv"
    path.write_text("\n".join(["group,topic,partition,offset", *lines]) + "\n")
    return str(path)


def committed(uri: str, group: str) -> dict[TopicPartition, int]:
    with open_store(uri) as store:
        return {tp: one.offset for tp, one in store.fetch(group).items() if isinstance(one, Committed)}


def test_an_offset_outside_the_log_is_clamped_like_by_reset(
    kafka: KafkaBroker, topic: str, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, unique, (topic, 0, 4), (topic, 1, 99))
    command = ["offsets", "import", file, "--bootstrap-server", kafka.bootstrap, "--execute", "--yes"]
    assert run([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["note"] for row in rows] == [None, "clamped from 99 to the log's end"]
    assert committed(f"kafka://{kafka.bootstrap}", unique) == {
        TopicPartition(topic, 0): 4,
        TopicPartition(topic, 1): 10,
    }

    reset = tmp_path / "reset.csv"
    reset.write_text(f"{topic},0,4\n{topic},1,99\n")
    assert run(["offsets", "reset", unique, "--from-file", str(reset), "--bootstrap-server", kafka.bootstrap]) == 0
    assert "clamped from 99 to the log's end" in capsys.readouterr().out


def test_an_offset_outside_the_log_that_the_store_already_holds_is_unchanged(
    kafka: KafkaBroker, topic: str, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, unique, (topic, 0, 99), (topic, 1, 98))
    uri = f"kafka://{kafka.bootstrap}"
    with open_store(uri) as store:
        store.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(99)})
    command = ["offsets", "import", file, "--bootstrap-server", kafka.bootstrap, "--execute", "--yes"]
    assert run([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["new_offset"], row["note"]) for row in rows] == [
        (99, "unchanged"),
        (10, "clamped from 98 to the log's end"),
    ]
    assert committed(uri, unique) == {TopicPartition(topic, 0): 99, TopicPartition(topic, 1): 10}

    with open_store(uri) as store:
        store.commit(unique, {TopicPartition(topic, 1): OffsetAndMetadata(97)})
    assert run(command) == 1
    assert "rewind" in capsys.readouterr().err
    assert committed(uri, unique) == {TopicPartition(topic, 0): 99, TopicPartition(topic, 1): 97}


def test_a_missing_topic_or_partition_is_rejected(
    kafka: KafkaBroker, topic: str, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, unique, (topic, 0, 4), (topic, 7, 1), ("no-such-topic", 0, 1))
    code = run(["offsets", "import", file, "--bootstrap-server", kafka.bootstrap, "--execute", "--yes"])
    messages = capsys.readouterr().err
    assert code == 1
    assert f"{topic}-7" in messages
    assert "no-such-topic-0" in messages
    assert "--unchecked writes the offset without a check" in messages


def test_unchecked_offsets_are_written_to_zookeeper(
    zookeeper: ZooKeeperServer, kafka: KafkaBroker, topic: str, unique: str, tmp_path: Path
) -> None:
    servers = ("--zookeeper", f"{zookeeper.connect}/kafka", "--bootstrap-server", kafka.bootstrap)
    command = ["offsets", "import", saved(tmp_path, unique, (topic, 0, 99)), *servers, "--execute", "--yes"]
    assert run(command) == 0
    uri = f"zookeeper://{zookeeper.connect}/kafka"
    assert committed(uri, unique) == {TopicPartition(topic, 0): 10}
    assert run([*command, "--unchecked"]) == 0
    assert committed(uri, unique) == {TopicPartition(topic, 0): 99}
