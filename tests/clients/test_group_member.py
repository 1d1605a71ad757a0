"""`ConsumerMember` on a real ZooKeeper: owned partitions, consumed partitions and owner nodes agree again after lost
responses, lost connections and manual changes of nodes."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
from kazoo_client import connected
from old_group_nodes import member_of, owners
from processes import wait_for
from stalling_proxy import StallingProxy

from offsetmgr.core.errors import CorruptData, OffsetMgrError, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    Create,
    Delete,
    OperationState,
    SetData,
    TransactionOperation,
    TransactionResult,
)
from offsetmgr.zookeeper.groups.assignors import ASSIGNORS
from offsetmgr.zookeeper.groups.consumer_member import ConsumerMember, MemberSettings
from offsetmgr.zookeeper.groups.subscription import Subscription

pytestmark = pytest.mark.servers

TIMING = MemberSettings(session_timeout_ms=4000, backoff_ms=200, max_retries=1)
LONG_BACKOFF = MemberSettings(session_timeout_ms=20_000, backoff_ms=60_000)
"""The back-off outlasts a test, so only a watch can start a rebalance."""
BROKER = (
    b'{"version":4,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1","listener_security_protocol_map":'
    b'{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"]}'
)
OWNERS, IDS = "/consumers/g/owners/t", "/consumers/g/ids"
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'


class RecordingListener:
    """Records the consumed partitions. If ``stop_error`` is set, the next `on_revoked` raises it; if ``defect`` is set,
    `on_assigned` does."""

    def __init__(self) -> None:
        self.active: set[int] = set()
        self.stopped: list[set[int]] = []
        self.stop_error: OffsetMgrError | None = None
        self.defect: Exception | None = None
        self.error: OffsetMgrError | None = None

    def on_joined(self, session: ZookeeperSession, lease: Any) -> None:
        self.active = set()

    def on_assigned(self, claimed: Mapping[TopicPartition, object]) -> Collection[TopicPartition]:
        if self.defect is not None:
            raise self.defect
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


class Faults:
    """Faults of all sessions. The next ``lost_responses`` transactions that create owner nodes take effect and fail.
    While ``no_release`` is set, transactions that only delete owner nodes have no effect and time out."""

    def __init__(self) -> None:
        self.lost_responses = 0
        self.no_release = threading.Event()

    def send(
        self, send: Callable[..., list[TransactionResult]], batches: Sequence[Sequence[TransactionOperation]]
    ) -> list[TransactionResult]:
        kinds = {type(operation) for batch in batches for operation in batch if operation.path.startswith(f"{OWNERS}/")}
        if self.no_release.is_set() and kinds == {Delete}:
            raise TimedOut("ZooKeeper", "injected: no response")
        results = send(batches)
        if self.lost_responses and Create in kinds:
            self.lost_responses -= 1
            raise TimedOut("ZooKeeper", "injected: no response")
        return results


Join = Callable[..., tuple[ConsumerMember, RecordingListener]]
"""Joins: a name, `MemberSettings` and a connect string."""


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer, unique: str) -> str:
    """The connect string of an empty chroot."""
    with connected(zookeeper.connect) as client:
        client.create(f"/{unique}")
    return f"{zookeeper.connect}/{unique}"


@pytest.fixture
def session(chroot: str) -> Iterator[ZookeeperSession]:
    """A session in the chroot, with which a test changes nodes directly."""
    with ZookeeperSession(chroot) as session:
        yield session


@pytest.fixture(autouse=True)
def cluster(request: pytest.FixtureRequest, session: ZookeeperSession) -> None:
    """One broker, and a topic ``t`` of four partitions, unless the test registers them."""
    if "before_the_first_broker" not in request.node.name:
        register_broker(session)


def register_broker(session: ZookeeperSession) -> None:
    with connected(session.connect) as client:
        client.create("/brokers/topics/t", TOPIC, makepath=True)
        client.create("/brokers/ids/0", BROKER, makepath=True)


def commit(session: ZookeeperSession, *operations: TransactionOperation) -> None:
    assert session.transaction(operations).state is OperationState.COMMITTED


@pytest.fixture
def join(chroot: str) -> Iterator[Join]:
    """Creates members of ``g``. They leave at the test's end."""
    members: list[ConsumerMember] = []

    def make(
        name: str, timing: MemberSettings = TIMING, connect: str | None = None
    ) -> tuple[ConsumerMember, RecordingListener]:
        listener = RecordingListener()
        topics, ranges = Subscription.static({"t": 1}), ASSIGNORS["range"]
        members.append(ConsumerMember(connect or chroot, "g", f"g_{name}", topics, ranges, listener, settings=timing))
        members[-1].start(30)
        return members[-1], listener

    yield make
    for member in members:
        member.leave()


@pytest.fixture
def faults(join: Join, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    found, transactions = Faults(), ZookeeperSession.transactions
    monkeypatch.setattr(
        ZookeeperSession, "transactions", lambda one, batches: found.send(lambda all_: transactions(one, all_), batches)
    )
    yield found
    found.no_release.clear()


def owned(member: ConsumerMember) -> set[int]:
    return {tp.partition for tp in member.owned}


def owners_in_zookeeper(session: ZookeeperSession) -> dict[int, str]:
    return {tp.partition: member_of(owner) for tp, owner in owners(session, "g").items()}


def test_a_member_that_joins_before_the_first_broker_consumes_once_it_registers(join, session) -> None:
    member, listener = join("a", LONG_BACKOFF)
    assert owned(member) == set()

    register_broker(session)

    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")


def test_an_owner_node_deleted_after_the_connection_was_lost_is_claimed_again(join, session, zookeeper, unique) -> None:
    proxy = StallingProxy(zookeeper.connect)
    try:
        _, listener = join("a", LONG_BACKOFF, f"{proxy.address}/{unique}")
        node = session.get(f"{OWNERS}/1")
        assert node is not None
        proxy.stall()
        proxy.resume()  # which drops the connection
        commit(session, Delete(f"{OWNERS}/0", 0))
        wait_for(lambda: 0 in owners_in_zookeeper(session), "the rebalance that follows")

        commit(session, Delete(f"{OWNERS}/1", 0))

        wait_for(lambda: owners_in_zookeeper(session) == dict.fromkeys(range(4), "g_a"), "claimed again")
        again = session.get(f"{OWNERS}/1")
        assert again is not None
        assert (again.ephemeral_owner, again.czxid > node.czxid) == (node.ephemeral_owner, True)
        wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")
    finally:
        proxy.close()


def test_a_claim_without_a_response_is_released_if_the_assignment_has_changed(join, session, faults) -> None:
    faults.lost_responses = 1
    slow = MemberSettings(session_timeout_ms=4000, backoff_ms=1000)
    late: list[tuple[ConsumerMember, RecordingListener]] = []
    joining = threading.Thread(target=lambda: late.append(join("z", slow)))
    joining.start()
    wait_for(lambda: len(owners_in_zookeeper(session)) == 4, "z's claims take effect")

    _, listener = join("a")
    joining.join(90)

    wait_for(lambda: owners_in_zookeeper(session) == {0: "g_a", 1: "g_a", 2: "g_z", 3: "g_z"}, "each has its share")
    wait_for(lambda: (listener.active, late[0][1].active) == ({0, 1}, {2, 3}), "and consumes it")


@pytest.mark.parametrize("failing", ["release", "stop"])
def test_partitions_assigned_again_before_their_release_are_consumed_again(failing: str, join, session, faults) -> None:
    member, listener = join("a")
    faults.no_release.set()
    listener.stop_error = TimedOut("the broker", "injected: no response") if failing == "stop" else None
    other, _ = join("b")
    wait_for(lambda: {2, 3} in listener.stopped and listener.active == {0, 1}, "a has stopped two of them")

    other.leave()
    faults.no_release.clear()

    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all are consumed again")
    assert owned(member) == {0, 1, 2, 3}
    assert owners_in_zookeeper(session) == dict.fromkeys(range(4), "g_a")


def test_an_owner_node_changed_manually_is_repaired_and_can_be_released(join: Join, session: ZookeeperSession) -> None:
    member, listener = join("a")
    commit(session, SetData(f"{OWNERS}/0", b"other_x-0", 0))
    wait_for(lambda: owners_in_zookeeper(session) == dict.fromkeys(range(4), "g_a"), "claimed again")
    wait_for(lambda: listener.active == {0, 1, 2, 3}, "all consumed")
    assert owned(member) == {0, 1, 2, 3}

    commit(session, SetData(f"{OWNERS}/3", b"g_a-0", 0))
    join("b")
    wait_for(lambda: owners_in_zookeeper(session) == {0: "g_a", 1: "g_a", 2: "g_b", 3: "g_b"}, "each has its share")
    assert owned(member) == {0, 1}


# --- unreadable registrations ----------------------------------------------------------------------


def test_a_member_keeps_its_partitions_while_a_registration_is_unreadable(join, session) -> None:
    member, listener = join("a")
    junk = f"{IDS}/g_junk"
    commit(session, Create(junk, b"{"))
    wait_for(lambda: isinstance(member.unreadable_group_error, CorruptData), "a has read the invalid registration")

    # During the error it also stops consuming a partition that it no longer owns.
    commit(session, Delete(f"{OWNERS}/2", 0), Create(f"{OWNERS}/2", b"g_x-0"))
    wait_for(lambda: listener.active == {0, 1, 3}, "a consumes only its partitions")
    assert (owned(member), listener.error) == ({0, 1, 3}, None)

    commit(session, Delete(junk, 0), Delete(f"{OWNERS}/2", 0))
    wait_for(lambda: listener.active == {0, 1, 2, 3}, "a consumes all partitions again")
    assert member.unreadable_group_error is None


def test_a_join_fails_while_a_registration_is_unreadable(join: Join, session: ZookeeperSession) -> None:
    with connected(session.connect) as client:
        client.create(f"{IDS}/g_junk", b"{", makepath=True)

    with pytest.raises(CorruptData, match="g_junk"):
        join("a")

    assert session.children(IDS) == ["g_junk"]


# --- the end of a member ------------------------------------------------------------------------------


def test_a_defect_of_the_listener_ends_the_member_and_is_reported(chroot: str, session: ZookeeperSession) -> None:
    listener = RecordingListener()
    listener.defect = KeyError("planted")
    member = ConsumerMember(chroot, "g", "g_a", Subscription.static({"t": 1}), ASSIGNORS["range"], listener)

    with pytest.raises(OffsetMgrError, match=r"consumer g_a: crashed .*KeyError\('planted'\)"):
        member.start(30)

    assert str(listener.error).startswith("consumer g_a: crashed")
    wait_for(lambda: session.children(IDS) == [], "its registration is gone")
    member.leave()  # also if it has left already, or was never started
    ConsumerMember(chroot, "g", "g_b", member.subscription, ASSIGNORS["range"], listener).leave()
