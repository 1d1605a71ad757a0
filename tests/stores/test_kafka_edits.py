"""The decisions for an edit of a Kafka group, and streams of edits. No servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from offsetmgr.core import errors
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, CommitErrors, EditStatus, GroupEdit
from offsetmgr.kafka.client.client import EventLoopThread, batches, run_batches
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.protocol_edits import decide, execute

A, B, C = (TopicPartition("t", p) for p in range(3))


def to(offset: int, metadata: str = "") -> Change:
    return Change(OffsetAndMetadata(offset, metadata))


def fetched(offsets: dict[TopicPartition, Committed]) -> FetchedGroup:
    return FetchedGroup(offsets, {})


def test_valid_changes_are_written_and_a_change_to_the_present_value_is_unchanged() -> None:
    written = {A: to(5), B: to(5), C: Change(None)}
    assert decide("g", written, fetched({B: Committed(4), C: Committed(9)})) == ({}, [A, B, C])
    same = {A: to(5, "m"), B: Change(None), C: to(5)}
    outcomes, todo = decide("g", same, fetched({A: Committed(5, "m", 7), C: Committed(5, "m")}))
    assert {tp: o.status for tp, o in outcomes.items()} == {A: EditStatus.UNCHANGED, B: EditStatus.UNCHANGED}
    assert todo == [C]


@pytest.mark.parametrize(
    ("change", "found", "error"),
    [
        (to(5), Committed(6), errors.RewindRefused),
        (Change(OffsetAndMetadata(9), Committed(5)), None, errors.Conflict),
        (Change(OffsetAndMetadata(-1)), None, errors.UsageError),
        (Change(OffsetAndMetadata(2**63)), None, errors.UsageError),
        (Change(OffsetAndMetadata(1, leader_epoch=-1)), None, errors.UsageError),
        (Change(OffsetAndMetadata(1, "ü" * 20_000)), None, errors.OffsetMetadataTooLarge),
    ],
)
def test_rejected_changes(change: Change, found: Committed | None, error: type[Exception]) -> None:
    outcomes, todo = decide("g", {A: change}, fetched({} if found is None else {A: found}))
    assert todo == []
    assert (outcomes[A].status, type(outcomes[A].error)) == (EditStatus.FAILED, error)
    assert outcomes[A].before == (ABSENT if found is None else found)


def test_an_impossible_partition_and_one_that_could_not_be_read_fail_alone() -> None:
    impossible = TopicPartition("t", -1)
    outcomes, todo = decide(
        "g", {impossible: to(1), A: to(1), B: to(1)}, FetchedGroup({}, {B: errors.TimedOut("t-1", "no answer")})
    )
    assert isinstance(outcomes[impossible].error, errors.UnknownTopicOrPartition)
    assert todo == [A]
    assert (outcomes[B].status, outcomes[B].before) == (EditStatus.FAILED, None)


def executed(
    changes: Mapping[TopicPartition, Change], found: dict[TopicPartition, Committed], write: object, delete: object
) -> dict[TopicPartition, ChangeOutcome]:
    async def answer(outcome: object, partitions: Iterable[TopicPartition]) -> CommitErrors:
        if isinstance(outcome, Exception):
            raise outcome
        return dict.fromkeys(partitions)

    edit = GroupEdit("g", changes)
    return asyncio.run(execute(edit, fetched(found), lambda one: answer(write, one), lambda one: answer(delete, one)))


def test_a_commit_that_fails_as_a_whole_fails_each_of_its_partitions_and_deletes_nothing() -> None:
    failure = errors.TimedOut("broker", "no answer")
    changes = {A: to(5), B: Change(None), C: to(1)}
    outcomes = executed(changes, {B: Committed(1), C: Committed(1)}, failure, None)
    assert {tp: (o.status, o.error) for tp, o in outcomes.items()} == {
        A: (EditStatus.FAILED, failure),
        B: (EditStatus.FAILED, failure),
        C: (EditStatus.UNCHANGED, None),
    }


def test_a_lost_lock_is_the_whole_groups_error_before_the_commit_and_that_of_the_deletions_after_it() -> None:
    lost = errors.LockLost("lock", "lost")
    with pytest.raises(errors.LockLost):
        executed({A: to(5)}, {}, lost, None)
    outcomes = executed({A: to(5), B: Change(None)}, {B: Committed(1)}, None, lost)
    assert outcomes[A].status is EditStatus.WRITTEN
    assert (outcomes[B].status, type(outcomes[B].error)) == (EditStatus.FAILED, errors.LockLost)


# --- streams --------------------------------------------------------------------------------------


def test_batches_grow_and_take_their_items_lazily() -> None:
    names = map(str, itertools.count())
    assert [len(batch) for batch in itertools.islice(batches(names, first=2, max_size=8, key=str), 4)] == [2, 4, 8, 8]
    assert next(names) == "22"


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
