"""Python members and real old consumers in one group: through all changes each partition has one owner, no message is
lost, and none is consumed twice except after the last commit of a member that was killed or whose session expired.
"""

import contextlib
import itertools
import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import confluent_kafka as ck
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from members import AnyMember, PythonMember
from old_group_nodes import members, owners
from ownership_checker import CheckResult, Delivery, check_history
from processes import wait_for
from repeated import repeated
from zookeeper_history import group_history

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, java_tool
from offsetmgr.sandbox.legacy_consumer import OldConsumer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.assignors import ASSIGNORS

SESSION_MS: Final = 4000
OWNED_WITHIN_S: Final = 100.0
_CHROOT: Final = "/kafka"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class SharedGroup:
    """One group on the topics that match ``NAME-.*``, to which a producer sends messages continuously."""

    def __init__(
        self, directory: Path, zookeeper: ZooKeeperServer, brokers: list[KafkaBroker], name: str, strategy: str
    ) -> None:
        self.directory = directory
        self.name = name
        self.strategy = strategy
        self.members: list[AnyMember] = []
        self.former_members: list[AnyMember] = []
        self.ids: dict[AnyMember, str] = {}
        self.took: list[tuple[str, float]] = []
        """Each event, and the seconds from the last session's end (or from the event) until every partition had an
        owner."""
        self._outages: list[tuple[int, int]] = []
        """Outages of ZooKeeper beyond the session timeout: from one session timeout after the stop to the start
        (ms)."""
        self._zookeeper = zookeeper
        self._brokers = brokers
        self._bootstrap = ",".join(broker.bootstrap for broker in brokers)
        self._connect = f"{zookeeper.connect}{_CHROOT}"
        self._session = ZookeeperSession(self._connect)
        self._partitions: dict[str, int] = {}
        self._started = 0

    # --- topics and messages ------------------------------------------------------------------------

    def create_topic(self, suffix: str, partitions: int) -> None:
        topic = f"{self.name}-{suffix}"
        new_topic = NewTopic(topic, num_partitions=partitions, replication_factor=len(self._brokers))
        self._call_controller(lambda admin: admin.create_topics([new_topic], operation_timeout=20)[topic].result(90))
        self._partitions = {**self._partitions, topic: partitions}

    def grow(self, suffix: str) -> None:
        topic = f"{self.name}-{suffix}"
        more = self._partitions[topic] + 2
        more_partitions = NewPartitions(topic, more)
        self._call_controller(
            lambda admin: admin.create_partitions([more_partitions], operation_timeout=20)[topic].result(90)
        )
        self._partitions = {**self._partitions, topic: more}

    def _call_controller(self, call: Callable[[AdminClient], object]) -> None:
        """Sends a request to the controller, and retries while there is none because a broker has just left.

        Each try uses a new client, because librdkafka keeps sending requests to the first controller.
        """

        def succeeded() -> bool:
            try:
                call(AdminClient({"bootstrap.servers": self._bootstrap}))
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].name() != "NOT_CONTROLLER":
                    raise
                return False
            return True

        wait_for(succeeded, "a controller")

    @contextmanager
    def traffic(self, per_second: int = 200) -> Iterator[None]:
        """Sends messages to all partitions in turn until the end of the block."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "acks": "all", "enable.idempotence": True})
        numbers = itertools.count()

        def produce() -> None:
            places = [(topic, p) for topic, count in self._partitions.items() for p in range(count)]
            for number in itertools.islice(numbers, per_second // 10):
                topic, partition = places[number % len(places)]
                with contextlib.suppress(KafkaException):  # a new partition that is not in its metadata yet
                    producer.produce(topic, b"%d" % number, partition=partition)
            producer.poll(0)
            time.sleep(0.1)

        with repeated(produce):
            yield
        assert producer.flush(60) == 0

    # --- members ------------------------------------------------------------------------------------

    def python(self) -> PythonMember:
        return PythonMember(
            self._next_directory(),
            zookeeper=self._connect,
            bootstrap=self._bootstrap,
            group=self.name,
            topic=f"white_list:{self.name}-.*",
            strategy=self.strategy,
            settings={"zookeeper_session_timeout_ms": SESSION_MS},
        )

    def java(self) -> OldConsumer:
        return OldConsumer(
            self._next_directory(),
            zookeeper=self._connect,
            group=self.name,
            topic=f"white_list:{self.name}-.*",
            extra={
                "zookeeper.session.timeout.ms": SESSION_MS,
                "partition.assignment.strategy": self.strategy,
                "rebalance.backoff.ms": 300,
                "rebalance.max.retries": 50,
            },
        )

    def _next_directory(self) -> Path:
        self._started += 1
        return self.directory / f"member{self._started}"

    def start(self, *members: AnyMember) -> None:
        with ThreadPoolExecutor(len(members)) as pool:
            for member in pool.map(lambda one: one.start(), members):
                self.members.append(member)
                self.ids[member] = member.member_id

    # --- events -------------------------------------------------------------------------------------

    def event(self, description: str, act: Callable[[], object]) -> None:
        """Makes a change. Soon after it, the owners of all partitions must equal the assignment."""
        began = _now_ms()
        act()
        self._wait_until_owned(description, began, _now_ms())

    def _wait_until_owned(self, description: str, began: int, done: int) -> None:
        """Waits until every partition has its owner, at most `OWNED_WITHIN_S` from ``done``, or from the last session
        end after ``began`` if that is later (both in ms since 1970)."""
        wait_for(self.is_balanced, f"{self.strategy}: all owned after: {description}")
        now = _now_ms()
        history = group_history(self._zookeeper.directory / "data", _CHROOT, self.name)
        last_end = max((when for when, _ in history.session_ends.values() if when >= began), default=done)
        took = (now - max(last_end, done)) / 1000
        self.took.append((description, took))
        assert took <= OWNED_WITHIN_S, f"{description}: {took:.1f} s until all partitions were owned"

    def is_balanced(self) -> bool:
        """Whether exactly the expected members are registered, and the owners of all partitions equal the
        assignment."""
        try:
            registered, owned = members(self._session, self.name), owners(self._session, self.name)
            partitions = {topic: range(self._partition_count(topic)) for topic in self._partitions}
        except OffsetMgrError:
            return False
        if registered != sorted(self.ids[member] for member in self.members):
            return False
        if {topic: len(numbers) for topic, numbers in partitions.items()} != self._partitions:
            return False
        streams = {member: dict.fromkeys(partitions, 1) for member in registered}
        assigned = ASSIGNORS[self.strategy](streams, partitions)
        return owned == {tp: str(thread) for tp, thread in assigned.items()}

    def _partition_count(self, topic: str) -> int:
        node = self._session.get(f"/brokers/topics/{topic}")
        return 0 if node is None else len(json.loads(node.data)["partitions"])

    def leave(self, member: AnyMember) -> None:
        member.stop()
        self._remove(member)

    def kill(self, member: AnyMember) -> None:
        member.kill()
        self._remove(member)

    def expire(self, member: AnyMember) -> None:
        """Freezes a member until its session has expired, then resumes it. The member must register again."""
        before = self._registered(member)
        began = _now_ms()
        member.freeze()
        try:
            wait_for(lambda: self._registered(member) is None, "the session's end")
            self._remove(member)
            self._wait_until_owned("a frozen member's session has ended", began, began)
        finally:
            member.thaw()
        wait_for(lambda: self._registered(member) not in (None, before), "a new registration")
        self.former_members.remove(member)
        self.members.append(member)

    def restart_zookeeper(self, down_s: float) -> None:
        self._zookeeper.stop()
        stopped = _now_ms()
        threading.Event().wait(down_s)  # the outage
        began = _now_ms()
        self._zookeeper.start()
        self._outages.append((stopped + SESSION_MS, began))

    def _registered(self, member: AnyMember) -> int | None:
        node = self._session.get(f"/consumers/{self.name}/ids/{self.ids[member]}")
        return None if node is None else node.czxid

    def _remove(self, member: AnyMember) -> None:
        self.members.remove(member)
        self.former_members.append(member)

    def verified_by_kafka(self) -> bool:
        """Whether kafka.tools.VerifyConsumerRebalance reports success. Repeats if ownership changed meanwhile."""
        arguments = ["--zookeeper.connect", self._connect, "--group", self.name]
        while True:
            wait_for(self.is_balanced, "all owned")
            done = self._changes()
            output = java_tool("kafka-0.10.2", "kafka.tools.VerifyConsumerRebalance", arguments).stdout
            if self.is_balanced() and self._changes() == done:
                return "successful" in output

    def _changes(self) -> int:
        return len(group_history(self._zookeeper.directory / "data", _CHROOT, self.name).owner_nodes)

    # --- the end ------------------------------------------------------------------------------------

    def deliveries(self) -> list[Delivery]:
        return [
            Delivery(
                self.ids[member],
                isinstance(member, OldConsumer),
                TopicPartition(m.topic, m.partition),
                m.offset,
                m.time_ms,
            )
            for member in (*self.members, *self.former_members)
            if member in self.ids
            for m in member.messages()
        ]

    def ends(self) -> Mapping[TopicPartition, int]:
        consumer = ck.Consumer({"bootstrap.servers": self._bootstrap, "group.id": "ends"})
        try:
            return {
                TopicPartition(topic, p): consumer.get_watermark_offsets(ck.TopicPartition(topic, p), timeout=60)[1]
                for topic, count in self._partitions.items()
                for p in range(count)
            }
        finally:
            consumer.close()

    def check(self) -> CheckResult:
        """Waits until every message is consumed, stops all members, and checks the group's history."""
        ends = self.ends()

        def all_consumed() -> bool:
            return len({(one.partition, one.offset) for one in self.deliveries()}) >= sum(ends.values())

        with contextlib.suppress(AssertionError):  # the check reports the lost messages
            wait_for(all_consumed, "everything consumed")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda one: one.stop(), self.members))
        deliveries = self.deliveries()
        result = check_history(group_history(self._zookeeper.directory / "data", _CHROOT, self.name), deliveries, ends)
        for begin, end in self._outages:
            late = [one for one in deliveries if begin < one.time_ms < end]
            result.excused["message of an old consumer without ZooKeeper"] += sum(one.old for one in late)
            result.findings += [f"delivered without ZooKeeper: {one}" for one in late if not one.old]
        return result

    def close(self) -> None:
        for member in (*self.members, *self.former_members):
            member.kill()
        self._session.close()


def events_of(
    group: SharedGroup, brokers: list[KafkaBroker], dice: random.Random, count: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """This number of changes, each kind in turn, on random members of the kind that has more members."""
    kinds = ["kill", "expire", "grow", "new topic", "broker leaves", "broker comes", "leave", "join"]
    kinds += ["ZooKeeper restarts", "ZooKeeper is away"]
    new_topics = 0
    for number in range(count):
        kind = kinds[number % len(kinds)]
        pythons = [member for member in group.members if isinstance(member, PythonMember)]
        others = [member for member in group.members if isinstance(member, OldConsumer)]
        more: Sequence[AnyMember] = pythons if (len(pythons), dice.random()) > (len(others), 0.5) else others
        chosen = dice.choice(more)
        label = re.sub("Member|Consumer", "", type(chosen).__name__).lower()
        match kind:
            case "kill":
                yield f"a {label} member is killed", partial(group.kill, chosen)
            case "leave":
                yield f"a {label} member leaves", partial(group.leave, chosen)
            case "expire":
                yield f"a {label} member is frozen past its session", partial(group.expire, chosen)
            case "grow":
                yield "a topic grows", lambda: group.grow("small")
            case "new topic":
                new_topics += 1
                yield "a new topic matches", partial(group.create_topic, f"new{new_topics}", 2)
            case "broker leaves":
                yield "a broker leaves", brokers[-1].stop
            case "broker comes":
                yield "a broker comes", brokers[-1].start
            case "ZooKeeper restarts":
                yield "ZooKeeper is restarted", lambda: group.restart_zookeeper(0)
            case "ZooKeeper is away":
                yield (
                    "ZooKeeper is away for more than a session",
                    lambda: group.restart_zookeeper(SESSION_MS / 1000 + 3),
                )
            case "join":
                yield "a Python member and an old one join", partial(group.start, group.python(), group.java())


SOAK = "OFFSETMGR_SOAK" in os.environ
EVENTS = 50 if SOAK else 6
SEED = int(os.environ.get("OFFSETMGR_SEED", "20161017"))

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(1800 if SOAK else 900)]

SETTINGS = {
    "offsets.topic.replication.factor": 1,
    "controlled.shutdown.enable": "true",
    "zookeeper.session.timeout.ms": 3000,
    "min.insync.replicas": 1,
}


@pytest.fixture(scope="module")
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(own_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaBroker]]:
    directory = tmp_path_factory.mktemp("brokers")
    connect = f"{own_zookeeper.connect}/kafka"
    started = [KafkaBroker(directory / str(n), zookeeper=connect, broker_id=n, config=SETTINGS) for n in range(2)]
    try:
        for broker in started:
            broker.start()
        yield started
    finally:
        for broker in started:
            broker.stop()


@pytest.mark.parametrize("strategy", ["range", "roundrobin"] if SOAK else ["range"])
def test_members_of_both_kinds_share_a_group_through_all_changes(strategy, own_zookeeper, brokers, tmp_path) -> None:
    dice = random.Random(f"{SEED}-{strategy}")
    group = SharedGroup(tmp_path, own_zookeeper, brokers, f"shared-{strategy}", strategy)
    try:
        group.create_topic("small", 8)
        group.create_topic("large", 50)
        with group.traffic():
            each = 3 if SOAK else 2
            first = [make() for make in (group.python, group.java) for _ in range(each)]
            group.event(f"{each} Python members and {each} old ones start", lambda: group.start(*first))
            assert group.verified_by_kafka()
            for number, (description, act) in enumerate(events_of(group, brokers, dice, EVENTS)):
                group.event(description, act)
                if SOAK or number == EVENTS - 1:
                    assert group.verified_by_kafka(), description
        result = group.check()
    finally:
        group.close()

    sys.stdout.write(f"\nseed {SEED}, {strategy}: {result.messages} messages, {result.owner_nodes} owner nodes, ")
    sys.stdout.write(f"{len(group.took)} events, slowest {max(took for _, took in group.took):.1f} s; ")
    sys.stdout.write(f"duplicated or late with a reason: {dict(result.excused)}\n")
    assert result.findings == []
    assert result.messages > 1000
