"""The release of partitions: the last commit, the delay after it, and no commit after the release."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.partition_manager import PartitionManager
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import PartitionProgress, StreamMessage, StreamState
from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, PartialFailure
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.testing.memory import MemoryStore

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class SetClock:
    """A clock that advances only in `sleep`, and then calls ``meanwhile``."""

    now: float = 100.0
    pauses: list[float] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.now += seconds
        self.meanwhile()


class ValidLease:
    expired = False

    def valid(self) -> bool:
        return True


class FixedStorage:
    """An offset storage that is always the same store."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def open(self, *_: object) -> MemoryStore:
        return self.store


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


class FakeMember:
    left = False

    def leave(self) -> None:
        self.left = True


class World:
    """A consumer of group ``g`` that owns ``t-0`` and ``t-1`` from offset 10 on, and has consumed 10 and 11."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        self.store = store or MemoryStore()
        self.clock = SetClock()
        self.state = StreamState()
        self.stream = self.state.stream("t")
        storage: Any = FixedStorage(self.store)
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
        lease: Any = ValidLease()
        session: Any = None
        self.work.on_joined(session, lease)
        for partition in (P0, P1):
            self.state.add(PartitionProgress(partition, self.stream, 10, 10, 10, ABSENT))
        self.consume(10, 11)

    def consume(self, *offsets: int) -> None:
        for tp, progress in self.state.owned().items():
            self.state.enqueue(
                progress, [StreamMessage("t", tp.partition, offset, None, None, None) for offset in offsets]
            )
        while self.stream.get(0) is not None:
            pass

    def committed(self, partition: TopicPartition = P0) -> int | None:
        found = self.store.fetch("g", [partition])[partition]
        return found.offset if isinstance(found, Committed) else None

    def another_client_commits(self, offset: int, partition: TopicPartition = P0) -> None:
        self.store.commit("g", {partition: OffsetAndMetadata(offset)}, allow_rewind=True)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- the delay of a release ---------------------------------------------------------------------------


def test_a_partition_is_kept_for_a_moment_after_its_last_commit() -> None:
    world = World(release_delay_ms=1000)

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [1.0])


def test_the_delay_counts_from_an_automatic_commit_before_the_revocation() -> None:
    world = World(release_delay_ms=1000)
    world.work.commit("automatic commit")
    world.clock.now += 0.3

    world.work.on_revoked([P0])

    assert world.clock.pauses == [0.7]


def test_a_partition_whose_last_commit_is_long_ago_is_released_at_once() -> None:
    world = World(release_delay_ms=1000)
    world.work.commit("automatic commit")
    world.clock.now += 1.5

    world.work.on_revoked([P0])

    assert world.clock.pauses == []


def test_a_partition_that_was_never_committed_is_released_at_once() -> None:
    world = World(release_delay_ms=1000, auto_commit=False)

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (None, [])


def test_the_delay_counts_from_an_explicit_commit() -> None:
    world = World(release_delay_ms=1000, auto_commit=False)
    world.work.commit("commit")
    world.consume(12)
    world.clock.now += 0.4

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [0.6])


def test_a_revocation_of_all_partitions_waits_for_one_delay() -> None:
    world = World(release_delay_ms=1000)

    world.work.on_revoked([P0, P1])

    assert (world.committed(), world.committed(P1), world.clock.pauses) == (12, 12, [1.0])


def test_a_shutdown_does_not_shorten_the_delay() -> None:
    world = World(release_delay_ms=1000)
    world.work._closing.set()

    world.work.on_revoked([P0])

    assert world.clock.pauses == [1.0]


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

    committing = started(lambda: world.work.commit("commit"))
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
    first = started(lambda: world.work.commit("commit"))
    assert store.under_way.wait(90)
    world.consume(12)
    second = started(lambda: world.work.commit("commit"))
    second.join(0.1)  # by then it waits for the first
    releasing = started(lambda: world.work.on_revoked([P0]))
    wait_until(lambda: P0 not in world.state.committable())
    store.go_on.set()
    for thread in (first, releasing, second):
        thread.join(90)

    assert (world.committed(), world.committed(P1)) == (12, 13)


def test_a_partition_lost_during_a_commit_keeps_the_commit_of_its_new_owner() -> None:
    world = World(offsets_backoff_ms=500)
    world.work.commit("commit")
    world.consume(12)
    world.another_client_commits(40)  # by the new owner: the first attempt fails with a conflict
    world.clock.meanwhile = lambda: world.work.on_lost([P0])  # before the second attempt

    try:
        world.work.commit("commit")
        failures: dict[TopicPartition, OffsetMgrError] = {}
    except PartialFailure as partial:
        failures = dict(partial.failures)

    assert (world.committed(), world.committed(P1)) == (40, 13)
    assert {tp: error.why for tp, error in failures.items()} == {P0: "this consumer does not own it any more"}


# --- a fetcher that has ended ------------------------------------------------------------------------------


def test_a_member_that_cannot_fetch_leaves_the_group_and_reports_the_error() -> None:
    world = World()
    member: Any = FakeMember()
    world.work.member = member
    why = NotAuthorized("fetching t-0", "no")

    world.work._fetcher._on_failure(why)

    assert (world.state.error, member.left) == (why, True)
