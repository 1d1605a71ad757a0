"""Dual commit for every client: a Python and a Java client commit through a listener in front of Kafka and ZooKeeper
while either store fails. Afterwards both stores hold the offsets that were acknowledged last."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import confluent_kafka as ck
import pytest
from backend_listeners import ManagerListener, StoreListener
from processes import Commands, create_topic, wait_for
from same_cluster import join_cluster

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KraftBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.java import QUICK_START, java_command
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.uri import open_store
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers

COMMITS = 10_000 if os.environ.get("OFFSETMGR_SOAK") else 1_000
PHASES = 7
PARTITIONS = 4
PATIENT = ConnectionConfig(timeout_ms=20_000)
AS_SERVED = ConnectionConfig(timeout_ms=5_000)
"""The configuration with which ``manager serve`` opens a store."""


class Committer:
    """A client that commits until ``stop_requested`` is set. ``acknowledged``: partitions and offsets, in order."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.acknowledged: list[tuple[int, int]] = []
        self.stop_requested = threading.Event()

    def count(self) -> int:
        return len(self.acknowledged)

    def last(self) -> dict[int, int]:
        return dict(self.acknowledged)


class PythonCommitter(Committer):
    def run(self, bootstrap: str, topic: str) -> None:
        consumer = ck.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": self.group, "socket.timeout.ms": 4000, "log_level": 0}
        )
        number = 0
        while not self.stop_requested.is_set():
            number += 1
            partition, offset = number % PARTITIONS, number // 2 if number % 37 == 0 else number
            while not self._committed(consumer, ck.TopicPartition(topic, partition, offset)):
                pass
            self.acknowledged.append((partition, offset))
        consumer.close()

    def _committed(self, consumer: ck.Consumer, offset: ck.TopicPartition) -> bool:
        try:
            (done,) = consumer.commit(offsets=[offset], asynchronous=False)
        except ck.KafkaException:
            return False
        return done.error is None


class JavaCommitter(Committer):
    def run(self, bootstrap: str, topic: str, directory: Path) -> None:
        stop = directory / "enough"
        program = Path(__file__).with_name("OffsetCommitter.java")
        command = java_command(
            [jars.resolve("kafka-4.4"), jars.resolve("janino")],
            "org.codehaus.janino.SimpleCompiler",
            [str(program), "OffsetCommitter", bootstrap, self.group, topic, str(PARTITIONS), str(stop)],
            jvm=("-Xmx128m", *QUICK_START),
        )
        with (
            (directory / "errors.txt").open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    partition, offset = line.split("\t")
                    self.acknowledged.append((int(partition), int(offset)))
                    if self.stop_requested.is_set():
                        stop.touch()
            finally:
                process.kill()


@contextmanager
def running(committer: Committer, work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work, name=committer.group)
    thread.start()
    try:
        yield
    finally:
        committer.stop_requested.set()
        thread.join(60)
        assert not thread.is_alive()


def dual_uri(kafka: str, zookeeper: str) -> str:
    first, second = f"kafka://{kafka}", f"zookeeper://{zookeeper}"
    return f"dual:?primary={quote(first, safe='')}&secondary={quote(second, safe='')}"


def offsets_of(store: KafkaStore | ZookeeperStore, group: str, topic: str) -> dict[int, int]:
    (found,) = store.scan([group])
    assert (found.error, dict(found.errors)) == (None, {})
    assert {tp.topic for tp in found.offsets} <= {topic}
    return {tp.partition: committed.offset for tp, committed in found.offsets.items()}


@pytest.mark.matrix
def test_both_stores_hold_the_last_acknowledged_offsets_after_failures(tmp_path: Path) -> None:
    python, java = PythonCommitter("python-app"), JavaCommitter("java-app")
    committers = (python, java)

    def wait_for_commits(more: int) -> None:
        """Waits until each client has this many more acknowledged commits."""
        expected = [committer.count() + more for committer in committers]
        wait_for(lambda: all(c.count() >= w for c, w in zip(committers, expected, strict=True)), f"{more} commits")

    share = COMMITS // PHASES // len(committers) + 1
    with ZooKeeperServer(tmp_path / "zk") as zookeeper, KraftBroker(tmp_path / "kafka") as kafka:
        join_cluster(zookeeper.connect, kafka.bootstrap)
        topic = create_topic(kafka.bootstrap, "orders", PARTITIONS)
        fill(kafka.bootstrap, topic, 20 * COMMITS)  # clients also commit while the test waits for servers
        store = open_store(dual_uri(kafka.bootstrap, zookeeper.connect), AS_SERVED)
        (tmp_path / "java").mkdir()
        with StoreListener(store, cluster=kafka.bootstrap) as listener:
            with (
                running(python, lambda: python.run(listener.bootstrap, topic)),
                running(java, lambda: java.run(listener.bootstrap, topic, tmp_path / "java")),
            ):
                wait_for_commits(share)

                zookeeper.stop()
                wait_for_commits(share)  # with Kafka alone: commits succeed although ZooKeeper fails
                assert listener.backend.metrics()["secondary_pending"] > 0

                kafka.kill()
                kafka.start()
                wait_for_commits(share)  # with Kafka alone, after both stores were down

                zookeeper.start()
                wait_for_commits(share)
                wait_for(lambda: listener.backend.metrics()["secondary_failing"] == 0, "ZooKeeper accepts writes")
                wait_for_commits(share)

                zookeeper.kill()
                wait_for_commits(share)
                zookeeper.start()

                kafka.stop()
                kafka.start()
                wait_for_commits(share)
            pending = ("secondary_pending", "primary_in_doubt")
            wait_for(
                lambda: not any(listener.backend.metrics()[name] for name in pending), "ZooKeeper has every offset"
            )
            assert listener.backend.metrics()["secondary_dropped_total"] == 0
        with KafkaStore(kafka.bootstrap, PATIENT) as first, ZookeeperStore(zookeeper.connect, config=PATIENT) as second:
            for committer in committers:
                assert offsets_of(first, committer.group, topic) == committer.last()
                assert offsets_of(second, committer.group, topic) == committer.last()
        assert sum(committer.count() for committer in committers) >= COMMITS

        commands = Commands(tmp_path)
        sides = ("--from", f"zookeeper://{zookeeper.connect}", "--to", f"kafka://{kafka.bootstrap}")
        groups = ("--group", python.group, "--group", java.group)
        planned = commands.run("migrate", "plan", *sides, *groups, "-o", "plan.json", "--format", "json")
        assert {row["action"] for row in json.loads(planned.stdout)} == {"skip-equal"}
        commands.run("migrate", "apply", "plan.json", "--yes")
        verified = json.loads(commands.run("migrate", "verify", "plan.json", "--format", "json").stdout)
        assert [(row["status"], row["evidence"]) for row in verified] == [("equal", "seen")] * 2 * PARTITIONS


def test_a_modern_consumers_commit_is_in_the_znode_that_old_consumers_read(kafka, zookeeper, make_topic, unique):
    topic = make_topic(unique, 2)
    store = ZookeeperStore(f"{zookeeper.connect}/kafka", config=AS_SERVED)
    with StoreListener(store, cluster=kafka.bootstrap) as listener:
        consumer = ck.Consumer({"bootstrap.servers": listener.bootstrap, "group.id": unique})
        consumer.commit(offsets=[ck.TopicPartition(topic, 1, 42, "dropped")], asynchronous=False)
        node = store.session.get(f"/consumers/{unique}/offsets/{topic}/1")
        with ZookeeperStore(f"{zookeeper.connect}/kafka", config=PATIENT) as old_store:
            old_store.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(7)})
        found = consumer.committed([ck.TopicPartition(topic, 0), ck.TopicPartition(topic, 1)], timeout=60)
        consumer.close()
    assert node is not None and node.data == b"42"
    assert [tp.offset for tp in found] == [7, 42]


def test_consumers_that_subscribe_use_dual_commit_through_the_relay(kafka, zookeeper, make_topic, unique):
    """The real coordinator manages the group, so it receives the commits with their generation. ZooKeeper receives the
    same commits. A commit of a client that is not a member reaches neither store."""
    topic = make_topic(unique, 2)
    fill(kafka.bootstrap, topic, 20, partitions=2)
    uri = dual_uri(kafka.bootstrap, f"{zookeeper.connect}/kafka")
    with ManagerListener(kafka.bootstrap, "unused", relay=True, store=uri) as listener:

        def consumer() -> ck.Consumer:
            own = {"bootstrap.servers": listener.bootstrap, "group.id": unique, "enable.auto.commit": False}
            new = ck.Consumer({**own, "auto.offset.reset": "earliest"})
            new.subscribe([topic])
            return new

        def owns(partitions: int, *members: ck.Consumer) -> bool:
            for member in members:
                member.poll(0.1)
            return all(len(member.assignment()) == partitions for member in members)

        first = consumer()
        wait_for(lambda: owns(2, first), "the assignment")
        first.commit(offsets=[ck.TopicPartition(topic, p, 5) for p in (0, 1)], asynchronous=False)
        second = consumer()
        wait_for(lambda: owns(1, first, second), "the second member's assignment")
        second.commit(offsets=[ck.TopicPartition(topic, second.assignment()[0].partition, 9)], asynchronous=False)
        moved = second.assignment()[0].partition
        stale = ck.Consumer({"bootstrap.servers": listener.bootstrap, "group.id": unique})
        with pytest.raises(ck.KafkaException) as refused:
            stale.commit(offsets=[ck.TopicPartition(topic, 1 - moved, 1)], asynchronous=False)
        for member in (stale, second, first):
            member.close()
    assert refused.value.args[0].code() == ck.KafkaError.UNKNOWN_MEMBER_ID
    with (
        KafkaStore(kafka.bootstrap, PATIENT) as native,
        ZookeeperStore(f"{zookeeper.connect}/kafka", config=PATIENT) as nodes,
    ):
        assert offsets_of(native, unique, topic) == {moved: 9, 1 - moved: 5}
        assert offsets_of(nodes, unique, topic) == {moved: 9, 1 - moved: 5}


def fill(bootstrap: str, topic: str, records: int, partitions: int = PARTITIONS) -> None:
    """Writes this many records to each partition: a committed offset is valid only up to the log's end."""
    producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(records * partitions):
        producer.produce(topic, b"x", partition=number % partitions)
        if number % 10_000 == 0:
            producer.flush(30)
    assert producer.flush(60) == 0
