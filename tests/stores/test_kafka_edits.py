"""The decisions for an edit of a Kafka group, and streams of edits. No servers."""

import asyncio
import itertools
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offsetmgr.core import errors
from offsetmgr.core.errors import GroupActive, MalformedData, TimedOut, UnsupportedOperation
from offsetmgr.core.model import ABSENT, Committed, GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, CommitErrors, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.kafka.client.client import Client, EventLoopThread, batches, run_batches
from offsetmgr.kafka.groups.group_inspection import check_supported
from offsetmgr.kafka.groups.group_takeover import assign_without, settled
from offsetmgr.kafka.protocol.requests import (
    FetchedGroup,
    MemberSubscription,
    decode_subscription,
    encode_subscription,
)
from offsetmgr.stores.protocol_edits import ProtocolEdits, decide, execute

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


# --- unconditional writes after a comparison: an offset that was read too long ago is read again before the write


TP = TopicPartition("t", 0)


class Edits(ProtocolEdits):
    """Edits of a group whose offset is 100. A consumer commits 200 while this process is stopped."""

    def __init__(self) -> None:
        self.at = 100

        async def commit(group: str, offsets: dict[TopicPartition, OffsetAndMetadata], *_: object) -> dict[Any, None]:
            assert group
            self.at = offsets[TP].offset
            return dict.fromkeys(offsets)

        super().__init__(cast(Client, SimpleNamespace(commit=commit)), 120)
        self.stops = 1

    async def fetch(self, *_: object) -> FetchedGroup:
        return FetchedGroup({TP: Committed(self.at)}, {})

    async def _write_as_simple_consumer(self, *arguments: Any, **named: Any) -> GroupEditResult:
        if self.stops:
            self.stops -= 1
            self.at = 200
            time.sleep(0.1)  # the process pauses, as after SIGSTOP
        return await super()._write_as_simple_consumer(*arguments, **named)


def test_a_process_that_was_stopped_between_reading_and_writing_reads_again() -> None:
    edits = Edits()

    async def edit() -> GroupEditResult:
        return await edits._compare_and_write(
            GroupEdit("g", {TP: Change(OffsetAndMetadata(150))}), edits.deadline(), None
        )

    result = asyncio.run(edit())
    assert result.outcomes[TP].status is EditStatus.FAILED
    assert result.outcomes[TP].before == Committed(200)
    assert edits.at == 200


# --- the assignment that leaves out edited partitions, and the subscription that it reads


def t(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def owning(topic: str, *numbers: int) -> MemberSubscription:
    return MemberSubscription((topic,), tuple(map(t, numbers)))


U = TopicPartition("u", 0)


@pytest.mark.parametrize(
    ("edited", "members", "topics", "assigned"),
    [
        ({t(0)}, {"a": owning("t", 0, 1), "b": owning("t", 2)}, {"t": 4}, {"a": [t(1), t(3)], "b": [t(2)]}),
        (set(), {"a": owning("t", 0), "b": owning("t", 0, 1)}, {"t": 2}, {"a": [], "b": [t(1)]}),  # owned by both
        (set(), {"a": owning("t"), "b": owning("u", 0)}, {"t": 1, "u": 1}, {"a": [t(0)], "b": [U]}),
        (set(), {"a": owning("t"), "b": owning("u", 0)}, {}, {"a": [], "b": []}),
    ],
)
def test_subscribed_members_keep_what_they_alone_own_except_the_edited_partitions(edited, members, topics, assigned):
    assert assign_without(edited, members, topics) == assigned


def test_owned_partitions_are_read_from_version_1_on() -> None:
    assert decode_subscription(encode_subscription(["t", "u"])) == MemberSubscription(("t", "u"))
    topics = struct.pack(">i", 1) + struct.pack(">h", 1) + b"t"
    owned = topics + struct.pack(">iii", 2, 4, 7)
    for version, rest in ((1, b""), (2, struct.pack(">i", 9))):
        data = struct.pack(">h", version) + topics + struct.pack(">i", -1) + owned + rest
        assert decode_subscription(data) == MemberSubscription(("t",), (t(4), t(7)))
    with pytest.raises(MalformedData):
        decode_subscription(struct.pack(">h", 1) + topics)


# --- an edit of a running group first waits until the group's rebalance is complete, and is refused for some groups


MEMBER = GroupMember("member", "client", "host")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for a timer: its clock advances to the time of the timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            self.now += timeout or 0
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


class SlowCoordinator:
    """Needs 0.15 s for each description of the group."""

    def __init__(self, state: str) -> None:
        self._described = GroupDescription("g", state, members=(MEMBER,))

    async def describe(self, groups: Sequence[str], deadline: float) -> dict[str, GroupDescription]:
        await asyncio.sleep(0.15)
        if asyncio.get_running_loop().time() >= deadline:
            raise TimedOut("group g")
        return {"g": self._described}


def wait(state: str) -> GroupDescription:
    async def run() -> GroupDescription:
        client: Any = SlowCoordinator(state)
        # The second description begins at 0.25 s.
        return await settled(client, "g", asyncio.get_running_loop().time() + 0.3)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


def test_a_group_that_a_stopped_static_member_keeps_rebalancing_is_returned_at_the_deadline() -> None:
    for state in ("ASSIGNING", "RECONCILING"):
        assert wait(state).state == state
    with pytest.raises(GroupActive, match="its rebalance does not end: the state is PREPARING_REBALANCE"):
        wait("PREPARING_REBALANCE")


@pytest.mark.parametrize(
    ("protocol_type", "assignor", "reason"),
    [
        ("connect", "sessioned", "are no consumers but a Kafka Connect cluster"),
        ("sr", "v0", "are no consumers but a Schema Registry cluster"),
        ("other", "x", "are no consumers but other applications"),
        ("consumer", "stream", "are Kafka Streams applications, which keep state"),
    ],
)
def test_members_that_are_no_plain_consumers_are_named(protocol_type: str, assignor: str, reason: str) -> None:
    leave_group = {13: (0, 5)}
    with pytest.raises(UnsupportedOperation, match=reason) as raised:
        check_supported(GroupDescription("shop", "STABLE", protocol_type, assignor), leave_group)
    assert raised.value.hint.startswith("stop ")
