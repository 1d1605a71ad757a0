"""``groups where`` finds groups in all configured stores, on real ZooKeeper, real Kafka and real consumers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer
from everyday import Cli

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers


@pytest.fixture
def both(kafka: KafkaBroker, zookeeper: ZooKeeperServer) -> list[str]:
    """The options that name both stores of one cluster."""
    return ["--zookeeper", f"{zookeeper.connect}/kafka", "--bootstrap-server", kafka.bootstrap]


def commit(uri: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    with open_store(uri) as store:
        store.commit(group, {TopicPartition(topic, p): OffsetAndMetadata(o) for p, o in offsets.items()})


def where(cli: Cli, *arguments: str, code: int = 0) -> dict[str, Any]:
    (row,) = cli.rows("groups", "where", *arguments, code=code)
    return row


@pytest.mark.parametrize(
    ("in_zookeeper", "in_kafka", "phase", "lag", "evidence"),
    [
        ({0: 4, 1: 5}, {}, "zookeeper", 21, "2 offsets in ZooKeeper and none in Kafka"),
        ({}, {0: 4, 1: 5}, "kafka", 21, "2 offsets in Kafka and none in ZooKeeper"),
        ({0: 4, 1: 5}, {0: 4, 1: 5}, "unknown", 21, "ZooKeeper and Kafka hold equal offsets on 2 partitions"),
        ({0: 9, 1: 5}, {0: 4, 1: 5}, "zookeeper", 16, "ZooKeeper is ahead of Kafka on 1 of 2 partitions"),
        ({0: 4, 1: 5}, {0: 4, 1: 15}, "kafka", 11, "Kafka is ahead of ZooKeeper on 1 of 2 partitions"),
        ({0: 9, 1: 5}, {0: 4, 1: 15}, "unknown", None, "no store is ahead everywhere"),
    ],
)
def test_the_phase_is_inferred_from_the_offsets_of_both_stores(
    cli: Cli, both: list[str], topic: str, in_zookeeper: dict[int, int], in_kafka: dict[int, int], phase: str,
    lag: int | None, evidence: str,
) -> None:  # fmt: skip
    if in_zookeeper:
        commit(f"zookeeper://{both[1]}", topic, topic, in_zookeeper)
    if in_kafka:
        commit(f"kafka://{both[3]}", topic, topic, in_kafka)
    row = where(cli, topic, *both)
    assert (row["phase"], row["lag"]) == (phase, lag)
    assert row["confidence"] == ("unknown" if phase == "unknown" else "inferred")
    assert row["evidence"].startswith(evidence)
    assert [p["offsets"] for p in row["partitions"]] == [
        {"zookeeper": in_zookeeper.get(p), "kafka": in_kafka.get(p)} for p in (0, 1)
    ]
    table = cli("groups", "where", topic, *both).stdout
    assert phase in table
    assert evidence in " ".join(table.split())


def test_a_store_that_was_not_read_is_never_taken_for_an_empty_one(cli: Cli, both: list[str], topic: str) -> None:
    commit(f"zookeeper://{both[1]}", topic, topic, {0: 4})
    alone = where(cli, topic, *both[:2])
    assert (alone["phase"], alone["lag"]) == ("unknown", None)
    assert alone["evidence"] == "1 offset in ZooKeeper; the settings do not name Kafka, so it was not checked"
    dead = ["--bootstrap-server", "127.0.0.1:1", "--timeout", "2000"]
    unread = cli("groups", "where", topic, *both[:2], *dead, "--format", "json", code=1)
    (row,) = json.loads(unread.stdout)
    assert (row["phase"], row["lag"], row["stores"]["kafka"]["offsets"]) == ("unknown", None, None)
    assert row["evidence"].startswith("offsets in Kafka cannot be read: ")
    assert "127.0.0.1:1" in unread.stderr


def test_members_in_kafka_show_where_a_group_commits(cli: Cli, both: list[str], topic: str, member: Consumer) -> None:
    assert member.assignment()
    commit(f"zookeeper://{both[1]}", topic, topic, {0: 4})
    row = where(cli, topic, *both)
    assert (row["phase"], row["confidence"]) == ("kafka", "inferred")
    assert row["evidence"] == (
        "Kafka has 1 member of the group, and members commit to their coordinator; ZooKeeper has none"
    )
    assert [m["client_id"] for m in row["stores"]["kafka"]["members"]] == ["living"]
    assert [(p["lag"], p["note"]) for p in row["partitions"]] == [(None, "nothing committed in Kafka")]


def test_an_unknown_group_and_an_empty_pattern_name_every_store(cli: Cli, both: list[str], topic: str) -> None:
    missing = cli("groups", "where", f"{topic}-none", *both, code=1)
    assert missing.stderr.startswith(f"error: group '{topic}-none': does not exist in zookeeper://{both[1]}?layout")
    pattern = cli("groups", "where", f"{topic}-none*", *both, code=1)
    assert f", kafka://{both[3]} matches this pattern" in pattern.stderr
    assert "no group is named" in cli("groups", "where", *both, code=2).stderr
