"""`ConsumerMember` on a real ZooKeeper: owned partitions, consumed partitions and owner nodes agree again after lost
responses, lost connections and manual changes of nodes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from processes import wait_for

sys.path.insert(0, str(Path(__file__).parents[1]))

from stalling_proxy import StallingProxy

from offsetmgr.core.errors import CorruptData, OffsetMgrError, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.conditional_writes import ensure_nodes
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.client.transactions import Create, Delete, OperationState, SetData, TransactionOperation
from offsetmgr.zookeeper.groups import consumer_member
from offsetmgr.zookeeper.groups.assignors import ThreadId, assignor_named
from offsetmgr.zookeeper.groups.consumer_member import ConsumerMember, MemberSettings
from offsetmgr.zookeeper.groups.ownership import owners
from offsetmgr.zookeeper.groups.partition_claims import ClaimResult, PartitionClaims
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes import paths

pytestmark = pytest.mark.servers

TIMING = MemberSettings(session_timeout_ms=4000, backoff_ms=200, max_retries=1)
LONG_BACKOFF = MemberSettings(session_timeout_ms=20_000, backoff_ms=60_000)
"""The back-off outlasts a test, so only a watch can start a rebalance."""
BROKER = (
    b'{"version":4,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1","listener_security_protocol_map":'
    b'{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"]}'
)
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'


class RecordingListener:
    """Records the consumed partitions. If ``stop_error`` is set, the next `on_revoked` raises it."""

    def __init__(self) -> None:
        self.active: set[int] = set()
        self.stopped: list[set[int]] = []
        self.stop_error: OffsetMgrError | None = None
        self.error: OffsetMgrError | None = None

    def on_joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        self.active = set()

    def on_assigned(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        self.active |= {tp.partition for tp in claimed}
        return ()

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.stopped.append({tp.partition for tp in partitions})
        error, self.stop_error = self.stop_error, None
        if error is not None:
            raise error
        self.active -= {tp.partition for tp in partitions}

    def on_lost(self, partitions: Collection[TopicPartition] | None) -> None:
        self.active -= self.active if partitions is None else {tp.partition for tp in partitions}

    def on_failed(self, error: OffsetMgrError) -> None:
        self.error = error


class FaultyClaims(PartitionClaims):
    """Claims with injected faults. The next ``lost_responses`` claims take effect but time out. While ``no_release`` is
    set, releases have no effect and time out. ``rebalances`` counts the claims."""

    rebalances = 0
    lost_responses = 0
    no_release = threading.Event()

    def claim(self, partitions: Mapping[TopicPartition, ThreadId]) -> ClaimResult:
        claimed = super().claim(partitions)
        FaultyClaims.rebalances += 1
        return claimed

    def _send(self, operations: list[TransactionOperation]) -> None:
        super()._send(operations)
        if FaultyClaims.lost_responses and any(isinstance(operation, Create) for operation in operations):
            FaultyClaims.lost_responses -= 1
            raise TimedOut("ZooKeeper", "injected: no response")

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        if FaultyClaims.no_release.is_set():
            raise TimedOut("ZooKeeper", "injected: no response")
        super().release(partitions)


class Join(Protocol):
    def __call__(
        self, name: str, timing: MemberSettings = TIMING, connect: str | None = None
    ) -> tuple[ConsumerMember, RecordingListener]: ...


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer, unique: str) -> str:
    """The connect string of an empty chroot."""
    with ZookeeperSession(zookeeper.connect) as session:
        assert session.transaction([Create(f"/{unique}")]).state is OperationState.COMMITTED
    return f"{zookeeper.connect}/{unique}"


@pytest.fixture
def session(chroot: str) -> Iterator[ZookeeperSession]:
    """A session in the chroot, with which a test changes nodes directly."""
    with ZookeeperSession(chroot) as session:
        yield session


@pytest.fixture
def cluster(session: ZookeeperSession) -> None:
    """One broker, and a topic ``t`` of four partitions."""
    register_broker(session)


def register_broker(session: ZookeeperSession) -> None:
    ensure_nodes(session, [paths.BROKERS, paths.BROKER_IDS, paths.BROKER_TOPICS])
    nodes = [Create(paths.topic("t"), TOPIC), Create(f"{paths.BROKER_IDS}/0", BROKER)]
    assert session.transaction(nodes).state is OperationState.COMMITTED


@pytest.fixture
def join(chroot: str) -> Iterator[Join]:
    """Creates members of ``g``. They leave at the test's end."""
    members: list[ConsumerMember] = []

    def make(
        name: str, timing: MemberSettings = TIMING, connect: str | None = None
    ) -> tuple[ConsumerMember, RecordingListener]:
        listener = RecordingListener()
        topics, ranges = Subscription.static({"t": 1}), assignor_named("range")
        members.append(ConsumerMember(connect or chroot, "g", f"g_{name}", topics, ranges, listener, settings=timing))
        members[-1].start(30)
        return members[-1], listener

    yield make
    FaultyClaims.no_release.clear()
    for member in members:
        member.leave()


@pytest.fixture
def faulty_claims(monkeypatch: pytest.MonkeyPatch) -> type[FaultyClaims]:
    monkeypatch.setattr(consumer_member, "PartitionClaims", FaultyClaims)
    FaultyClaims.lost_responses = 0
    return FaultyClaims


def owned(member: ConsumerMember) -> set[int]:
    return {tp.partition for tp in member.owned}


def owners_in_zookeeper(session: ZookeeperSession) -> dict[int, str | None]:
    return {tp.partition: owner.member_id for tp, owner in owners(session, "g").items()}


def test_a_member_that_joins_before_the_first_broker_consumes_once_it_registers(
    join: Join, session: ZookeeperSession
) -> None:
    member, listener = join("a", LONG_BACKOFF)
    assert owned(member) == set()

    register_broker(session)

    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")


@pytest.mark.usefixtures("cluster")
def test_an_owner_node_deleted_after_the_connection_was_lost_is_claimed_again(
    join: Join, session: ZookeeperSession, zookeeper: ZooKeeperServer, unique: str, faulty_claims: type[FaultyClaims]
) -> None:
    proxy = StallingProxy(zookeeper.connect)
    try:
        _, listener = join("a", LONG_BACKOFF, f"{proxy.address}/{unique}")
        node = session.get(paths.owner("g", "t", 1))
        assert node is not None
        before = faulty_claims.rebalances
        proxy.stall()
        proxy.resume()  # which drops the connection
        wait_for(lambda: faulty_claims.rebalances > before, "the rebalance that follows")

        assert session.transaction([Delete(paths.owner("g", "t", 1), 0)]).state is OperationState.COMMITTED

        wait_for(lambda: owners_in_zookeeper(session) == dict.fromkeys(range(4), "g_a"), "claimed again")
        again = session.get(paths.owner("g", "t", 1))
        assert again is not None
        assert (again.ephemeral_owner, again.czxid > node.czxid) == (node.ephemeral_owner, True)
        wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")
    finally:
        proxy.close()


@pytest.mark.usefixtures("cluster")
def test_a_claim_without_a_response_is_released_if_the_assignment_has_changed(
    join: Join, session: ZookeeperSession, faulty_claims: type[FaultyClaims]
) -> None:
    faulty_claims.lost_responses = 1
    slow = MemberSettings(session_timeout_ms=4000, backoff_ms=1000)
    late: list[tuple[ConsumerMember, RecordingListener]] = []
    joining = threading.Thread(target=lambda: late.append(join("z", slow)))
    joining.start()
    wait_for(lambda: len(owners_in_zookeeper(session)) == 4, "z's claims take effect")

    _, listener = join("a")
    joining.join(90)

    wait_for(lambda: owners_in_zookeeper(session) == {0: "g_a", 1: "g_a", 2: "g_z", 3: "g_z"}, "each has its share")
    wait_for(lambda: (listener.active, late[0][1].active) == ({0, 1}, {2, 3}), "and consumes it")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("failing", ["release", "stop"])
def test_partitions_assigned_again_before_their_release_are_consumed_again(
    failing: str, join: Join, session: ZookeeperSession, faulty_claims: type[FaultyClaims]
) -> None:
    member, listener = join("a")
    faulty_claims.no_release.set()
    listener.stop_error = TimedOut("the broker", "injected: no response") if failing == "stop" else None
    other, _ = join("b")
    wait_for(lambda: {2, 3} in listener.stopped and listener.active == {0, 1}, "a has stopped two of them")

    other.leave()
    faulty_claims.no_release.clear()

    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all are consumed again")
    assert owned(member) == {0, 1, 2, 3}
    assert owners_in_zookeeper(session) == dict.fromkeys(range(4), "g_a")


@pytest.mark.usefixtures("cluster")
def test_an_owner_node_changed_manually_is_repaired(join: Join, session: ZookeeperSession) -> None:
    member, listener = join("a")
    assert session.transaction([SetData(paths.owner("g", "t", 0), b"other_x-0", 0)]).state is OperationState.COMMITTED

    wait_for(lambda: owners_in_zookeeper(session) == dict.fromkeys(range(4), "g_a"), "claimed again")
    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")
    assert owned(member) == {0, 1, 2, 3}


@pytest.mark.usefixtures("cluster")
def test_an_owner_node_rewritten_manually_can_be_released(join: Join, session: ZookeeperSession) -> None:
    member, _ = join("a")
    mine = b"g_a-0"
    assert session.transaction([SetData(paths.owner("g", "t", 3), mine, 0)]).state is OperationState.COMMITTED

    join("b")

    wait_for(lambda: owners_in_zookeeper(session) == {0: "g_a", 1: "g_a", 2: "g_b", 3: "g_b"}, "each has its share")
    assert owned(member) == {0, 1}


# --- unreadable registrations ----------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_a_member_keeps_its_partitions_while_a_registration_is_unreadable(
    join: Join, session: ZookeeperSession
) -> None:
    member, listener = join("a")
    junk = paths.member("g", "g_junk")
    assert session.transaction([Create(junk, b"{")]).state is OperationState.COMMITTED
    wait_for(lambda: isinstance(member.unreadable_group_error, CorruptData), "a has read the invalid registration")

    # During the error it also stops consuming a partition that it no longer owns.
    theirs: list[TransactionOperation] = [
        Delete(paths.owner("g", "t", 2), 0),
        Create(paths.owner("g", "t", 2), b"g_x-0"),
    ]
    assert session.transaction(theirs).state is OperationState.COMMITTED
    wait_for(lambda: listener.active == {0, 1, 3}, "a consumes only its partitions")
    assert (owned(member), listener.error) == ({0, 1, 3}, None)

    assert session.transaction([Delete(junk, 0), Delete(paths.owner("g", "t", 2), 0)]).state is OperationState.COMMITTED
    wait_for(lambda: listener.active == {0, 1, 2, 3}, "a consumes all partitions again")
    assert member.unreadable_group_error is None


@pytest.mark.usefixtures("cluster")
def test_a_join_fails_while_a_registration_is_unreadable(join: Join, session: ZookeeperSession) -> None:
    ensure_nodes(session, [paths.CONSUMERS, paths.group("g"), paths.ids("g")])
    assert session.transaction([Create(paths.member("g", "g_junk"), b"{")]).state is OperationState.COMMITTED

    with pytest.raises(CorruptData, match="g_junk"):
        join("a")

    assert session.children(paths.ids("g")) == ["g_junk"]
