"""`ConsumerMember` on a real ZooKeeper, with somebody small who consumes: what it owns, what it consumes and what
ZooKeeper has agree again after requests without an answer, lost connections, and nodes that were changed by hand."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from stalling_proxy import StallingProxy

from offsetmgr.core.errors import CorruptData, OffsetMgrError, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.client.transactions import Create, Delete, OperationState, SetData, TransactionOperation
from offsetmgr.zookeeper.groups import consumer_member
from offsetmgr.zookeeper.groups.assignors import ThreadId, assignor_named
from offsetmgr.zookeeper.groups.consumer_member import ConsumerMember, MemberSettings
from offsetmgr.zookeeper.groups.ownership import owners
from offsetmgr.zookeeper.groups.partition_claims import ClaimResult, PartitionClaims
from offsetmgr.zookeeper.groups.registration import ensure_nodes
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes import paths

pytestmark = pytest.mark.servers

TIMING = MemberSettings(session_timeout_ms=4000, backoff_ms=200, max_retries=1)
PATIENT = MemberSettings(session_timeout_ms=20_000, backoff_ms=60_000)
"""Whoever waits for a pause of this one has not been woken."""
BROKER = (
    b'{"version":4,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1","listener_security_protocol_map":'
    b'{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"]}'
)
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'


class Consuming:
    """What is consumed; ``deaf``: why the next `stop` fails."""

    def __init__(self) -> None:
        self.active: set[int] = set()
        self.stopped: list[set[int]] = []
        self.deaf: OffsetMgrError | None = None
        self.error: OffsetMgrError | None = None

    def on_joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        self.active = set()

    def on_assigned(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        self.active |= {tp.partition for tp in claimed}
        return ()

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.stopped.append({tp.partition for tp in partitions})
        deaf, self.deaf = self.deaf, None
        if deaf is not None:
            raise deaf
        self.active -= {tp.partition for tp in partitions}

    def on_lost(self, partitions: Collection[TopicPartition] | None) -> None:
        self.active -= self.active if partitions is None else {tp.partition for tp in partitions}

    def on_failed(self, error: OffsetMgrError) -> None:
        self.error = error


class Planted(PartitionClaims):
    """Whose next claims (so many) are carried out without an answer, and whose releases get none and do nothing while
    ``no_release`` is set; ``asked`` counts the rebalances."""

    asked = 0
    lost_answers = 0
    no_release = threading.Event()

    def claim(self, wanted: Mapping[TopicPartition, ThreadId]) -> ClaimResult:
        claimed = super().claim(wanted)
        Planted.asked += 1
        return claimed

    def _send(self, operations: list[TransactionOperation]) -> None:
        super()._send(operations)
        if Planted.lost_answers and any(isinstance(operation, Create) for operation in operations):
            Planted.lost_answers -= 1
            raise TimedOut("ZooKeeper", "planted: no answer")

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        if Planted.no_release.is_set():
            raise TimedOut("ZooKeeper", "planted: no answer")
        super().release(partitions)


class Join(Protocol):
    def __call__(
        self, name: str, timing: MemberSettings = TIMING, connect: str | None = None
    ) -> tuple[ConsumerMember, Consuming]: ...


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer, unique: str) -> str:
    """The connect string of a ZooKeeper in which nothing has ever been."""
    with ZookeeperSession(zookeeper.connect) as session:
        assert session.transaction([Create(f"/{unique}")]).state is OperationState.COMMITTED
    return f"{zookeeper.connect}/{unique}"


@pytest.fixture
def hand(chroot: str) -> Iterator[ZookeeperSession]:
    """Whoever changes nodes by hand, in there."""
    with ZookeeperSession(chroot) as session:
        yield session


@pytest.fixture
def cluster(hand: ZookeeperSession) -> None:
    """One broker, and a topic ``t`` of four partitions."""
    bring_a_broker(hand)


def bring_a_broker(hand: ZookeeperSession) -> None:
    ensure_nodes(hand, [paths.BROKERS, paths.BROKER_IDS, paths.BROKER_TOPICS])
    nodes = [Create(paths.topic("t"), TOPIC), Create(f"{paths.BROKER_IDS}/0", BROKER)]
    assert hand.transaction(nodes).state is OperationState.COMMITTED


@pytest.fixture
def join(chroot: str) -> Iterator[Join]:
    """Members of ``g`` that join, and leave at the test's end."""
    made: list[ConsumerMember] = []

    def make(
        name: str, timing: MemberSettings = TIMING, connect: str | None = None
    ) -> tuple[ConsumerMember, Consuming]:
        listener = Consuming()
        topics, ranges = Subscription.static({"t": 1}), assignor_named("range")
        made.append(ConsumerMember(connect or chroot, "g", f"g_{name}", topics, ranges, listener, settings=timing))
        made[-1].start(30)
        return made[-1], listener

    yield make
    Planted.no_release.clear()
    for member in made:
        member.leave()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> type[Planted]:
    monkeypatch.setattr(consumer_member, "PartitionClaims", Planted)
    Planted.lost_answers = 0
    return Planted


def wait_for(condition: Callable[[], object], what: str, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)  # between looks, never instead of one


def owned(member: ConsumerMember) -> set[int]:
    return {tp.partition for tp in member.owned}


def in_zookeeper(hand: ZookeeperSession) -> dict[int, str | None]:
    return {tp.partition: owner.member_id for tp, owner in owners(hand, "g").items()}


def test_a_member_that_comes_before_the_first_broker_consumes_when_there_is_one(
    join: Join, hand: ZookeeperSession
) -> None:
    member, listener = join("a", PATIENT)
    assert owned(member) == set()

    bring_a_broker(hand)

    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")


@pytest.mark.usefixtures("cluster")
def test_an_owner_node_deleted_after_the_connection_was_lost_is_claimed_again(
    join: Join, hand: ZookeeperSession, zookeeper: ZooKeeperServer, unique: str, planted: type[Planted]
) -> None:
    proxy = StallingProxy(zookeeper.connect)
    try:
        _, listener = join("a", PATIENT, f"{proxy.address}/{unique}")
        node = hand.get(paths.owner("g", "t", 1))
        assert node is not None
        before = planted.asked
        proxy.stall()
        proxy.resume()  # which drops the connection
        wait_for(lambda: planted.asked > before, "the rebalance that follows")

        assert hand.transaction([Delete(paths.owner("g", "t", 1), 0)]).state is OperationState.COMMITTED

        wait_for(lambda: in_zookeeper(hand) == dict.fromkeys(range(4), "g_a"), "claimed again")
        again = hand.get(paths.owner("g", "t", 1))
        assert again is not None
        assert (again.ephemeral_owner, again.czxid > node.czxid) == (node.ephemeral_owner, True)
        wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")
    finally:
        proxy.close()


@pytest.mark.usefixtures("cluster")
def test_a_claim_without_an_answer_is_released_when_the_share_has_changed_meanwhile(
    join: Join, hand: ZookeeperSession, planted: type[Planted]
) -> None:
    planted.lost_answers = 1
    slow = MemberSettings(session_timeout_ms=4000, backoff_ms=1000)
    late: list[tuple[ConsumerMember, Consuming]] = []
    joining = threading.Thread(target=lambda: late.append(join("z", slow)))
    joining.start()
    wait_for(lambda: len(in_zookeeper(hand)) == 4, "z's claims, of which it has not heard")

    _, listener = join("a")
    joining.join(30)

    wait_for(lambda: in_zookeeper(hand) == {0: "g_a", 1: "g_a", 2: "g_z", 3: "g_z"}, "each has its share")
    wait_for(lambda: (listener.active, late[0][1].active) == ({0, 1}, {2, 3}), "and consumes it")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("what", ["release", "stop"])
def test_partitions_that_come_back_before_they_could_be_released_are_consumed_again(
    what: str, join: Join, hand: ZookeeperSession, planted: type[Planted]
) -> None:
    member, listener = join("a")
    planted.no_release.set()
    listener.deaf = TimedOut("the broker", "planted: no answer") if what == "stop" else None
    other, _ = join("b")
    wait_for(lambda: {2, 3} in listener.stopped and listener.active == {0, 1}, "a has stopped two of them")

    other.leave()
    planted.no_release.clear()

    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all are consumed again")
    assert owned(member) == {0, 1, 2, 3}
    assert in_zookeeper(hand) == dict.fromkeys(range(4), "g_a")


@pytest.mark.usefixtures("cluster")
def test_an_owner_node_that_was_written_by_hand_is_set_right(join: Join, hand: ZookeeperSession) -> None:
    member, listener = join("a")
    assert hand.transaction([SetData(paths.owner("g", "t", 0), b"nobody_x-0", 0)]).state is OperationState.COMMITTED

    wait_for(lambda: in_zookeeper(hand) == dict.fromkeys(range(4), "g_a"), "claimed again")
    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")
    assert owned(member) == {0, 1, 2, 3}


@pytest.mark.usefixtures("cluster")
def test_an_owner_node_that_was_written_by_hand_can_be_released(join: Join, hand: ZookeeperSession) -> None:
    member, _ = join("a")
    mine = b"g_a-0"
    assert hand.transaction([SetData(paths.owner("g", "t", 3), mine, 0)]).state is OperationState.COMMITTED

    join("b")

    wait_for(lambda: in_zookeeper(hand) == {0: "g_a", 1: "g_a", 2: "g_b", 3: "g_b"}, "each has its share")
    assert owned(member) == {0, 1}


# --- registrations that cannot be understood --------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_a_member_goes_on_with_what_it_owns_while_a_registration_cannot_be_understood(
    join: Join, hand: ZookeeperSession
) -> None:
    member, listener = join("a")
    junk = paths.member("g", "g_junk")
    assert hand.transaction([Create(junk, b"{")]).state is OperationState.COMMITTED
    wait_for(lambda: isinstance(member.unreadable_group_error, CorruptData), "it has met the junk")

    # What it does not own any more it does not consume, in such a time either.
    theirs: list[TransactionOperation]
    theirs = [Delete(paths.owner("g", "t", 2), 0), Create(paths.owner("g", "t", 2), b"g_x-0")]
    assert hand.transaction(theirs).state is OperationState.COMMITTED
    wait_for(lambda: listener.active == {0, 1, 3}, "it consumes what it owns")
    assert (owned(member), listener.error) == ({0, 1, 3}, None)

    assert hand.transaction([Delete(junk, 0), Delete(paths.owner("g", "t", 2), 0)]).state is OperationState.COMMITTED
    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all is as before")
    assert member.unreadable_group_error is None


@pytest.mark.usefixtures("cluster")
def test_one_that_joins_with_a_registration_that_cannot_be_understood_is_reported_so(
    join: Join, hand: ZookeeperSession
) -> None:
    ensure_nodes(hand, [paths.CONSUMERS, paths.group("g"), paths.ids("g")])
    assert hand.transaction([Create(paths.member("g", "g_junk"), b"{")]).state is OperationState.COMMITTED

    with pytest.raises(CorruptData, match="g_junk"):
        join("a")

    assert hand.children(paths.ids("g")) == ["g_junk"]
