"""How a `ZookeeperConsumer` commits and reads offsets where the store fails for a while, or for good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from offsetmgr.consumer.offsets import Offsets
from offsetmgr.errors import (
    CoordinatorLoadInProgress,
    NotAuthorized,
    OffsetMetadataTooLarge,
    PartialFailure,
    SessionExpired,
    Unreachable,
)
from offsetmgr.model import ABSENT, Committed, TopicPartition
from offsetmgr.stores.base import GroupEdit, GroupEditResult
from offsetmgr.testing.faulty import FaultyStore
from offsetmgr.testing.memory import MemoryStore

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
LOADING = CoordinatorLoadInProgress("group g", "the coordinator still loads")


@dataclass
class Lease:
    """What is asked of the session's lease."""

    held: bool = True
    expired: bool = False

    def valid(self) -> bool:
        return self.held


class Recording(FaultyStore):
    """Keeps which partitions were in each edit."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.sent: list[set[TopicPartition]] = []

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        known = list(edits)
        self.sent += [set(edit.changes) for edit in known]
        return super().edit(known)


@dataclass
class Group:
    """Offsets of group ``g`` in a store that fails as told; the pauses are noted and not waited for."""

    store: Any = field(default_factory=lambda: FaultyStore(MemoryStore()))
    lease: Any = field(default_factory=Lease)
    pauses: list[float] = field(default_factory=list)

    def offsets(self) -> Offsets:
        return Offsets(self.store, "g", self.lease, retries=3, backoff_s=0.5, pause=self.pauses.append)

    def held(self) -> dict[TopicPartition, int]:
        found = self.store.store.fetch("g")
        return {tp: offset.offset for tp, offset in found.items() if isinstance(offset, Committed)}


@pytest.mark.parametrize("partition", [None, FIRST])
def test_a_commit_that_may_succeed_later_is_tried_again_after_a_pause(partition: TopicPartition | None) -> None:
    group = Group()
    group.store.fail("write", LOADING, group=None if partition is None else "g", partition=partition, times=2)

    done, errors = group.offsets().commit({FIRST: 7, SECOND: 8}, {FIRST: ABSENT, SECOND: ABSENT})

    assert errors == {}
    assert done == {FIRST: Committed(7, version=0), SECOND: Committed(8, version=0)}
    assert group.held() == {FIRST: 7, SECOND: 8}
    assert group.pauses == [0.5, 0.5]


def test_only_what_failed_is_sent_again() -> None:
    group = Group(Recording(MemoryStore()))
    group.store.fail("write", LOADING, partition=FIRST, times=1)

    group.offsets().commit({FIRST: 7, SECOND: 8}, {FIRST: ABSENT, SECOND: ABSENT})

    assert group.store.sent == [{FIRST, SECOND}, {FIRST}]


def test_a_commit_is_given_up_after_so_many_tries_and_the_error_is_told() -> None:
    group = Group()
    group.store.fail("write", LOADING, partition=FIRST)

    done, errors = group.offsets().commit({FIRST: 7, SECOND: 8}, {FIRST: ABSENT, SECOND: ABSENT})

    assert (list(done), errors) == ([SECOND], {FIRST: LOADING})
    assert group.pauses == [0.5, 0.5, 0.5]


def test_what_will_not_succeed_later_is_not_tried_again() -> None:
    group = Group()
    too_large = OffsetMetadataTooLarge("t-0", "too long")
    group.store.fail("write", too_large, partition=FIRST)

    done, errors = group.offsets().commit({FIRST: 7, SECOND: 8}, {FIRST: ABSENT, SECOND: ABSENT})

    assert (list(done), errors, group.pauses) == ([SECOND], {FIRST: too_large}, [])


def test_a_commit_whose_answer_was_lost_is_found_to_be_there() -> None:
    group = Group()
    group.store.fail("write", Unreachable("store", "the connection broke"), times=1, after=True)

    done, errors = group.offsets().commit({FIRST: 7}, {FIRST: ABSENT})

    assert (errors, group.held(), group.pauses) == ({}, {FIRST: 7}, [0.5, 0.5])
    assert done[FIRST] == Committed(7, version=0)


def test_the_owners_word_counts_against_a_late_commit_of_another() -> None:
    group = Group()
    group.store.store.commit("g", {FIRST: Committed(3).value()})

    done, errors = group.offsets().commit({FIRST: 7}, {FIRST: ABSENT})

    assert (errors, group.held(), group.pauses) == ({}, {FIRST: 7}, [0.5])
    assert done[FIRST] == Committed(7, version=1)


def test_nothing_is_sent_once_the_session_is_over() -> None:
    group = Group(lease=Lease(held=False, expired=True))

    done, errors = group.offsets().commit({FIRST: 7}, {FIRST: ABSENT})

    assert (done, {tp: type(e) for tp, e in errors.items()}, group.store.writes) == ({}, {FIRST: SessionExpired}, 0)


@pytest.mark.parametrize("partition", [None, SECOND])
def test_what_cannot_be_read_yet_is_told_beside_what_can_be(partition: TopicPartition | None) -> None:
    group = Group()
    group.store.store.commit("g", {FIRST: Committed(3).value()})
    group.store.fail("read", LOADING, group=None if partition is None else "g", partition=partition, times=1)
    offsets = group.offsets()

    found, late = offsets.fetch([FIRST, SECOND])
    assert found == ({} if partition is None else {FIRST: Committed(3, version=0)})
    assert isinstance(late, CoordinatorLoadInProgress if partition is None else PartialFailure)
    assert offsets.fetch([FIRST, SECOND]) == ({FIRST: Committed(3, version=0), SECOND: ABSENT}, None)


@pytest.mark.parametrize("partition", [None, SECOND])
def test_what_will_never_be_readable_is_raised(partition: TopicPartition | None) -> None:
    group = Group()
    group.store.fail("read", NotAuthorized("group g", "not allowed"), partition=partition)

    with pytest.raises(NotAuthorized):
        group.offsets().fetch([FIRST, SECOND])
