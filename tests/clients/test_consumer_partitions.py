"""Commits and releases of a consumer's partitions: retries, conflicts with other writers, the lease, the delay after
the last commit of a released partition, and no commit after the release."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from processes import wait_for
from set_clock import SetClock

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.offsets import OffsetStorage
from offsetmgr.consumer.partition_manager import PartitionManager
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import PartitionProgress, StreamMessage, StreamState
from offsetmgr.core.errors import CoordinatorNotAvailable, NotAuthorized, OffsetMgrError, PartialFailure, SessionExpired
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
BUSY = CoordinatorNotAvailable("group g", "the coordinator moves")
FORBIDDEN = NotAuthorized("group g", "no")
START_S = SetClock().now


@dataclass
class SetLease:
    """A lease that becomes valid at a given time."""

    clock: SetClock
    valid_from: float = 0.0
    expired: bool = False

    def valid(self) -> bool:
        return self.clock.now >= self.valid_from


class SlowStore(MemoryStore):
    """A store whose writes wait for ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way, self.go_on = threading.Event(), threading.Event()
        self.order: list[str] = []

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        self.under_way.set()
        assert self.go_on.wait(90)
        self.order.append("written")
        return super().edit(edits)


class World:
    """A consumer of group ``g`` that owns ``t-0`` and ``t-1`` from offset 10 on, and has consumed 10 and 11.

    ``faults`` is the store that the consumer uses; ``store`` is the one behind it."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        self.store = store or MemoryStore()
        self.faults = FaultyStore(self.store)
        self.clock = SetClock()
        self.lease = SetLease(self.clock)
        self.state = StreamState()
        self.stream = self.state.stream("t")
        storage: Any = SimpleNamespace(open=lambda _session: self.faults)
        self.work = PartitionManager(
            "localhost:1",
            "g",
            ConnectionConfig(),
            storage,
            ConsumerSettings(**settings),
            self.state,
            lambda *_: self.stream,
            self.clock,
        )
        session: Any = None
        lease: Any = self.lease
        self.work.on_joined(session, lease)
        for partition in (P0, P1):
            self.state.add(PartitionProgress(partition, self.stream, 10, 10, ABSENT))
        self.consume(10, 11)

    def consume(self, *offsets: int) -> None:
        for tp, progress in self.state.owned().items():
            self.state.enqueue(
                progress, [StreamMessage("t", tp.partition, offset, None, None, None) for offset in offsets]
            )
        while self.stream.get(0) is not None:
            pass

    def commit(self) -> dict[TopicPartition, OffsetMgrError]:
        """Commits. Returns the errors."""
        try:
            self.work.commit("commit")
        except PartialFailure as partial:
            return dict(partial.failures)
        return {}

    def committed(self, partition: TopicPartition = P0) -> int | None:
        found = self.store.fetch("g", [partition])[partition]
        return found.offset if isinstance(found, Committed) else None

    def another_client_commits(self, offset: int, partition: TopicPartition = P0) -> None:
        self.store.commit("g", {partition: OffsetAndMetadata(offset)}, allow_rewind=True)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- commits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [None, 3, 40])
def test_each_commit_is_the_condition_of_the_next_one_and_overwrites_those_of_other_clients(other: int | None) -> None:
    world = World()
    assert world.commit() == {}
    world.consume(12)
    if other is not None:
        world.another_client_commits(other)

    assert (world.commit(), world.committed()) == ({}, 13)


@pytest.mark.parametrize(
    ("error", "times", "committed", "pauses"),
    [(BUSY, 3, 12, [0.5] * 3), (BUSY, 4, None, [0.5] * 3), (FORBIDDEN, 4, None, [])],
)
def test_a_retriable_error_is_retried_up_to_the_limit_and_any_other_is_returned_at_once(
    error: OffsetMgrError, times: int, committed: int | None, pauses: list[float]
) -> None:
    world = World(offsets_commit_max_retries=3, offsets_backoff_ms=500)
    world.faults.fail("write", error, group="g", partition=P0, times=times)

    assert world.commit() == ({} if committed else {P0: error})
    assert (world.committed(), world.committed(P1), world.clock.pauses) == (committed, 12, pauses)


@pytest.mark.parametrize(
    ("valid_after", "expired", "waited"), [(2.0, False, 2.0), (1000, True, 0.0), (1000, False, 6.0)]
)
def test_a_commit_waits_for_a_lease_that_becomes_valid_soon_and_is_not_sent_without_one(valid_after, expired, waited):
    world = World()
    world.lease.valid_from, world.lease.expired = START_S + valid_after, expired

    errors = {tp: type(error) for tp, error in world.commit().items()}

    sent = valid_after == waited
    assert errors == ({} if sent else dict.fromkeys((P0, P1), SessionExpired))
    assert world.committed() == (12 if sent else None)
    assert world.clock.now - START_S == pytest.approx(waited, abs=0.1)


def test_an_offset_that_cannot_be_read_yet_is_not_treated_as_absent() -> None:
    world = World()
    world.another_client_commits(7, P3)
    claimed: Any = dict.fromkeys((P2, P3), SimpleNamespace(thread=0))

    world.faults.fail("read", BUSY, group="g", partition=P2, times=1)
    assert world.work.on_assigned(claimed) == {P2}  # to be assigned again later
    owned = world.state.owned()
    assert (P2 in owned, owned[P3].fetched) == (False, 7)

    world.faults.heal()
    world.faults.fail("read", FORBIDDEN, group="g", partition=P2)
    with pytest.raises(NotAuthorized):
        world.work.on_assigned(claimed)


OWN = ("zk1:2181,zk2:2181/kafka", "zk2:2181,zk1:2181/kafka", "ZK1,zk2/kafka/", "zk2/kafka")
OTHERS = ("zk3:2181/kafka", "zk1:2182/kafka", "zk1:2181,zk2:2181", "zk1:2181/kafka2")


@pytest.mark.parametrize(("connect", "same"), [*((one, True) for one in OWN), *((one, False) for one in OTHERS)])
def test_offsets_in_the_members_own_zookeeper_are_committed_in_its_session_and_others_cause_a_warning(
    connect: str, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session = ZookeeperSession("zk1:2181,zk2:2181/kafka")

    store = OffsetStorage(f"zookeeper://{connect}", ConnectionConfig()).open(session)

    assert isinstance(store, ZookeeperStore)
    assert (store.session is session) == same
    expected = [] if same else [f"offsets are in {connect}, but the consumer is registered in zk1:2181,zk2:2181/kafka"]
    assert [warning.partition(";")[0] for warning in caplog.messages] == expected


# --- the delay of a release ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("committed_before_s", "pauses"),
    [
        (None, [1.0]),  # the revocation commits
        (0.3, [0.7]),
        (1.5, []),
    ],
)
def test_partitions_are_kept_for_a_moment_after_their_last_commit(committed_before_s, pauses: list[float]) -> None:
    world = World(release_delay_ms=1000)
    if committed_before_s is not None:
        world.work.commit("automatic commit")
        world.clock.now += committed_before_s

    world.work.on_revoked([P0, P1])

    assert (world.committed(), world.committed(P1), world.clock.pauses) == (12, 12, pauses)  # one delay for both


def test_without_automatic_commits_the_delay_counts_from_an_explicit_commit() -> None:
    world = World(release_delay_ms=1000, auto_commit=False)
    world.work.on_revoked([P1])
    assert (world.committed(P1), world.clock.pauses) == (None, [])

    world.commit()
    world.consume(12)
    world.clock.now += 0.4
    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [0.6])


def test_a_foreign_commit_during_the_delay_is_overwritten_and_restarts_the_delay() -> None:
    world = World(release_delay_ms=1000)

    def an_expired_old_member_commits() -> None:
        if len(world.clock.pauses) == 1:
            world.another_client_commits(3)

    world.clock.meanwhile = an_expired_old_member_commits

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [1.0, 1.0])


# --- no commit after the release ------------------------------------------------------------------------


def test_a_partition_is_not_released_while_a_commit_of_it_is_in_flight() -> None:
    store = SlowStore()
    world = World(store, auto_commit=False, release_delay_ms=0)

    def release() -> None:
        world.work.on_revoked([P0])
        store.order.append("released")

    committing = started(world.commit)
    assert store.under_way.wait(90)
    releasing = started(release)
    releasing.join(0.3)  # long enough for a release that does not wait
    store.go_on.set()
    releasing.join(90)
    committing.join(90)

    assert (store.order, world.committed()) == (["written", "released"], 12)


def test_a_commit_that_waited_for_another_skips_a_partition_that_was_revoked_meanwhile() -> None:
    store = SlowStore()
    world = World(store, auto_commit=False, release_delay_ms=0)
    first = started(world.commit)
    assert store.under_way.wait(90)
    world.consume(12)
    second = started(world.commit)
    second.join(0.1)  # by then it waits for the first
    releasing = started(lambda: world.work.on_revoked([P0]))
    wait_for(lambda: P0 not in world.state.committable(), "the revocation")
    store.go_on.set()
    for thread in (first, releasing, second):
        thread.join(90)

    assert (world.committed(), world.committed(P1)) == (12, 13)


def test_a_partition_lost_during_a_commit_keeps_the_commit_of_its_new_owner() -> None:
    world = World(offsets_backoff_ms=500)
    world.commit()
    world.consume(12)
    world.another_client_commits(40)  # by the new owner: the first attempt fails with a conflict
    world.clock.meanwhile = lambda: world.work.on_lost([P0])  # before the second attempt

    errors = world.commit()

    assert (world.committed(), world.committed(P1)) == (40, 13)
    assert {tp: str(error) for tp, error in errors.items()} == {
        P0: "group g, t-0: this consumer does not own it any more"
    }
