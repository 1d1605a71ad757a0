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
    """A clock that moves when somebody sleeps, and tells what to do meanwhile."""

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


class GoodLease:
    expired = False

    def valid(self) -> bool:
        return True


class Place:
    """Where the offsets are: always in this store."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def open(self, *_: object) -> MemoryStore:
        return self.store


class SlowStore(MemoryStore):
    """Its first write waits until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way, self.go_on = threading.Event(), threading.Event()
        self.order: list[str] = []

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        self.under_way.set()
        assert self.go_on.wait(30)
        self.order.append("written")
        return super().edit(edits)


class LeavingMember:
    left = False

    def leave(self) -> None:
        self.left = True


class World:
    """A consumer of group ``g`` that holds ``t-0`` and ``t-1`` from 10 on, of which it has consumed 10 and 11."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        self.store = store or MemoryStore()
        self.clock = SetClock()
        self.state = StreamState()
        self.stream = self.state.stream("t")
        place: Any = Place(self.store)
        self.work = PartitionManager(
            "localhost:1",
            "g",
            ConnectionConfig(),
            place,
            ConsumerSettings(**settings),
            self.state,
            lambda *_: self.stream,
            self.clock,
        )
        lease: Any = GoodLease()
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

    def somebody_else_commits(self, offset: int, partition: TopicPartition = P0) -> None:
        self.store.commit("g", {partition: OffsetAndMetadata(offset)}, allow_rewind=True)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- how long it is kept ------------------------------------------------------------------------------


def test_a_partition_is_kept_for_a_moment_after_its_last_commit() -> None:
    world = World(release_delay_ms=1000)

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [1.0])


def test_a_commit_that_came_just_before_the_giving_up_is_a_last_commit_too() -> None:
    world = World(release_delay_ms=1000)
    world.work.commit("automatic commit")
    world.clock.now += 0.3

    world.work.on_revoked([P0])

    assert world.clock.pauses == [0.7]


def test_a_partition_whose_last_commit_is_long_ago_is_given_up_at_once() -> None:
    world = World(release_delay_ms=1000)
    world.work.commit("automatic commit")
    world.clock.now += 1.5

    world.work.on_revoked([P0])

    assert world.clock.pauses == []


def test_a_partition_that_was_never_committed_is_given_up_at_once() -> None:
    world = World(release_delay_ms=1000, auto_commit=False)

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (None, [])


def test_a_commit_that_was_asked_for_is_a_last_commit_too() -> None:
    world = World(release_delay_ms=1000, auto_commit=False)
    world.work.commit("commit")
    world.consume(12)
    world.clock.now += 0.4

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [0.6])


def test_leaving_while_the_others_divide_the_partitions_keeps_them_as_long() -> None:
    world = World(release_delay_ms=1000)

    world.work.on_revoked([P0, P1])

    assert (world.committed(), world.committed(P1), world.clock.pauses) == (12, 12, [1.0])


def test_a_shutdown_does_not_shorten_it() -> None:
    world = World(release_delay_ms=1000)
    world.work._closing.set()

    world.work.on_revoked([P0])

    assert world.clock.pauses == [1.0]


def test_what_was_written_over_the_last_commit_is_corrected_and_that_is_the_last_commit_then() -> None:
    world = World(release_delay_ms=1000)

    def an_expired_old_member_commits() -> None:
        if len(world.clock.pauses) == 1:
            world.somebody_else_commits(3)

    world.clock.meanwhile = an_expired_old_member_commits

    world.work.on_revoked([P0])

    assert (world.committed(), world.clock.pauses) == (12, [1.0, 1.0])


# --- what may not be written after ----------------------------------------------------------------------


def test_a_partition_is_not_given_up_while_a_commit_of_it_is_under_way() -> None:
    store = SlowStore()
    world = World(store, auto_commit=False, release_delay_ms=0)

    def give_up() -> None:
        world.work.on_revoked([P0])
        store.order.append("given up")

    committing = started(lambda: world.work.commit("commit"))
    assert store.under_way.wait(30)
    giving_up = started(give_up)
    giving_up.join(0.3)  # long enough for one that does not wait
    store.go_on.set()
    giving_up.join(30)
    committing.join(30)

    assert (store.order, world.committed()) == (["written", "given up"], 12)


def test_a_commit_that_waited_for_another_leaves_out_what_was_given_up_meanwhile() -> None:
    store = SlowStore()
    world = World(store, auto_commit=False, release_delay_ms=0)
    first = started(lambda: world.work.commit("commit"))
    assert store.under_way.wait(30)
    world.consume(12)
    second = started(lambda: world.work.commit("commit"))
    second.join(0.1)  # by then it waits for the first
    giving_up = started(lambda: world.work.on_revoked([P0]))
    wait_until(lambda: P0 not in world.state.committable())
    store.go_on.set()
    for thread in (first, giving_up, second):
        thread.join(30)

    assert (world.committed(), world.committed(P1)) == (12, 13)


def test_a_partition_lost_while_it_is_committed_is_not_written_over_its_new_owner() -> None:
    world = World(offsets_backoff_ms=500)
    world.work.commit("commit")
    world.consume(12)
    world.somebody_else_commits(40)  # the new owner has begun: our first try finds that
    world.clock.meanwhile = lambda: world.work.on_lost([P0])  # and before the second one we are told

    try:
        world.work.commit("commit")
        failures: dict[TopicPartition, OffsetMgrError] = {}
    except PartialFailure as partial:
        failures = dict(partial.failures)

    assert (world.committed(), world.committed(P1)) == (40, 13)
    assert {tp: error.why for tp, error in failures.items()} == {P0: "this consumer does not own it any more"}


# --- a fetcher that has ended ------------------------------------------------------------------------------


def test_who_cannot_fetch_leaves_the_group_and_says_why() -> None:
    world = World()
    member: Any = LeavingMember()
    world.work.member = member
    why = NotAuthorized("fetching t-0", "no")

    world.work._fetcher._on_failure(why)

    assert (world.state.error, member.left) == (why, True)
