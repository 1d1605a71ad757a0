"""The decisions for an edit of a Kafka group, and the batches and order of streams of edits. No servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from offsetmgr.core.errors import (
    Conflict,
    LockLost,
    OffsetMetadataTooLarge,
    RewindRefused,
    TimedOut,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, CommitErrors, EditStatus, GroupEdit
from offsetmgr.kafka.client.background_loop import EventLoopThread, batches, run_batches
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.conditional_edit import decide, execute

A, B, C = (TopicPartition("t", p) for p in range(3))


def fetched(offsets: dict[TopicPartition, Committed]) -> FetchedGroup:
    return FetchedGroup(offsets, {})


def test_valid_changes_are_written() -> None:
    outcomes, todo = decide(
        "g",
        {A: Change(OffsetAndMetadata(5)), B: Change(OffsetAndMetadata(5)), C: Change(None)},
        fetched({B: Committed(4), C: Committed(9)}),
    )

    assert (outcomes, todo) == ({}, [A, B, C])


def test_a_change_to_the_present_value_is_unchanged() -> None:
    outcomes, todo = decide(
        "g",
        {A: Change(OffsetAndMetadata(5, "m")), B: Change(None), C: Change(OffsetAndMetadata(5))},
        fetched({A: Committed(5, "m", 7), C: Committed(5, "m")}),
    )

    assert {tp: o.status for tp, o in outcomes.items()} == {A: EditStatus.UNCHANGED, B: EditStatus.UNCHANGED}
    assert todo == [C]


@pytest.mark.parametrize(
    ("change", "found", "error"),
    [
        (Change(OffsetAndMetadata(5)), Committed(6), RewindRefused),
        (Change(OffsetAndMetadata(9), Committed(5)), None, Conflict),
        (Change(OffsetAndMetadata(-1)), None, UsageError),
        (Change(OffsetAndMetadata(2**63)), None, UsageError),
        (Change(OffsetAndMetadata(1, leader_epoch=-1)), None, UsageError),
        (Change(OffsetAndMetadata(1, "ü" * 20_000)), None, OffsetMetadataTooLarge),
    ],
)
def test_rejected_changes(change: Change, found: Committed | None, error: type[Exception]) -> None:
    outcomes, todo = decide("g", {A: change}, fetched({} if found is None else {A: found}))

    assert todo == []
    assert (outcomes[A].status, type(outcomes[A].error)) == (EditStatus.FAILED, error)
    assert outcomes[A].before == (ABSENT if found is None else found)


def test_an_impossible_partition_fails_alone() -> None:
    impossible = TopicPartition("t", -1)

    outcomes, todo = decide(
        "g", {impossible: Change(OffsetAndMetadata(1)), A: Change(OffsetAndMetadata(1))}, fetched({})
    )

    assert isinstance(outcomes[impossible].error, UnknownTopicOrPartition)
    assert todo == [A]


def test_a_partition_that_could_not_be_read_is_never_written() -> None:
    outcomes, todo = decide("g", {A: Change(OffsetAndMetadata(1))}, FetchedGroup({}, {A: TimedOut("t-0", "no answer")}))

    assert todo == []
    assert (outcomes[A].status, outcomes[A].before) == (EditStatus.FAILED, None)


def executed(
    changes: Mapping[TopicPartition, Change], found: FetchedGroup, write: object, delete: object
) -> dict[TopicPartition, ChangeOutcome]:
    async def answer(outcome: object, partitions: Sequence[TopicPartition]) -> CommitErrors:
        if isinstance(outcome, Exception):
            raise outcome
        return dict.fromkeys(partitions)

    return asyncio.run(
        execute(
            GroupEdit("g", changes),
            found,
            lambda written: answer(write, list(written)),
            lambda deleted: answer(delete, deleted),
        )
    )


def test_a_commit_that_fails_as_a_whole_fails_each_of_its_partitions_and_deletes_nothing() -> None:
    failure = TimedOut("broker", "no answer")

    outcomes = executed(
        {A: Change(OffsetAndMetadata(5)), B: Change(None), C: Change(OffsetAndMetadata(1))},
        fetched({B: Committed(1), C: Committed(1)}),
        failure,
        None,
    )

    assert {tp: (o.status, o.error) for tp, o in outcomes.items()} == {
        A: (EditStatus.FAILED, failure),
        B: (EditStatus.FAILED, failure),
        C: (EditStatus.UNCHANGED, None),
    }


def test_a_lock_lost_before_anything_was_written_is_the_whole_groups_error() -> None:
    with pytest.raises(LockLost):
        executed({A: Change(OffsetAndMetadata(5))}, fetched({}), LockLost("lock", "lost"), None)


def test_a_lock_lost_between_commit_and_deletion_fails_the_deletions_only() -> None:
    outcomes = executed(
        {A: Change(OffsetAndMetadata(5)), B: Change(None)}, fetched({B: Committed(1)}), None, LockLost("lock", "lost")
    )

    assert outcomes[A].status is EditStatus.WRITTEN
    assert (outcomes[B].status, type(outcomes[B].error)) == (EditStatus.FAILED, LockLost)


# --- streams --------------------------------------------------------------------------------------


def test_batches_grow_and_take_their_items_lazily() -> None:
    taken: list[str] = []

    def endless() -> itertools.chain[str]:
        return itertools.chain.from_iterable([name] for name in map(note, map(str, itertools.count())))

    def note(name: str) -> str:
        taken.append(name)
        return name

    sizes = [len(batch) for batch in itertools.islice(batches(endless(), first=2, max_size=8, key=str), 4)]

    assert sizes == [2, 4, 8, 8]
    assert len(taken) == 22


def test_a_batch_never_contains_a_key_twice() -> None:
    assert list(batches(["a", "b", "a", "a", "c"], first=9, max_size=9, key=str)) == [["a", "b"], ["a"], ["a", "c"]]


def test_no_items_give_no_batches() -> None:
    assert list(batches([], first=2, max_size=4, key=str)) == []


def test_items_of_one_key_are_never_in_flight_together() -> None:
    busy: set[str] = set()
    most_at_once = 0

    async def do(batch: list[str]) -> list[str]:
        nonlocal most_at_once
        assert not busy & set(batch)
        busy.update(batch)
        most_at_once = max(most_at_once, len(busy))
        await asyncio.sleep(0.01)
        busy.difference_update(batch)
        return batch

    runner = EventLoopThread()
    try:
        done = list(run_batches(runner, [["a"], ["b"], ["a"], ["b", "c"]], do, max_in_flight=3, key=str, finish=True))
    finally:
        runner.close()

    assert sorted(done) == ["a", "a", "b", "b", "c"]
    assert most_at_once in (2, 3)


def test_edits_in_flight_finish_if_the_consumer_stops_early() -> None:
    ended: list[str] = []

    async def do(batch: list[str]) -> list[str]:
        await asyncio.sleep(0.01 * int(batch[0]))
        ended.extend(batch)
        return batch

    runner = EventLoopThread()
    try:
        results: Any = run_batches(runner, [["1"], ["5"], ["9"]], do, max_in_flight=3, key=str, finish=True)
        assert next(results) == "1"
        results.close()
    finally:
        runner.close()

    assert ended == ["1", "5", "9"]
