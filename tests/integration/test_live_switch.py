"""The live switch on real ZooKeeper and a real broker: all four changes, rejected switches, kills, frozen members."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from processes import wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from before_image_callback import BeforeImageCallback
from members import PythonMember

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer import ConsumerSettings, StreamMessage, ZookeeperConsumer
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import Conflict, GateRefused, GroupNotFound, SwitchInProgress, TimedOut
from offsetmgr.core.model import Absent, OffsetAndMetadata, TopicPartition
from offsetmgr.groups.edit_plan import GroupEditPlan
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.migration.live.live_migration import STEPS, LiveMigration, SwitchSides
from offsetmgr.migration.live.switch_evidence import SwitchEvidence
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.switched.nodes import SwitchStateStore
from offsetmgr.stores.switched.store import SwitchedStore
from offsetmgr.stores.uri import open_store
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Delete
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.tree import walk

pytestmark = pytest.mark.servers

ROUND = [CommitMode.DUAL, CommitMode.KAFKA, CommitMode.DUAL, CommitMode.ZOOKEEPER]
SESSION_MS = 2000
"""Session timeout of switches that are killed or frozen, so that members notice soon. Other sessions are longer."""


MESSAGES = 6000
"""More messages than a member can consume before it is frozen."""


class World:
    """The group of a test, both of its stores, and the members and switches that the test creates."""

    def __init__(self, kafka: KafkaBroker, group: str) -> None:
        self.broker, self.group = kafka, group
        self.zookeeper, self.kafka = ZookeeperStore(kafka.zookeeper), KafkaStore(kafka.bootstrap)
        self.cluster = KafkaCluster(kafka.bootstrap)
        self.recorded: list[dict[TopicPartition, int | None]] = []
        self._opened: list[Any] = [self.zookeeper, self.kafka, self.cluster]

    def uri(self, start: str = "zookeeper") -> str:
        first, second = self.broker.zookeeper.replace("/", "%2F"), self.broker.bootstrap
        return f"switched:?zookeeper=zookeeper%3A%2F%2F{first}&kafka=kafka%3A%2F%2F{second}&start={start}"

    def member(self, start: str = "zookeeper", timeout_ms: int = 30_000) -> SwitchedStore:
        store = open_store(self.uri(start), ConnectionConfig(timeout_ms=timeout_ms))
        assert isinstance(store, SwitchedStore)
        self._opened.append(store)
        return store

    def switch(self, **changes: Any) -> LiveMigration:
        session = ZookeeperSession(self.broker.zookeeper, session_timeout_ms=20_000)
        self._opened.append(session)

        def intended(plan: GroupEditPlan) -> None:
            self.recorded.append({c.partition: getattr(c.before, "offset", None) for c in plan.changes})

        translate = changes.pop("translate", None)
        arguments = {"who": "the test", "images_of": lambda *_: BeforeImageCallback(intended), **changes}
        sides = SwitchSides(self.zookeeper, self.kafka, self.cluster, translate)
        return LiveMigration(session, self.group, sides, **arguments)

    def switch_to(self, mode: CommitMode) -> SwitchEvidence:
        return self.switch().execute(mode, wait_s=90)

    def committed(self) -> dict[str, dict[int, int]]:
        """Offsets by partition in both stores."""
        return {
            name: {tp.partition: o.offset for tp, o in store.fetch(self.group).items() if not isinstance(o, Absent)}
            for name, store in (("zookeeper", self.zookeeper), ("kafka", self.kafka))
        }

    def storage(self) -> tuple[str, int, str | None]:
        """Mode, epoch, and the new mode of a switch in progress."""
        with ZookeeperSession(self.broker.zookeeper) as session:
            seen = SwitchStateStore(session, self.group).read()
        assert seen is not None
        switching_to = seen.storage.switching_to
        return seen.storage.mode.value, seen.storage.epoch, None if switching_to is None else switching_to.value

    def registered(self) -> dict[str, int]:
        """The znodes of members and owners, with the transaction that created each."""
        roots = (paths.ids(self.group), paths.owners(self.group))
        found = (one for root in roots for one in walk(self.zookeeper.session, root))
        return {one.path: one.node.czxid for one in found if one.node is not None}

    def close(self) -> None:
        for one in reversed(self._opened):
            one.close()


@pytest.fixture
def world(kafka: KafkaBroker, unique: str) -> Iterator[World]:
    world = World(kafka, unique)
    yield world
    world.close()


def at(topic: str, **offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, int(name[1:])): OffsetAndMetadata(value) for name, value in offsets.items()}


# --- the four changes --------------------------------------------------------------------------------


def test_members_commit_to_the_stores_of_the_mode_and_idle_partitions_are_copied(
    world: World, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group, 2)
    one, two = world.member(), world.member()
    one.commit(world.group, at(topic, p0=10, p1=100))
    two.follow(world.group)

    evidence = world.switch_to(CommitMode.DUAL)
    assert (evidence.old_mode, evidence.to, evidence.epoch) == (CommitMode.ZOOKEEPER, CommitMode.DUAL, 3)
    assert sorted(m.name for m in evidence.members) == sorted([one.member, two.member])
    assert evidence.unacknowledged == ()
    one.commit(world.group, at(topic, p0=20))
    assert world.committed() == {"zookeeper": {0: 20, 1: 100}, "kafka": {0: 20}}

    world.switch_to(CommitMode.KAFKA)
    assert world.committed()["kafka"] == {0: 20, 1: 100}  # copied, because no member commits partition 1
    two.commit(world.group, at(topic, p0=30))
    assert world.committed() == {"zookeeper": {0: 20, 1: 100}, "kafka": {0: 30, 1: 100}}

    world.switch_to(CommitMode.DUAL)
    one.commit(world.group, at(topic, p1=110))
    assert world.committed() == {"zookeeper": {0: 20, 1: 110}, "kafka": {0: 30, 1: 110}}

    world.switch_to(CommitMode.ZOOKEEPER)
    assert world.committed()["zookeeper"] == {0: 30, 1: 110}
    two.commit(world.group, at(topic, p0=40))
    assert world.committed() == {"zookeeper": {0: 40, 1: 110}, "kafka": {0: 30, 1: 110}}
    assert world.recorded == [{TopicPartition(topic, 1): None}, {TopicPartition(topic, 0): 20}]
    assert world.storage() == ("zookeeper", 9, None)
    assert {tp.partition: getattr(o, "offset", None) for tp, o in one.fetch(world.group).items()} == {0: 40, 1: 110}


def test_running_consumers_pass_all_modes_without_loss_or_repetition(
    world: World, kafka: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group, 4)  # two members; nothing is produced to partition 3 after the beginning
    producer, produced, stopped = Producer({"bootstrap.servers": kafka.bootstrap}), [0, 0, 0, 5], threading.Event()
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=3)

    def produce() -> None:
        while not stopped.wait(0.005):
            for partition in range(3):
                producer.produce(topic, b"%d" % produced[partition], partition=partition)
                produced[partition] += 1
            producer.poll(0)

    seen: list[StreamMessage] = []
    settings = ConsumerSettings(auto_offset_reset="smallest", auto_commit_interval_ms=50, release_delay_ms=0)

    def consumer(name: str) -> ZookeeperConsumer:
        return ZookeeperConsumer(
            zookeeper=kafka.zookeeper,
            bootstrap_servers=kafka.bootstrap,
            group=world.group,
            offsets="switched",
            consumer_id=name,
            settings=settings,
        )

    def read(stream: Any) -> None:
        for message in stream:
            seen.append(message)

    world.switch().declare(CommitMode.ZOOKEEPER)
    consumers, readers = [consumer("a"), consumer("b")], []
    try:
        for one in consumers:
            (stream,) = one.create_message_streams({topic: 1})[topic]
            readers.append(threading.Thread(target=read, args=(stream,)))
            readers[-1].start()
        wait_for(lambda: [len(one.owned) for one in consumers] == [2, 2], "each owns two")
        registered = world.registered()
        producing = threading.Thread(target=produce)
        producing.start()
        for mode in ROUND:
            count = len(seen)
            wait_for(lambda count=count: len(seen) > count + 100, "messages flow")  # type: ignore[misc]
            assert len(world.switch_to(mode).members) == 2
        stopped.set()
        producing.join()
        assert producer.flush(30) == 0
        wait_for(lambda: len(seen) >= sum(produced), "all messages")
        assert world.registered() == registered  # no member has released a partition or registered again
    finally:
        stopped.set()
        for one in consumers:
            one.shutdown()
        for reader in readers:
            reader.join()

    found = sorted((message.partition, message.offset) for message in seen)
    assert found == [(p, offset) for p in range(4) for offset in range(produced[p])]
    assert world.committed()["zookeeper"] == dict(enumerate(produced))


# --- rejected switches -------------------------------------------------------------------------------


def test_a_direct_change_is_rejected_and_changes_nothing(world: World, make_topic: Callable[..., str]) -> None:
    topic = make_topic(world.group)
    world.member().commit(world.group, at(topic, p0=1))

    with pytest.raises(GateRefused, match="zookeeper -> kafka: must go through mode dual"):
        world.switch_to(CommitMode.KAFKA)

    assert world.storage() == ("zookeeper", 1, None)


def test_a_group_without_a_declared_mode_is_rejected(world: World) -> None:
    store = open_store(world.uri().removesuffix("&start=zookeeper"))
    world._opened.append(store)

    with pytest.raises(GroupNotFound, match="its storage mode is not declared"):
        world.switch_to(CommitMode.DUAL)
    with pytest.raises(GroupNotFound, match="its storage mode is not declared"):
        store.fetch(world.group)
    world.switch().declare(CommitMode.KAFKA)
    assert dict(store.fetch(world.group)) == {}
    with pytest.raises(Conflict, match="the test has already declared mode kafka"):
        world.switch().declare(CommitMode.ZOOKEEPER)


def test_a_switch_is_rejected_if_a_registered_consumer_does_not_follow_the_mode(
    world: World, kafka: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group)
    world.member().commit(world.group, at(topic, p0=0))
    with ZookeeperConsumer(
        zookeeper=kafka.zookeeper, bootstrap_servers=kafka.bootstrap, group=world.group, consumer_id="old"
    ) as old:
        old.create_message_streams({topic: 1})

        with pytest.raises(GateRefused, match=f"{world.group}_old would keep committing to the old store"):
            world.switch_to(CommitMode.DUAL)

    assert world.storage() == ("zookeeper", 1, None)


def test_a_switch_is_rejected_if_the_group_has_a_member_in_kafka(
    world: World, kafka: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group)
    world.member().commit(world.group, at(topic, p0=0))
    native = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": world.group, "client.id": "native"})
    native.subscribe([topic])
    try:
        wait_for(lambda: native.poll(0.1) is None and native.assignment(), "it has joined")

        with pytest.raises(GateRefused, match=r"native.* \(in Kafka\) would keep committing"):
            world.switch_to(CommitMode.DUAL)
    finally:
        native.close()


def test_a_switch_is_rejected_if_the_unused_store_is_ahead(world: World, make_topic: Callable[..., str]) -> None:
    topic = make_topic(world.group)
    member = world.member()
    member.commit(world.group, at(topic, p0=10))
    world.kafka.commit(world.group, at(topic, p0=50))

    with pytest.raises(GateRefused, match=f"{topic}-0: 10 in use, 50 in the other store"):
        world.switch_to(CommitMode.DUAL)

    member.commit(world.group, at(topic, p0=11))
    assert world.committed() == {"zookeeper": {0: 11}, "kafka": {0: 50}}


def test_a_second_switch_at_the_same_time_is_rejected(world: World, make_topic: Callable[..., str]) -> None:
    topic = make_topic(world.group)
    world.member().commit(world.group, at(topic, p0=10))
    refused: list[str] = []

    def on_step(step: str) -> None:
        if step == "acknowledged":
            with pytest.raises(Conflict) as caught:
                world.switch_to(CommitMode.DUAL)
            refused.append(str(caught.value))

    world.switch(on_step=on_step, who="the first").execute(CommitMode.DUAL, wait_s=90)

    assert refused == [f"switch of group {world.group}: the first is switching it"]
    assert world.storage() == ("dual", 3, None)


# --- during a switch ---------------------------------------------------------------------------------


def test_commits_and_fetches_wait_during_a_switch_and_continue_in_the_new_mode(
    world: World, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group)
    patient, hasty = world.member(), world.member(timeout_ms=3000)
    patient.commit(world.group, at(topic, p0=1))
    hasty.follow(world.group)
    waited: list[Any] = []

    def commit() -> None:
        waited.append(patient.commit(world.group, at(topic, p0=2)))

    thread = threading.Thread(target=commit)

    def on_step(step: str) -> None:
        if step == "acknowledged":
            thread.start()
            with pytest.raises(SwitchInProgress, match="a switch to dual, by the test, has not ended within 3 s"):
                hasty.fetch(world.group)
            assert waited == []
            assert world.committed() == {"zookeeper": {0: 1}, "kafka": {}}

    world.switch(on_step=on_step).execute(CommitMode.DUAL, wait_s=90)
    thread.join(90)

    assert len(waited) == 1
    assert world.committed() == {"zookeeper": {0: 2}, "kafka": {0: 2}}


@pytest.mark.parametrize("step", ["begun", *STEPS[:2], "recorded", *STEPS[2:]])
def test_a_switch_killed_at_any_step_is_complete_or_undone_and_members_continue(
    step: str, world: World, kafka: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group, 2)
    member = world.member(start="dual")
    member.commit(world.group, at(topic, p0=10))
    world.zookeeper.commit(world.group, at(topic, p1=70))  # idle: to be copied
    arguments = {
        "zookeeper": kafka.zookeeper,
        "bootstrap": kafka.bootstrap,
        "group": world.group,
        "to": "kafka",
        "session_ms": SESSION_MS,
        "at": step,
        "signal": int(signal.SIGKILL),
    }

    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("switching_process.py")), json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split()[-1] == step
    happened = step in ("changed", "followed")
    # A member that has seen the switch waits until it notices the end. A member that has not seen it does not wait.
    member.commit(world.group, at(topic, p0=20))
    wait_for(lambda: world.storage()[2] is None, "the members have restored the old mode, or the switch had not begun")
    mode, epoch, _ = world.storage()
    assert mode == ("kafka" if happened else "dual")
    assert epoch == (1 if step == "begun" else 3)
    assert world.committed()["kafka"][0] == 20
    assert world.committed()["zookeeper"][0] == (10 if happened else 20)
    if not happened:
        world.switch_to(CommitMode.KAFKA)
    assert world.committed()["kafka"] == {0: 20, 1: 70}


def test_a_switch_frozen_beyond_its_session_changes_nothing_when_it_wakes(
    world: World, kafka: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(world.group)
    member = world.member()
    member.commit(world.group, at(topic, p0=10))
    arguments = {
        "zookeeper": kafka.zookeeper,
        "bootstrap": kafka.bootstrap,
        "group": world.group,
        "to": "dual",
        "session_ms": SESSION_MS,
        "at": "compared",
        "signal": int(signal.SIGSTOP),
    }
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("switching_process.py")), json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as frozen:
        try:
            wait_for(lambda: storage_is(world, "zookeeper", 3, None), "the members have restored the old mode")
            member.commit(world.group, at(topic, p0=20))
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        _, errors = frozen.communicate(timeout=120)

    assert frozen.returncode == 1
    assert "expired" in errors
    assert world.storage() == ("zookeeper", 3, None)
    assert world.committed() == {"zookeeper": {0: 20}, "kafka": {}}


def storage_is(world: World, *storage: Any) -> bool:
    with ZookeeperSession(world.broker.zookeeper) as session:
        if SwitchStateStore(session, world.group).read() is None:
            return False
    return world.storage() == storage


# --- frozen members ----------------------------------------------------------------------------------


def test_a_frozen_member_blocks_a_switch_until_it_expires_and_rewinds_nothing(
    world: World, kafka: KafkaBroker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(world.group)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(MESSAGES):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0
    world.switch().declare(CommitMode.ZOOKEEPER)

    def member(name: str) -> PythonMember:
        return PythonMember(
            tmp_path / name,
            zookeeper=kafka.zookeeper,
            bootstrap=kafka.bootstrap,
            group=world.group,
            topic=topic,
            offsets="switched",
            consumer_id=name,
            settings={"zookeeper_session_timeout_ms": 4000, "auto_commit_interval_ms": 50, "release_delay_ms": 0},
            think_ms=1,
        )

    frozen, other = member("a"), member("b")
    try:
        frozen.start()
        wait_for(lambda: len(frozen.messages()) > 200, "it consumes")
        frozen.freeze()

        with pytest.raises(TimedOut, match=r"no acknowledgement from .* within 0\.5 s; the old mode was restored"):
            world.switch().execute(CommitMode.DUAL, wait_s=0.5)
        assert world.storage() == ("zookeeper", 3, None)

        other.start()
        evidence = world.switch().execute(CommitMode.DUAL, wait_s=90)  # waits until the frozen member's session ends
        assert len(evidence.members) == 1
        wait_for(lambda: len(other.messages()) > 200, "the other one consumes")
        world.switch_to(CommitMode.KAFKA)
        before_thaw = world.committed()["zookeeper"]
        frozen.thaw()
        wait_for(lambda: len(frozen.messages()) + len(other.messages()) >= MESSAGES, "all is consumed")
        wait_for(lambda: world.committed()["kafka"][0] == MESSAGES, "and committed")
    finally:
        frozen.stop()
        other.stop()
    assert world.committed()["zookeeper"] == before_thaw  # the frozen member wrote nothing to it
    seen = {message.offset for one in (frozen, other) for message in one.messages()}
    assert seen == set(range(MESSAGES))
    assert world.storage() == ("kafka", 7, None)


# --- stopped switches, and a recreated node ----------------------------------------------------------


@pytest.mark.parametrize("when", ["before", *STEPS[:4]])
def test_a_switch_that_is_stopped_before_the_new_mode_applies_restores_the_old_mode(world: World, when: str) -> None:
    member, steps = world.member(), []
    member.commit(world.group, at("t", p0=5))
    switch = world.switch(on_step=steps.append)
    with pytest.raises(Conflict, match="was abandoned; the old mode applies"):
        switch.execute(CommitMode.DUAL, wait_s=90, stop=lambda: when == "before" or when in steps)

    assert world.storage()[::2] == ("zookeeper", None)
    member.commit(world.group, at("t", p0=6))
    assert world.committed() == {"zookeeper": {0: 6}, "kafka": {}}


def test_a_switch_that_is_stopped_after_the_new_mode_applies_is_complete(world: World) -> None:
    member, steps = world.member(), []
    member.commit(world.group, at("t", p0=5))
    world.switch(on_step=steps.append).execute(CommitMode.DUAL, wait_s=600, stop=lambda: "changed" in steps)

    assert world.storage()[::2] == ("dual", None)


def test_a_member_joins_again_if_the_groups_node_is_deleted_and_recreated(
    world: World, make_topic: Callable[..., str]
) -> None:
    # Given a member that has acknowledged version 0 of the node, which has version 0 again
    member, topic = world.member(), make_topic(world.group)
    member.commit(world.group, at(topic, p0=5))
    with ZookeeperSession(world.broker.zookeeper) as session:
        nodes = SwitchStateStore(session, world.group)
        (follower,) = nodes.followers()
        session.transaction([Delete(nodes.member_path(follower.name), -1), Delete(nodes.storage_path, -1)])
        world.switch().declare(CommitMode.ZOOKEEPER)
        with pytest.raises(Conflict, match="has already declared mode zookeeper"):
            world.switch().require_undeclared()
        seen = nodes.read()
        assert seen is not None and seen.version == 0
        # When it sees the new node, then it registers again, and a switch waits for it
        wait_for(lambda: [one.name for one in nodes.followers()] == [follower.name], "the member has joined again")
    assert [one.name for one in world.switch_to(CommitMode.DUAL).members] == [follower.name]
    member.commit(world.group, at(topic, p0=6))
    assert world.committed() == {"zookeeper": {0: 6}, "kafka": {0: 6}}
