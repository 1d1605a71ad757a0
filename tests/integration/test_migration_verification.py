"""Plan, apply, verify, finalize and rollback after commits by other clients, or with an incomplete journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from conftest import MakeTopic
from processes import Commands, wait_for

from offsetmgr.core.model import Committed, GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers
PARTITIONS = 4


@dataclass
class World:
    """ZooKeeper and Kafka of one cluster, and a topic whose partitions hold 1,000 records each."""

    zookeeper: str
    kafka: str
    bootstrap: str
    topic: str
    commands: Commands

    def commit(self, uri: str, group: str, offsets: dict[int, int]) -> None:
        with open_store(uri) as store:
            store.commit(group, {TopicPartition(self.topic, p): OffsetAndMetadata(n) for p, n in offsets.items()})

    def committed(self, group: str) -> dict[int, int]:
        with open_store(self.kafka) as store:
            found = store.fetch(group)
        return {tp.partition: one.offset for tp, one in found.items() if isinstance(one, Committed)}

    def plan(self, *options: str, code: int = 0) -> str:
        sides = ("--from", self.zookeeper, "--to", self.kafka)
        done = self.commands.run("migrate", "plan", *sides, "-o", "p.json", *options, code=code)
        return done.stdout + done.stderr

    def run(self, *arguments: str, code: int = 0) -> str:
        done = self.commands.run("migrate", *arguments, code=code)
        return done.stdout + done.stderr


@pytest.fixture
def world(zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> World:
    make_topic(unique, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number in range(1000 * PARTITIONS):
        producer.produce(unique, "record", partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    uris = f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}"
    return World(*uris, kafka.bootstrap, unique, Commands(tmp_path))


def test_an_offset_that_was_kept_ahead_verifies_and_can_be_finalized(world: World, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 100, 1: 7})
    world.commit(world.kafka, unique, {0: 500})
    assert "keep-newer" in world.plan("--group", unique, "--if-ahead", "keep")
    world.run("apply", "p.json", "--yes")
    output = world.run("verify", "p.json")
    assert "kept-ahead" in output
    assert "difference" not in output
    assert "finalized: 2 partitions verified" in world.run(
        "finalize", "p.json", "--yes", "--window", "1", "--accept-idle"
    )


def test_an_offset_that_was_kept_ahead_and_fell_back_is_a_difference(world: World, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 100})
    world.commit(world.kafka, unique, {0: 500})
    world.plan("--group", unique, "--if-ahead", "keep")
    world.run("apply", "p.json", "--yes")
    with open_store(world.kafka) as store:
        store.commit(unique, {TopicPartition(world.topic, 0): OffsetAndMetadata(300)}, allow_rewind=True)
    assert "behind   <-- difference" in world.run("verify", "p.json", code=1)


class OpenTransaction:
    """A producer that has committed offset 50 of partition 0 for ``group`` in a transaction that is still open."""

    def __init__(self, world: World, group: str) -> None:
        settings = {"bootstrap.servers": world.bootstrap, "log_level": 0}
        self.producer = Producer({**settings, "transactional.id": f"{group}-transaction"})
        self.producer.init_transactions(30)
        self.producer.begin_transaction()
        consumer = Consumer({**settings, "group.id": group})
        partitions = [KafkaPartition(world.topic, 0, 50)]
        self.producer.send_offsets_to_transaction(partitions, consumer.consumer_group_metadata(), 30)
        consumer.close()


def test_a_plan_refuses_offsets_of_an_open_transaction_in_a_new_group(world: World, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 3, 1: 4})
    pending = OpenTransaction(world, unique)
    output = world.plan("--group", unique)
    assert "refuse-unreadable" in output
    assert world.run("apply", "p.json", "--yes", code=1)
    pending.producer.commit_transaction(30)
    wait_for(lambda: world.committed(unique) == {0: 50, 1: 4}, "the coordinator has the transaction's offset")


@pytest.mark.parametrize("command", ["apply", "import"])
def test_a_write_refuses_offsets_of_a_transaction_opened_after_the_plan(
    world: World, unique: str, command: str
) -> None:
    world.commit(world.zookeeper, unique, {0: 3, 1: 4})
    world.plan("--group", unique)
    world.commands.run("offsets", "export", "--store", world.zookeeper, "--group", unique, "s.avro")
    pending = OpenTransaction(world, unique)
    if command == "apply":
        output = world.run("apply", "p.json", "--yes", code=1)
    else:
        into = ("offsets", "import", "s.avro", "--store", world.kafka, "--execute", "--yes")
        output = world.commands.run(*into, code=1).stderr
    assert "transaction" in output.lower()
    pending.producer.commit_transaction(30)
    expected = {0: 50, 1: 4} if command == "apply" else {0: 50}
    wait_for(lambda: world.committed(unique) == expected, "the coordinator has the transaction's offset")


@contextmanager
def member_of(world: World, group: str) -> Iterator[None]:
    """Runs a consumer that commits nothing as the only member of the group."""
    settings = {"bootstrap.servers": world.bootstrap, "group.id": group, "log_level": 0, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.subscribe([world.topic])
    with KafkaCluster(world.bootstrap) as cluster:

        def joined() -> bool:
            consumer.poll(0.1)
            found = cluster.describe_groups([group])[group]
            return isinstance(found, GroupDescription) and found.state == "STABLE"

        wait_for(joined, f"a member joins {group}")
    try:
        yield
    finally:
        consumer.close()


@pytest.mark.parametrize("cut", ["at the end of a record", "inside a record"])
def test_a_rollback_with_a_truncated_journal_compares_the_rest_and_fails(world: World, unique: str, cut: str) -> None:
    groups = [f"{unique}-{n:02}" for n in range(30)]
    for group in groups:
        world.commit(world.zookeeper, group, {0: 10, 1: 20})
    world.plan("--group", f"{unique}-*")
    world.run("apply", "p.json", "--yes")
    journal = world.commands.directory / "p.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[: len(lines) // 3])
    journal.write_bytes(kept if cut == "at the end of a record" else kept[:-7])

    output = world.run("rollback", "p.json", "--yes", code=1)

    left = [group for group in groups if world.committed(group)]
    assert 0 < len(left) < 30
    assert f"the journal records {30 - len(left)} of the plan's 30 groups as started\n" in output
    assert f"{2 * len(left)} offsets differ from their before-images" in output
    assert f"{left[0]} {world.topic}-0: holds 10, and held no offset before the plan was applied" in output
    assert "every offset is as it was before" not in output
    again = world.run("rollback", "p.json", "--yes", code=1)
    assert "an earlier run rolled back every group in the journal; nothing was done" in again
    assert f"{2 * len(left)} offsets differ from their before-images" in again


def test_a_rollback_with_an_empty_journal_compares_all_offsets(world: World, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 10, 1: 20})
    world.plan("--group", unique)
    world.run("apply", "p.json", "--yes")
    journal = world.commands.directory / "p.journal"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    output = world.run("rollback", "p.json", "--yes", code=1)
    assert f"{unique} {world.topic}-0: holds 10, and held no offset before the plan was applied" in output
    assert "2 offsets differ from their before-images" in output


def test_a_rollback_compares_groups_whose_write_failed_according_to_the_journal(world: World, unique: str) -> None:
    """The first run of apply was refused, the second one wrote, and its records are missing in the journal."""
    world.commit(world.zookeeper, unique, {0: 10, 1: 20})
    world.commit(world.zookeeper, f"{unique}-other", {0: 10})
    world.plan("--group", f"{unique}*")
    with member_of(world, unique):
        world.run("apply", "p.json", "--yes", code=1)
    journal = world.commands.directory / "p.journal"
    first_run = journal.read_bytes()
    world.run("apply", "p.json", "--yes")
    journal.write_bytes(first_run)
    output = world.run("rollback", "p.json", "--yes", code=1)
    assert f"{unique} {world.topic}-0: holds 10, and held no offset before the plan was applied" in output


def test_a_rollback_of_an_apply_that_was_stopped_early_finds_the_rest_unchanged(world: World, unique: str) -> None:
    groups = [f"{unique}-{n:02}" for n in range(30)]
    for group in groups:
        world.commit(world.zookeeper, group, {0: 10, 1: 20})
    world.plan("--group", f"{unique}-*")
    world.run("apply", "p.json", "--yes")
    journal = world.commands.directory / "p.journal"
    whole = journal.read_bytes()
    world.run("rollback", "p.json", "--yes")
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 3]))
    assert "every offset is as it was before" in world.run("rollback", "p.json", "--yes", "--force")
