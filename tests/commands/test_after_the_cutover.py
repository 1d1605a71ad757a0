"""Lag and offsets of a group that has moved from ZooKeeper to Kafka, and unknown names of group states."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from committed_offsets import commit
from confluent_kafka import Consumer
from conftest import MakeTopic
from processes import Commands, fill, pass_margin

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers


@pytest.fixture
def both(zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path) -> Commands:
    """A group at 100 in ZooKeeper and later at 480 in Kafka, whose log ends at 500; both addresses are configured."""
    make_topic(unique)
    fill(kafka.bootstrap, unique, 500)
    connect = f"{zookeeper.connect}/kafka"
    for uri, offset in ((f"zookeeper://{connect}", 100), (f"kafka://{kafka.bootstrap}", 480)):
        commit(uri, unique, unique, {0: offset})
        pass_margin()
    return Commands(tmp_path, {"OFFSETMGR_ZOOKEEPER": connect, "OFFSETMGR_BOOTSTRAP_SERVER": kafka.bootstrap})


def shown(both: Commands, command: Sequence[str], group: str, *options: str, code: int = 0) -> tuple[Any, str]:
    """The offset, lag and note of each row, and the messages."""
    done = both.run(*command, "--group", group, *options, "--format", "json", code=code)
    return [(row["offset"], row["lag"], row["note"]) for row in json.loads(done.stdout)], done.stderr


VIEWS = pytest.mark.parametrize("command", [("groups", "describe"), ("offsets", "lag")])


@VIEWS
def test_the_lag_counts_from_kafkas_newer_offset_which_the_note_names(both, unique, kafka, command) -> None:
    rows, said = shown(both, command, unique)
    assert rows == [(100, 20, "older than Kafka's 480")]
    assert "warning: 1 offset in ZooKeeper is older than the group's in Kafka" in said
    assert f"hint: --store kafka://{kafka.bootstrap} shows what Kafka holds" in said


@VIEWS
def test_a_partition_or_a_group_that_is_only_in_kafka_is_shown(both, unique, kafka, make_topic, command) -> None:
    uri, new = f"kafka://{kafka.bootstrap}", f"{unique}-new"
    later = make_topic(f"{unique}-later")
    commit(uri, unique, later, {0: 0})
    assert (None, 0, "only in Kafka: 0") in shown(both, command, unique)[0]
    assert shown(both, command, unique, "--topic", later)[0] == [(None, 0, "only in Kafka: 0")]
    commit(uri, new, unique, {0: 490})
    rows, said = shown(both, command, new)
    assert rows == [(None, 10, "only in Kafka: 490")]
    assert "warning: 1 offset is only in Kafka, not in ZooKeeper; the lag is computed from it" in said
    for words in (("offsets", "reset", "--all-topics", "--to-latest"), ("groups", "delete")):
        assert f"hint: it is in {uri}: add --store" in both.run(*words, "--group", new, code=1).stderr
    assert f"reading {uri}: " in both.run("offsets", "peek", "--group", new).stderr
    both.run(*command, "--group", f"{unique}-none", code=1)


@VIEWS
def test_the_lag_of_kafka_counts_from_zookeepers_newer_offset(both, unique, kafka, command) -> None:
    uri = f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}"
    commit(uri, unique, unique, {0: 495})
    rows, said = shown(both, command, unique, "--store", f"kafka://{kafka.bootstrap}")
    assert rows == [(480, 5, "older than ZooKeeper's 495")]
    assert "warning: 1 offset in Kafka is older than the group's in ZooKeeper; the lag is computed" in said
    assert f"hint: --store '{uri}?layout=0.8' shows" in said


@VIEWS
def test_a_group_that_exists_only_in_zookeeper_is_shown(both, unique, kafka, command) -> None:
    uri, old = f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}", f"{unique}-old"
    commit(uri, old, unique, {0: 490})
    selected = ("--store", f"kafka://{kafka.bootstrap}")
    for name in (old, f"{unique}-o*"):
        assert shown(both, command, name, *selected)[0] == [(None, 10, "only in ZooKeeper: 490")]
    found = both.run("offsets", "get", "--group", old, *selected, code=1)
    assert "hint: it is in zookeeper://" in found.stderr
    for read in ("get", "peek"):
        found = both.run("offsets", read, "--group", old, "--group", f"{unique}-none", *selected, code=1)
        assert f"hint: group '{old}' is in zookeeper://" in found.stderr
    missing = both.run(*command, "--group", f"{unique}-none", *selected, code=1)
    assert f"does not exist in kafka://{kafka.bootstrap} nor in zookeeper://" in missing.stderr
    commit(uri, f"{unique}-lost", f"{unique}-deleted", {0: 7})
    rows, said = shown(both, command, f"{unique}-lost", *selected, code=1)
    assert rows == [(None, None, "only in ZooKeeper: 7; log unknown")]
    assert f"error: topic {unique}-deleted: does not exist in this Kafka cluster" in said


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
    rows, said = shown(both, ("offsets", "lag"), unique, *dead)
    assert rows == [(480, 20, None)]
    assert "warning: offsets in zookeeper://127.0.0.1:1" in said
    assert "are not compared" in said


def test_brokers_of_another_cluster_cause_a_warning_and_refuse_an_edit_by_their_logs(both, unique, kraft, make_topic):
    make_topic(unique, bootstrap=kraft.bootstrap)
    store = ("--store", f"zookeeper://{both.environ['OFFSETMGR_ZOOKEEPER']}", "--bootstrap-server", kraft.bootstrap)
    done = both.run("groups", "describe", "--group", unique, *store, code=None)
    assert f"warning: {kraft.bootstrap} is another Kafka cluster than that of" in done.stderr
    (both.directory / "saved.csv").write_text(f"{unique},{unique},0,101\n")
    for edit in (("reset", "--all-topics", "--to-latest"), ("import", "saved.csv")):
        refused = both.run("offsets", *edit, "--group", unique, *store, "--yes", "--execute", code=2)
        assert f"error: {kraft.bootstrap}: is another Kafka cluster than that of" in refused.stderr


def test_an_unknown_state_is_an_error_that_lists_the_states(both: Commands) -> None:
    refused = both.run("groups", "list", "--state", "Steady", code=2)
    assert "Steady is not a state of a group" in refused.stderr
    assert "states: Stable, Empty, Dead, PreparingRebalance, CompletingRebalance" in refused.stderr
    assert refused.stdout == ""
    both.run("groups", "list", "--state", "stable,PREPARING_REBALANCE")
