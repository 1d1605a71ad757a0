"""Commits of a consumer: retries, and conflicts with other writers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from offsetmgr.consumer.offsets import ConsumerOffsets, _bind_to_session
from offsetmgr.core.errors import CoordinatorNotAvailable, NotAuthorized, OffsetMgrError, SessionExpired
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BUSY = CoordinatorNotAvailable("group g", "the coordinator moves")
FORBIDDEN = NotAuthorized("group g", "no")


@dataclass
class SetClock:
    """A clock that advances only in `sleep`."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@dataclass
class SetLease:
    """A lease that becomes valid at a given time."""

    clock: SetClock
    valid_from: float = 0.0
    expired: bool = False

    def valid(self) -> bool:
        return self.clock.now >= self.valid_from


class World:
    def __init__(self, *, retries: int = 3) -> None:
        self.clock = SetClock()
        self.lease = SetLease(self.clock)
        self.owned = {P0, P1}
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.offsets = ConsumerOffsets(
            self.store, "g", self.lease, retries=retries, backoff_s=0.5, wait_s=6, clock=self.clock
        )

    def commit(
        self, positions: dict[TopicPartition, int], known: dict[TopicPartition, Offset]
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, OffsetMgrError]]:
        return self.offsets.commit(positions, known, lambda tp: tp in self.owned)

    def committed(self, partition: TopicPartition = P0) -> int | None:
        found: Offset = self.memory.fetch("g", [partition])[partition]
        return found.offset if isinstance(found, Committed) else None


def test_each_commit_is_the_condition_of_the_next_one() -> None:
    world = World()

    done, errors = world.commit({P0: 5}, {P0: ABSENT})
    assert errors == {}
    done, errors = world.commit({P0: 8}, done)

    assert (errors, world.committed()) == ({}, 8)


@pytest.mark.parametrize(("times", "committed"), [(3, 5), (4, None)])
def test_a_retriable_error_is_retried_up_to_the_limit_and_then_returned(times: int, committed: int | None) -> None:
    world = World(retries=3)
    world.store.fail("write", BUSY, group="g", partition=P0, times=times)

    done, errors = world.commit({P0: 5, P1: 6}, {P0: ABSENT, P1: ABSENT})

    assert world.committed(P1) == 6
    assert world.committed(P0) == committed
    assert (P0 in done, dict(errors)) == (committed is not None, {} if committed else {P0: BUSY})
    assert world.clock.pauses == [0.5, 0.5, 0.5]


def test_a_permanent_error_is_reported_at_once() -> None:
    world = World()
    world.store.fail("write", FORBIDDEN, group="g", partition=P0)

    done, errors = world.commit({P0: 5, P1: 6}, {P0: ABSENT, P1: ABSENT})

    assert (errors, done.keys(), world.clock.pauses) == ({P0: FORBIDDEN}, {P1}, [])


def test_the_owner_overwrites_the_commit_of_another_client() -> None:
    world = World()
    done, _ = world.commit({P0: 5}, {P0: ABSENT})
    world.memory.commit("g", {P0: OffsetAndMetadata(3)}, allow_rewind=True)

    done, errors = world.commit({P0: 9}, done)

    assert (errors, world.committed()) == ({}, 9)


def test_a_partition_lost_between_two_attempts_keeps_the_commit_of_its_new_owner() -> None:
    world = World()
    done, _ = world.commit({P0: 5, P1: 5}, {P0: ABSENT, P1: ABSENT})

    def taken_over(seconds: float) -> None:
        """Runs in the pause before the second attempt."""
        world.owned = {P1}
        world.memory.commit("g", {P0: OffsetAndMetadata(7)})

    world.store.fail("write", BUSY, group="g", partition=P0, times=1)
    world.clock.sleep = taken_over  # type: ignore[method-assign]

    done, errors = world.commit({P0: 9, P1: 9}, done)

    assert (world.committed(P0), world.committed(P1)) == (7, 9)
    assert {tp: str(error) for tp, error in errors.items()} == {
        P0: "group g, t-0: this consumer does not own it any more"
    }


def test_a_commit_waits_for_a_lease_that_becomes_valid_soon() -> None:
    world = World()
    world.lease.valid_from = 2.0

    _, errors = world.commit({P0: 5}, {P0: ABSENT})

    assert (errors, world.committed()) == ({}, 5)
    assert 2.0 <= world.clock.now < 2.1


@pytest.mark.parametrize(("expired", "waited"), [(True, 0.0), (False, 6.0)])
def test_without_a_lease_nothing_is_sent(expired: bool, waited: float) -> None:
    world = World()
    world.lease.valid_from, world.lease.expired = 1000.0, expired

    done, errors = world.commit({P0: 5}, {P0: ABSENT})

    assert (done, {tp: type(error) for tp, error in errors.items()}) == ({}, {P0: SessionExpired})
    assert world.committed() is None
    assert world.clock.now == pytest.approx(waited, abs=0.1)


@pytest.mark.parametrize("error", [BUSY, FORBIDDEN])
def test_an_unreadable_offset_is_never_treated_as_absent(error: OffsetMgrError) -> None:
    world = World()
    world.memory.commit("g", {P1: OffsetAndMetadata(7)})
    world.store.fail("read", error, group="g", partition=P0)

    if error.retriable:
        found, late = world.offsets.fetch([P0, P1])
        assert [(tp, getattr(offset, "offset", None)) for tp, offset in found.items()] == [(P1, 7)]
        assert late is not None
    else:
        with pytest.raises(NotAuthorized):
            world.offsets.fetch([P0, P1])


@pytest.mark.parametrize(
    "connect",
    [
        "zk1:2181,zk2:2181/kafka",
        "zk2:2181,zk1:2181/kafka",
        "ZK1,zk2/kafka/",
        "zk2/kafka",
    ],
)
def test_offsets_in_the_members_own_zookeeper_are_committed_in_its_session(connect: str) -> None:
    session, store = ZookeeperSession("zk1:2181,zk2:2181/kafka"), ZookeeperStore(connect)

    assert _bind_to_session(store, session) is store

    assert store.session is session


@pytest.mark.parametrize("connect", ["zk3:2181/kafka", "zk1:2182/kafka", "zk1:2181,zk2:2181", "zk1:2181/kafka2"])
def test_a_store_with_another_address_keeps_its_session_and_logs_a_warning(
    connect: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, store = ZookeeperSession("zk1:2181,zk2:2181/kafka"), ZookeeperStore(connect)

    _bind_to_session(store, session)

    assert store.session is not session
    (warning,) = caplog.messages
    assert warning.startswith(f"offsets are in {connect}, but the consumer is registered in zk1:2181,zk2:2181/kafka")
