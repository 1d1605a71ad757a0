"""Lag and offsets of a group that has moved from ZooKeeper to Kafka, and unknown names of group states."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from conftest import MakeTopic
from processes import Commands, pass_margin

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers


@pytest.fixture
def both(
    zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> Commands:
    """A group at 100 in ZooKeeper and later at 480 in Kafka, whose log ends at 500; both addresses are configured."""
    make_topic(unique)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for _ in range(500):
        producer.produce(unique, "record", partition=0)
    assert producer.flush(60) == 0
    connect = f"{zookeeper.connect}/kafka"
    for uri, offset in ((f"zookeeper://{connect}", 100), (f"kafka://{kafka.bootstrap}", 480)):
        with open_store(uri) as store:
            store.commit(unique, {TopicPartition(unique, 0): OffsetAndMetadata(offset)})
        pass_margin()
    return Commands(tmp_path, {"OFFSETMGR_ZOOKEEPER": connect, "OFFSETMGR_BOOTSTRAP_SERVER": kafka.bootstrap})


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])
def test_the_lag_counts_from_kafkas_newer_offset_which_the_note_names(
    both: Commands, unique: str, kafka: KafkaBroker, command: tuple[str, str]
) -> None:
    done = both.run(*command, "--group", unique, "--format", "json")
    (row,) = json.loads(done.stdout)
    assert (row["offset"], row["lag"], row["note"]) == (100, 20, "older than Kafka's 480")
    assert "warning: 1 offset in ZooKeeper is older than the group's in Kafka" in done.stderr
    assert f"hint: --store kafka://{kafka.bootstrap} shows what Kafka holds" in done.stderr


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])
@pytest.mark.parametrize("flags", [(), ("--topic",)])
def test_a_partition_committed_only_in_kafka_is_shown_with_its_lag(
    both: Commands, unique: str, kafka: KafkaBroker, make_topic: MakeTopic, command: tuple[str, str], flags: list[str]
) -> None:
    later = make_topic(f"{unique}-later")
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(unique, {TopicPartition(later, 0): OffsetAndMetadata(0)})
    named = [*flags, later] if flags else []
    rows = json.loads(both.run(*command, "--group", unique, *named, "--format", "json").stdout)
    (row,) = [row for row in rows if row["topic"] == later]
    assert (row["offset"], row["lag"], row["note"]) == (None, 0, "only in Kafka: 0")
    assert len(rows) == (1 if named else 2)


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])
def test_a_group_that_exists_only_in_kafka_is_shown(
    both: Commands, unique: str, kafka: KafkaBroker, command: tuple[str, str]
) -> None:
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(f"{unique}-new", {TopicPartition(unique, 0): OffsetAndMetadata(490)})
    done = both.run(*command, "--group", f"{unique}-new", "--format", "json")
    assert [(row["offset"], row["lag"], row["note"]) for row in json.loads(done.stdout)] == [
        (None, 10, "only in Kafka: 490")
    ]
    assert "warning: 1 offset is only in Kafka, not in ZooKeeper; the lag is computed from it" in done.stderr
    for words in (("offsets", "reset", "--all-topics", "--to-latest"), ("groups", "delete")):
        found = both.run(*words, "--group", f"{unique}-new", code=1)
        assert f"hint: it is in kafka://{kafka.bootstrap}: add --store" in found.stderr
    assert f"reading kafka://{kafka.bootstrap}: " in both.run("offsets", "peek", "--group", f"{unique}-new").stderr
    both.run(*command, "--group", f"{unique}-none", code=1)


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])
def test_the_lag_of_kafka_counts_from_zookeepers_newer_offset(
    both: Commands, unique: str, kafka: KafkaBroker, command: tuple[str, str]
) -> None:
    with open_store(f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}") as store:
        store.commit(unique, {TopicPartition(unique, 0): OffsetAndMetadata(495)})
    selected = ("--store", f"kafka://{kafka.bootstrap}")
    done = both.run(*command, "--group", unique, *selected, "--format", "json")
    (row,) = json.loads(done.stdout)
    assert (row["offset"], row["lag"], row["note"]) == (480, 5, "older than ZooKeeper's 495")
    assert "warning: 1 offset in Kafka is older than the group's in ZooKeeper; the lag is computed" in done.stderr
    assert f"hint: --store 'zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}?layout=0.8' shows" in done.stderr


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])
def test_a_group_that_exists_only_in_zookeeper_is_shown(
    both: Commands, unique: str, kafka: KafkaBroker, command: tuple[str, str]
) -> None:
    with open_store(f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}") as store:
        store.commit(f"{unique}-old", {TopicPartition(unique, 0): OffsetAndMetadata(490)})
    selected = ("--store", f"kafka://{kafka.bootstrap}")
    for name in (f"{unique}-old", f"{unique}-o*"):
        done = both.run(*command, "--group", name, *selected, "--format", "json")
        assert [(row["offset"], row["lag"], row["note"]) for row in json.loads(done.stdout)] == [
            (None, 10, "only in ZooKeeper: 490")
        ]
    found = both.run("offsets", "get", "--group", f"{unique}-old", *selected, code=1)
    assert "hint: it is in zookeeper://" in found.stderr
    several = ("--group", f"{unique}-old", "--group", f"{unique}-none")
    for read in ("get", "peek"):
        found = both.run("offsets", read, *several, *selected, code=1)
        assert f"hint: group '{unique}-old' is in zookeeper://" in found.stderr
    missing = both.run(*command, "--group", f"{unique}-none", *selected, code=1)
    assert f"does not exist in kafka://{kafka.bootstrap} nor in zookeeper://" in missing.stderr


def test_a_group_with_members_only_in_kafka_is_described(both: Commands, unique: str, kafka: KafkaBroker) -> None:
    group = f"{unique}-members"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([unique])
    try:
        deadline = time.monotonic() + 120
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.2)
        done = both.run("groups", "describe", "--group", group, "--format", "json")
        (row,) = json.loads(done.stdout)
        assert (row["state"], row["partition"], row["note"]) == ("STABLE", 0, "nothing committed")
        assert row["member_id"]
    finally:
        consumer.close()


def test_a_dead_zookeeper_does_not_hide_the_offsets_in_kafka(both: Commands, unique: str, kafka: KafkaBroker) -> None:
    dead = ("--zookeeper", "127.0.0.1:1", "--store", f"kafka://{kafka.bootstrap}", "--timeout", "1500")
    done = both.run("offsets", "lag", "--group", unique, *dead, "--format", "json")
    (row,) = json.loads(done.stdout)
    assert (row["offset"], row["lag"], row["note"]) == (480, 20, None)
    assert "warning: offsets in zookeeper://127.0.0.1:1" in done.stderr
    assert "are not compared" in done.stderr


def test_brokers_of_another_cluster_cause_a_warning(both: Commands, unique: str, kraft: KraftBroker) -> None:
    store = ("--store", f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}", "--bootstrap-server", kraft.bootstrap)
    done = both.run("groups", "describe", "--group", unique, *store, code=None)
    assert f"warning: {kraft.bootstrap} is another Kafka cluster than that of" in done.stderr


def test_an_unknown_state_is_an_error_that_lists_the_states(both: Commands) -> None:
    refused = both.run("groups", "list", "--state", "Steady", code=2)
    assert "STEADY is not a state of a group" in refused.stderr
    assert "states: Stable, Empty, Dead, PreparingRebalance, CompletingRebalance" in refused.stderr
    assert refused.stdout == ""
    both.run("groups", "list", "--state", "stable,PREPARING_REBALANCE")


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])
def test_an_offset_only_in_zookeeper_is_shown_also_without_its_topic(
    both: Commands, unique: str, kafka: KafkaBroker, command: tuple[str, str]
) -> None:
    with open_store(f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}") as store:
        store.commit(f"{unique}-lost", {TopicPartition(f"{unique}-deleted", 0): OffsetAndMetadata(7)})
    selected = ("--store", f"kafka://{kafka.bootstrap}", "--format", "json")
    done = both.run(*command, "--group", f"{unique}-lost", *selected, code=1)
    assert [(row["partition"], row["offset"], row["note"]) for row in json.loads(done.stdout)] == [
        (0, None, "only in ZooKeeper: 7; log unknown")
    ]
    assert f"error: topic {unique}-deleted: does not exist in this Kafka cluster" in done.stderr
