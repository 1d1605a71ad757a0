"""The mirror on real servers: both directions, rejected groups, and groups that another client takes over."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import offsets_of
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from old_consumers import old_member
from processes import OFFSETMGR, fill, run_command, wait_for

from offsetmgr import ConnectionConfig, MigrationConfig, PlanOptions
from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.migration.mirror import Mirror, SilentSource
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers


@pytest.fixture
def zk(zookeeper, kafka) -> Iterator[OffsetStore]:
    with open_store(f"zookeeper://{zookeeper.connect}/kafka") as store:
        yield store


@pytest.fixture
def broker(kafka) -> Iterator[OffsetStore]:
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        yield store


@contextmanager
def running(mirror: Mirror, idle_s: float = 0.5) -> Iterator[Mirror]:
    """A mirror in a thread, stopped at the end."""
    stop = threading.Event()
    mirror.stop = stop.is_set
    mirror.idle_s = idle_s
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(mirror.run)
        try:
            yield mirror
        finally:
            stop.set()
        run.result(90)


def mirror_of(source: OffsetStore, target: OffsetStore, group: str, notifier: Any = None) -> Mirror:
    options = PlanOptions(groups=(group,))
    return Mirror(source, target, options, notifier or SilentSource(SystemClock()), SystemClock(), settle_s=0.3)


@contextmanager
def watching(
    source: OffsetStore, target: OffsetStore, group: str, config: ConnectionConfig | None = None
) -> Iterator[Mirror]:
    """A mirror that follows ZooKeeper through watches, and can read the old consumers' registry."""
    settings = config or ConnectionConfig()
    with MigrationConfig(both=settings).connections() as connections:
        sides = SourceAndTarget(connections, source.uri, target.uri, (settings, settings))
        with sides.changes(PlanOptions(groups=(group,))) as (notifier, legacy_groups):
            mirror = mirror_of(source, target, group, notifier)
            mirror.legacy_groups = legacy_groups
            yield mirror


def test_kafka_follows_zookeeper_through_watches(zk, broker, make_topic, unique):
    topic = make_topic(unique, 3)
    tps = [TopicPartition(topic, p) for p in range(3)]
    zk.commit(unique, {tps[0]: OffsetAndMetadata(5)})
    with watching(zk, broker, unique) as mirror, running(mirror):
        wait_for(lambda: offsets_of(broker, unique) == {0: 5}, "the first copy")
        zk.commit(unique, {tps[0]: OffsetAndMetadata(6), tps[2]: OffsetAndMetadata(1)})
        wait_for(lambda: offsets_of(broker, unique) == {0: 6, 2: 1}, "a change and a new partition")
        for n in range(7, 60):
            zk.commit(unique, {tps[0]: OffsetAndMetadata(n)})
        wait_for(lambda: offsets_of(broker, unique) == {0: 59, 2: 1}, "a burst of changes")


def test_zookeeper_follows_kafka_and_offsets_ahead_are_kept(zk, broker, make_topic, unique):
    topic = make_topic(unique, 2)
    tps = [TopicPartition(topic, p) for p in range(2)]
    broker.commit(unique, {tps[0]: OffsetAndMetadata(5), tps[1]: OffsetAndMetadata(5)})
    zk.commit(unique, {tps[1]: OffsetAndMetadata(9)})
    mirror = mirror_of(broker, zk, unique)
    with running(mirror):
        wait_for(lambda: offsets_of(zk, unique) == {0: 5, 1: 9}, "the first copy")
        broker.commit(unique, {tps[0]: OffsetAndMetadata(8)})
        wait_for(lambda: offsets_of(zk, unique) == {0: 8, 1: 9}, "a change")
        wait_for(lambda: mirror.groups[unique].state.value == "target-ahead", "partition 1 is named as ahead")


def test_a_group_with_consumers_in_kafka_is_rejected_with_its_members_named(kafka, zk, broker, make_topic, unique):
    topic = make_topic(unique, 1)
    zk.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(50)})
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique, "client.id": "reader"})
    joined(consumer, topic)
    try:
        mirror = mirror_of(zk, broker, unique)
        mirror.run(once=True)
    finally:
        consumer.close()
    assert mirror.groups[unique].state.value == "rejected"
    assert "reader" in mirror.groups[unique].detail
    assert offsets_of(broker, unique) == {}


def test_a_group_to_which_other_clients_commit_in_kafka_is_rejected(kafka, zk, broker, make_topic, unique):
    tp = TopicPartition(make_topic(unique, 1), 0)
    zk.commit(unique, {tp: OffsetAndMetadata(50)})
    broker.commit(unique, {tp: OffsetAndMetadata(1)})

    class BusyGroup(SilentSource):
        """During each wait, another client commits, as an old consumer with dual commit would."""

        def wait(self, timeout_s: float) -> set[str]:
            broker.commit(unique, {tp: OffsetAndMetadata(2)})
            return super().wait(timeout_s)

    mirror = mirror_of(zk, broker, unique, BusyGroup(SystemClock()))
    mirror.run(once=True)
    assert mirror.groups[unique].state.value == "rejected"
    assert "another client commits to this group" in mirror.groups[unique].detail
    assert offsets_of(broker, unique) == {0: 2}


def test_a_consumer_that_joins_takes_the_group_over_and_continues(kafka, zk, broker, make_topic, unique):
    tp = TopicPartition(topic := make_topic(unique, 1), 0)
    zk.commit(unique, {tp: OffsetAndMetadata(0)})
    with running(mirror_of(zk, broker, unique)) as mirror:
        wait_for(lambda: offsets_of(broker, unique) == {0: 0}, "the first copy")
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique})
        try:
            joined(consumer, topic)
            wait_for(lambda: mirror.groups[unique].lock is None, "the mirror has released the group")
            consumer.commit(offsets=[KafkaPartition(topic, 0, 3)], asynchronous=False)
            zk.commit(unique, {tp: OffsetAndMetadata(2)})
            rounds = mirror.rounds
            wait_for(lambda: mirror.rounds > rounds + 3, "a few more rounds")
            assert offsets_of(broker, unique) == {0: 3}
            assert mirror.groups[unique].state.value in ("taken", "rejected")
        finally:
            consumer.close()


# --- live old consumers ---------------------------------------------------------------------------


def old_consumer(directory, zookeeper, group: str, topic: str, *, dual: bool) -> OldConsumer:
    storage = "kafka" if dual else "zookeeper"
    where = f"{zookeeper.connect}/kafka"
    return old_member(directory, where, group, topic, offsets_storage=storage, dual_commit=dual)


def joined(consumer: Consumer, topic: str) -> None:
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "the consumer owns its partition")


def test_a_group_with_dual_commit_is_watched_and_continues_in_both_stores(
    kafka, zookeeper, zk, broker, make_topic, unique, tmp_path
):
    tp = TopicPartition(topic := make_topic(unique, 1), 0)
    fill(kafka.bootstrap, topic, 10)
    with old_consumer(tmp_path / "dual", zookeeper, unique, topic, dual=True) as old:
        wait_for(lambda: offsets_of(zk, unique) == offsets_of(broker, unique) == {0: 10}, "it commits to both")
        with watching(zk, broker, unique) as mirror, running(mirror):
            wait_for(lambda: mirror.rounds > 5, "a few rounds")
            state, detail = mirror.groups[unique].state.value, mirror.groups[unique].detail
            assert state == "watching"
            assert old.member_id in detail
            assert "whether they also commit to Kafka is unknown so far" in detail
            fill(kafka.bootstrap, topic, 5)
            wait_for(
                lambda: offsets_of(zk, unique) == offsets_of(broker, unique) == {0: 15},
                "it continues to commit to both",
            )
            wait_for(lambda: mirror.groups[unique].state.value == "rejected", "the mirror has seen it")
            assert str(tp) in mirror.groups[unique].detail
            fill(kafka.bootstrap, topic, 5)
            wait_for(lambda: offsets_of(zk, unique) == offsets_of(broker, unique) == {0: 20}, "both have its commits")


def test_a_group_bounced_from_zookeeper_to_dual_commit_is_followed_and_then_released(
    kafka, zookeeper, zk, broker, make_topic, unique, tmp_path
):
    topic = make_topic(unique, 1)
    fill(kafka.bootstrap, topic, 10)
    with ExitStack() as stack:
        with old_consumer(tmp_path / "alone", zookeeper, unique, topic, dual=False) as old:
            wait_for(lambda: offsets_of(zk, unique) == {0: 10}, "it commits to ZooKeeper")
            # The mirror starts only now, because the first commit would already show the commit mode.
            mirror = stack.enter_context(running(stack.enter_context(watching(zk, broker, unique))))
            wait_for(lambda: unique in mirror.groups, "the mirror knows the group")
            wait_for(lambda: mirror.groups[unique].state.value == "watching", "the mirror has seen the member")
            assert old.member_id in mirror.groups[unique].detail
            rounds = mirror.rounds
            wait_for(lambda: mirror.rounds > rounds + 2, "the mirror reads the offsets")
            assert offsets_of(broker, unique) == {}
            fill(kafka.bootstrap, topic, 5)
            wait_for(lambda: offsets_of(broker, unique) == {0: 15}, "it was seen to commit to ZooKeeper alone")
            # The offset is in Kafka a moment before the mirror has recorded the outcome of its commit.
            wait_for(lambda: mirror.groups[unique].state.value == "following", "the mirror follows the group")
        with old_consumer(tmp_path / "dual", zookeeper, unique, topic, dual=True):
            wait_for(lambda: mirror.groups[unique].lock is None, "the mirror has released the group")
            fill(kafka.bootstrap, topic, 5)
            wait_for(
                lambda: offsets_of(zk, unique) == offsets_of(broker, unique) == {0: 20},
                "it continues to commit to both",
            )
            wait_for(lambda: mirror.groups[unique].state.value == "rejected", "the mirror has seen it")


def test_once_ends_after_its_window_if_members_commit_nothing(
    kafka, zookeeper, zk, broker, make_topic, unique, tmp_path
):
    topic = make_topic(unique, 1)
    fill(kafka.bootstrap, topic, 3)
    command = [
        "migrate", "mirror", "--yes", "--from", f"zookeeper://{zookeeper.connect}/kafka",
        "--to", f"kafka://{kafka.bootstrap}", "--group", unique, "--once", "--settle", "100", "--format", "json",
    ]  # fmt: skip
    with old_consumer(tmp_path / "alone", zookeeper, unique, topic, dual=False) as old:
        wait_for(lambda: offsets_of(zk, unique) == {0: 3}, "it commits to ZooKeeper")
        watched = run_command(*command, "--window", "2", code=1)
        before_trust = offsets_of(broker, unique)
        run_command(*command, "--trust-zookeeper-only")
        member = old.member_id
    (row,) = json.loads(watched.stdout)
    assert (row["state"], row["lag"]) == ("watching", 3)
    assert member in row["detail"]
    assert before_trust == {}
    assert offsets_of(broker, unique) == {0: 3}


# --- offsets that vanish in the target ------------------------------------------------------------


def test_offsets_are_written_again_after_their_topic_was_recreated(kafka, zk, broker, make_topic, unique):
    topic = make_topic(unique, 1)
    zk.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(5)})
    with running(mirror_of(zk, broker, unique)) as mirror:
        wait_for(lambda: offsets_of(broker, unique) == {0: 5}, "the first copy")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_topics([topic])[topic].result(90)
        wait_for(lambda: mirror.groups[unique].state.value == "failing", "the loss is noticed")
        group = mirror.groups[unique]
        assert (offsets_of(broker, unique), group.lag) == ({}, 5)
        assert "does not exist on the broker" in group.detail
        make_topic(unique, 1)
        wait_for(lambda: offsets_of(broker, unique) == {0: 5}, "it is written again")
        wait_for(lambda: mirror.groups[unique].state.value == "following", "and follows")
        assert mirror.groups[unique].lag == 0


@pytest.mark.matrix
def test_offsets_of_a_locked_group_outlive_the_retention(zookeeper, make_topic, unique, tmp_path):
    short = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
    with (
        KafkaBroker(tmp_path / "kafka", zookeeper=f"{zookeeper.connect}/{unique}", config=short) as server,
        open_store(f"zookeeper://{zookeeper.connect}/{unique}") as source,
        open_store(f"kafka://{server.bootstrap}") as target,
    ):
        topic = make_topic(unique, 1, bootstrap=server.bootstrap)
        tp = TopicPartition(topic, 0)
        source.commit(unique, {tp: OffsetAndMetadata(5)})
        mirror = mirror_of(source, target, unique)
        mirror.refresh_s = 15
        with running(mirror):
            wait_for(lambda: offsets_of(target, unique) == {0: 5}, "the first copy")
            control = f"{unique}-control"
            target.commit(control, {tp: OffsetAndMetadata(5)})
            wait_for(lambda: offsets_of(target, control) == {}, "the offsets of an empty group expire", 300)
            assert offsets_of(target, unique) == {0: 5}
            assert mirror.groups[unique].copied == 1


# --- other mirrors and consumers ------------------------------------------------------------------


def test_the_later_of_two_mirrors_keeps_the_group(kafka, zk, broker, make_topic, unique):
    tp = TopicPartition(make_topic(unique, 1), 0)
    zk.commit(unique, {tp: OffsetAndMetadata(5)})
    with open_store(f"kafka://{kafka.bootstrap}") as other, running(mirror_of(zk, broker, unique)) as former:
        wait_for(lambda: offsets_of(broker, unique) == {0: 5}, "the first copy")
        with running(mirror_of(zk, other, unique)) as later:
            wait_for(lambda: former.groups[unique].state.value == "taken", "the former mirror releases the group")
            assert "another mirror took this group over" in former.groups[unique].detail
            wait_for(lambda: later.groups[unique].detail != "", "the later mirror reports it")
            assert later.groups[unique].detail == "taken over from another offsetmgr mirror"
            zk.commit(unique, {tp: OffsetAndMetadata(6)})
            wait_for(lambda: offsets_of(broker, unique) == {0: 6}, "the later mirror follows")
            rounds = former.rounds
            wait_for(lambda: former.rounds > rounds + 5, "more rounds of the former mirror")
            lock = later.groups[unique].lock
            assert lock is not None
            assert lock.lost is None
            assert former.groups[unique].state.value == "taken"


def test_the_lag_is_reported_if_a_consumer_takes_over_a_group_that_is_behind(kafka, zk, broker, make_topic, unique):
    tp = TopicPartition(topic := make_topic(unique, 1), 0)
    zk.commit(unique, {tp: OffsetAndMetadata(5)})
    mirror = mirror_of(zk, broker, unique)
    with running(mirror, idle_s=3600):
        wait_for(lambda: offsets_of(broker, unique) == {0: 5}, "the first copy")
        zk.commit(unique, {tp: OffsetAndMetadata(25)})
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique})
        try:
            joined(consumer, topic)
            wait_for(lambda: mirror.groups[unique].state.value == "taken", "the mirror has released the group")
        finally:
            consumer.close()
    group = mirror.groups[unique]
    assert (group.lag, group.succeeded) == (20, False)
    assert "20 offsets behind" in group.detail


# --- failures, and the end of a mirror ------------------------------------------------------------


def test_a_source_is_followed_again_after_it_did_not_respond_for_a_while(broker, kafka, make_topic, unique, tmp_path):
    tp = TopicPartition(make_topic(unique, 1), 0)
    impatient = ConnectionConfig(timeout_ms=1000)
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as server,
        open_store(f"zookeeper://{server.connect}", impatient) as source,
        watching(source, broker, unique, impatient) as mirror,
    ):
        mirror.legacy_groups = None
        source.commit(unique, {tp: OffsetAndMetadata(5)})
        with running(mirror):
            wait_for(lambda: offsets_of(broker, unique) == {0: 5}, "the first copy")
            server.freeze()
            try:
                wait_for(lambda: mirror.groups[unique].state.value == "failing", "it is seen to be away")
                assert mirror.groups[unique].lag is None
            finally:
                server.thaw()
            wait_for(lambda: mirror.groups[unique].state.value == "following", "it is back")
            source.commit(unique, {tp: OffsetAndMetadata(6)})
            wait_for(lambda: offsets_of(broker, unique) == {0: 6}, "and followed")


def command(zookeeper, kafka, group: str, *more: str) -> list[str]:
    from_, to = f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}"
    return ["migrate", "mirror", "--yes", "--from", from_, "--to", to, "--group", group, "--settle", "100", *more]


def test_an_idle_mirror_ends_at_once(zookeeper, kafka, zk, broker, make_topic, unique, tmp_path):
    """It does not wait for its next round, up to 10 s. The fastest of three attempts counts, without the time for which
    the process waits for a processor: other load on the machine only makes an end slower."""
    tp = TopicPartition(make_topic(unique, 1), 0)

    def seconds(first: int) -> float:
        """How long a mirror takes to end after it has copied two offsets, beginning with ``first``."""
        zk.commit(unique, {tp: OffsetAndMetadata(first)})
        with (tmp_path / "log").open("w") as log:
            mirror = subprocess.Popen([*OFFSETMGR, *command(zookeeper, kafka, unique)], stdout=log, stderr=log)
            try:
                wait_for(lambda: offsets_of(broker, unique) == {0: first}, "the first copy")
                zk.commit(unique, {tp: OffsetAndMetadata(first + 1)})
                wait_for(lambda: offsets_of(broker, unique) == {0: first + 1}, "a change")
                began, waited = time.monotonic(), processor_wait_s(mirror.pid)
                mirror.send_signal(signal.SIGTERM)
                os.waitid(os.P_PID, mirror.pid, os.WEXITED | os.WNOWAIT)  # schedstat exists until the wait below
                took = time.monotonic() - began - (processor_wait_s(mirror.pid) - waited)
                assert mirror.wait(90) == 0, (tmp_path / "log").read_text()
                return took
            finally:
                if mirror.poll() is None:
                    mirror.kill()
                    mirror.wait()

    assert any(seconds(first) < 5 for first in (5, 7, 9))


def processor_wait_s(pid: int) -> float:
    """Seconds for which a process's first thread has waited for a processor (Linux only; 0 elsewhere)."""
    schedstat = Path(f"/proc/{pid}/schedstat")
    return int(schedstat.read_text(encoding="ascii").split()[1]) / 1e9 if schedstat.exists() else 0.0
