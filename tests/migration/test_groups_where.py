"""``groups where`` finds groups in all configured stores, on real ZooKeeper, real Kafka and real consumers."""

import json
import re
import shlex
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from backend_listeners import ManagerListener, StoreListener
from committed_offsets import commit
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from everyday import Cli
from old_consumers import old_member
from repeated import repeated

from offsetmgr import OffsetAdmin, OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


@pytest.fixture
def both(kafka: KafkaBroker, zookeeper: ZooKeeperServer) -> list[str]:
    """The options that name both stores of one cluster."""
    return ["--zookeeper", f"{zookeeper.connect}/kafka", "--bootstrap-server", kafka.bootstrap]


def where(cli: Cli, *arguments: str, code: int = 0) -> dict[str, Any]:
    (row,) = cli.rows("groups", "where", *arguments, code=code)
    return row


DIFFERENT = (
    "ZooKeeper and Kafka hold different offsets on {} of 2 partitions, and nothing shows which was written last: "
)


@pytest.mark.parametrize(
    ("in_zookeeper", "in_kafka", "phase", "lag", "evidence"),
    [
        ({0: 4, 1: 5}, {}, "zookeeper", 21, "2 offsets in ZooKeeper and none in Kafka"),
        ({}, {0: 4, 1: 5}, "kafka", 21, "2 offsets in Kafka and none in ZooKeeper"),
        ({0: 4, 1: 5}, {0: 4, 1: 5}, "unknown", 21, "ZooKeeper and Kafka hold equal offsets on 2 partitions"),
        ({0: 4}, {0: 4, 1: 5}, "kafka", 21, "Kafka was written last on 1 of 2 partitions: "),
        ({0: 9, 1: 5}, {0: 4, 1: 5}, "unknown", None, DIFFERENT.format(1)),
        ({0: 4, 1: 5}, {0: 4, 1: 15}, "unknown", None, DIFFERENT.format(1)),
        ({0: 9, 1: 5}, {0: 4, 1: 15}, "unknown", None, DIFFERENT.format(2)),
    ],
)
def test_the_phase_is_inferred_from_the_offsets_of_both_stores(
    cli, both, topic, in_zookeeper, in_kafka, phase, lag, evidence
):
    if in_kafka:
        commit(f"kafka://{both[3]}", topic, topic, in_kafka)
    if in_zookeeper:  # soon after Kafka, so that the times of the commits do not decide
        commit(f"zookeeper://{both[1]}", topic, topic, in_zookeeper)
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
    with OffsetAdmin(f"zookeeper://{both[1]}", bootstrap_server=both[3]) as admin:
        (found,) = admin.where(topic)
        assert (found.phase.value, found.lag) == (phase, lag)
        assert found.why.startswith(evidence)
        with pytest.raises(GroupNotFound, match="does not exist"):
            list(admin.where(f"{topic}-none"))


def test_deleted_records_that_the_group_had_not_consumed_are_noted(cli: Cli, both: list[str], topic: str) -> None:
    """The lag is 0, although the group has lost 6 records."""
    lost = Position(topic, 0, 10)
    admin = AdminClient({"bootstrap.servers": both[3]})
    admin.delete_records([lost])[lost].result(90)
    commit(f"zookeeper://{both[1]}", topic, topic, {0: 4, 1: 5})
    commit(f"kafka://{both[3]}", topic, topic, {0: 4, 1: 5})
    row = where(cli, topic, *both)
    assert [(p["lag"], p["note"]) for p in row["partitions"]] == [(0, "below the log's start"), (15, None)]
    table = " ".join(cli("groups", "where", topic, *both).stdout.split())
    assert "the lag lacks the deleted records of 1 partition (see --partitions)" in table


def test_a_store_that_was_not_read_never_counts_as_empty(cli: Cli, both: list[str], topic: str) -> None:
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
    assert (row["phase"], row["confidence"]) == ("kafka", "seen")
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


@pytest.mark.parametrize(("storage", "dual", "phase"), [("zookeeper", False, "zookeeper"), ("kafka", True, "dual")])
def test_a_window_shows_where_old_consumers_commit(cli, kafka, both, topic, tmp_path, storage, dual, phase):
    options = {"offsets_storage": storage, "dual_commit": dual, "extra": {"auto.offset.reset": "smallest"}}
    consumer = old_member(tmp_path / "old", both[1], topic, topic, **options)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    consumer.start()
    try:

        def produce() -> None:
            producer.produce(topic, b"x", partition=0)
            producer.flush(10)
            time.sleep(0.1)

        with repeated(produce):
            row = where(cli, topic, "--window", "60", *both)
        assert (row["phase"], row["confidence"]) == (phase, "seen")
        (member,) = row["stores"]["zookeeper"]["members"]
        assert member["member_id"].startswith(f"{topic}_")
        command = shlex.split(row["next"]["command"])
        assert command[1:3] == (["migrate", "plan"] if phase == "zookeeper" else ["runbook", "write"])
    finally:
        consumer.stop()
    if phase == "zookeeper":
        cli(*(f"{tmp_path}/{word}" if word.endswith(".json") else word for word in command[1:]))


def test_a_finalized_migration_is_evidence_that_a_group_has_moved(cli, both, topic, tmp_path):
    source, target, plan = f"zookeeper://{both[1]}", f"kafka://{both[3]}", str(tmp_path / "plan")
    commit(source, topic, topic, {0: 4, 1: 5})
    cli("migrate", "plan", "--from", source, "--to", target, "--group", topic, "-o", plan)
    cli("migrate", "apply", plan, "--yes")
    assert where(cli, topic, "--plan", plan, *both)["phase"] == "unknown"
    cli("migrate", "finalize", plan, "--yes", "--window", "1", "--accept-idle")
    row = where(cli, topic, "--plan", plan, *both)
    assert (row["phase"], row["confidence"], row["lag"]) == ("moved", "seen", 21)
    assert row["next"]["command"].startswith(f"offsetmgr migrate apply {plan} --refresh")  # no consumer has committed
    report = cli("migrate", "report", plan, code=1).stdout  # the plan names the stores
    assert len(set(re.findall(r": cluster (\S+)\n", report))) == 1
    assert re.search(r"expiry \d{4}-\d\d-\d\d \d\d:\d\d UTC", " ".join(report.split()))
    named = f"--zookeeper {both[1]} --bootstrap-server {both[3]}"
    assert f"  next: offsetmgr migrate apply {plan} --refresh {named}\n" in report
    commit(target, topic, topic, {0: 5})
    row = where(cli, topic, "--plan", plan, *both)
    assert row["next"]["command"].startswith(f"offsetmgr migrate finalize {plan} {topic} --delete-source")
    commit(source, topic, topic, {0: 6})
    row = where(cli, topic, "--plan", plan, *both)
    assert (row["phase"], row["lag"]) == ("unknown", None)
    assert "ZooKeeper is ahead of Kafka on" in row["evidence"]


@pytest.fixture
def manager(kafka: KafkaBroker) -> Iterator[ManagerListener]:
    with ManagerListener(kafka.bootstrap, f"offsets-{uuid.uuid4().hex[:8]}") as listener:
        yield listener


def test_a_group_of_an_offset_manager_is_found(cli: Cli, both: list[str], topic: str, manager: ManagerListener) -> None:
    commit(f"zookeeper://{both[1]}", topic, topic, {0: 4})
    commit(f"manager://{manager.bootstrap}", topic, topic, {0: 6})
    row = where(cli, topic, *both, "--store", f"manager://{manager.bootstrap}")
    assert (row["phase"], row["lag"]) == ("unknown", None)  # the manager does not date its commits for clients
    assert row["partitions"][0]["offsets"] == {"zookeeper": 4, "kafka": None, "manager": 6}
    assert row["partitions"][0]["note"].endswith("6 from ZooKeeper, 4 from the offset manager")
    lag = ("offsets", "lag", "--group", topic, *both, "--store", f"manager://{manager.bootstrap}")
    assert [(r["lag"], r["note"]) for r in cli.rows(*lag)] == [(None, "maybe older than ZooKeeper's 4")]


def test_a_manager_that_does_not_respond_hides_no_log_end(cli: Cli, both: list[str], topic: str) -> None:
    commit(f"kafka://{both[3]}", topic, topic, {0: 4})
    row = where(cli, topic, *both, "--store", "manager://127.0.0.1:1", code=1)
    assert (row["phase"], row["lag"]) == ("unknown", None)
    (partition,) = row["partitions"]
    assert (partition["log_end_offset"], partition["note"]) == (10, "the offset in the offset manager cannot be read")


def test_a_manager_in_front_of_kafka_is_not_another_store(cli: Cli, both: list[str], topic: str) -> None:
    commit(f"kafka://{both[3]}", topic, topic, {0: 6})
    with KafkaStore(both[3]) as store, StoreListener(store) as listener:
        row = where(cli, topic, *both, "--store", f"manager://{listener.bootstrap}")
    assert (row["phase"], list(row["stores"])) == ("kafka", ["zookeeper", "kafka"])


def test_hundreds_of_groups_are_located_at_once(cli: Cli, both: list[str], topic: str) -> None:
    for uri, numbers in ((f"zookeeper://{both[1]}", range(200)), (f"kafka://{both[3]}", range(100, 300))):
        with open_store(uri) as store:
            change = {TopicPartition(topic, 0): Change(OffsetAndMetadata(4))}
            assert not any(r.failures for r in store.edit(GroupEdit(f"{topic}-{n:03}", change) for n in numbers))
    done = cli("groups", "where", f"{topic}-*", *both, "--format", "json")
    phases = Counter(row["phase"] for row in json.loads(done.stdout))
    assert phases == {"zookeeper": 100, "unknown": 100, "kafka": 100}
