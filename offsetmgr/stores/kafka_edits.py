"""How edits of Kafka groups are carried out: which guard, what is compared, and what became of each partition.

Asyncio over `offsetmgr.wire`; `decide` and what it calls are pure. What only members need of the wire (the lock,
deletions) is imported where it is used: most commands never do.

Ordering contract under the lock: join, *then* read, compare, commit with the generation, leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from offsetmgr.errors import (
    Conflict,
    GroupActive,
    LockLost,
    OffsetMetadataTooLarge,
    OffsetMgrError,
    RewindRefused,
    ServerError,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.model import (
    ABSENT,
    Absent,
    Committed,
    GroupDescription,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
)
from offsetmgr.stores.base import (
    Capabilities,
    Change,
    ChangeOutcome,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
    Verdict,
    same_value,
)
from offsetmgr.wire.client import Client, NotAMember
from offsetmgr.wire.connection import Address
from offsetmgr.wire.requests import FetchedGroup

CAPABILITIES: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="group-lock")

NEW_GROUP: Final = "the group did not exist in Kafka"
COMPARED: Final = "read and compared just before the write, which was not conditional"
OVERWRITTEN: Final = "nothing was compared: the last commit wins, as among consumers"

_LONGEST_STRING: Final = 2**15 - 1

Outcomes = dict[TopicPartition, OffsetMgrError | None]
Write = Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Awaitable[Outcomes]]
Erase = Callable[[Sequence[TopicPartition]], Awaitable[Outcomes]]


class KafkaEdits:
    """Carries out batches of reads and edits of different groups. Use it within the client's event loop."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    def deadline(self) -> float:
        """When a call that starts now must have ended, in the loop's time."""
        return asyncio.get_running_loop().time() + self._timeout

    async def fetch(self, group: str, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """One group's offsets. Raises `OffsetMgrError`."""
        found = _bad_group(group) or (await self._client.fetch({group: partitions}, deadline))[group]
        if isinstance(found, OffsetMgrError):
            raise found
        return found

    async def delete_group(self, group: str, deadline: float) -> None:
        """Raises `GroupActive`, `GroupNotFound`, others."""
        try:
            await self._client.delete_group(group, deadline)
        except GroupActive:
            raise await self._active(group, deadline) from None

    async def scan(self, groups: list[str]) -> list[GroupOffsets]:
        """All offsets of the groups, one result each. Raises only if no broker was ever reached."""
        good = [group for group in groups if _bad_group(group) is None]
        found: dict[str, FetchedGroup | OffsetMgrError] = dict(
            await self._client.fetch(dict.fromkeys(good), self.deadline())
        )
        return [_scanned(group, _bad_group(group) or found[group]) for group in groups]

    async def edit(self, edits: list[GroupEdit]) -> list[GroupEditResult]:
        """One result an edit; no two edits may be of one group. Raises only if no broker was ever reached."""
        deadline = self.deadline()
        blind = [edit for edit in edits if _overwrites(edit)]
        if not blind:
            return await self._compared(edits, deadline)
        if len(blind) == len(edits):
            return await self._overwritten(blind, deadline)
        others = [edit for edit in edits if not _overwrites(edit)]
        both = await asyncio.gather(self._overwritten(blind, deadline), self._compared(others, deadline))
        return [*both[0], *both[1]]

    async def _overwritten(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        """Edits that are commits and no more: all coordinators in one question, then one request a group."""
        sound = [edit.group for edit in edits if _bad_group(edit.group) is None]
        where: dict[str, Address | OffsetMgrError] = {}
        try:
            where = await self._client.find_coordinators(sound, deadline) if sound else {}
        except OffsetMgrError as error:
            if not self._client.reached or not error.retriable:
                raise

        async def one(edit: GroupEdit) -> GroupEditResult:
            refusals = {tp: bad for tp, change in edit.changes.items() if (bad := _malformed(tp, change.after))}
            decided = Decided(
                {tp: ChangeOutcome(Verdict.FAILED, None, bad) for tp, bad in refusals.items()},
                [tp for tp in edit.changes if tp not in refusals],
            )
            found = where.get(edit.group)
            at = found if isinstance(found, Address) else None
            try:
                if bad := _bad_group(edit.group):
                    raise bad
                result = await self._simple(edit, FetchedGroup({}, {}), OVERWRITTEN, deadline, at, decided)
            except OffsetMgrError as error:
                return all_failed(edit, error)
            unread = {tp: outcome._replace(before=None) for tp, outcome in result.outcomes.items()}
            return GroupEditResult(edit.group, unread, result.atomic, result.how)

        return list(await asyncio.gather(*map(one, edits)))

    async def _compared(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        sound = [edit.group for edit in edits if edit.changes and _bad_group(edit.group) is None]
        described, fetched = await asyncio.gather(
            self._client.describe(sound, deadline),
            self._client.fetch(dict.fromkeys(sound), deadline),
        )

        async def one(edit: GroupEdit) -> GroupEditResult:
            if not edit.changes:
                return GroupEditResult(edit.group, {})
            try:
                bad = _bad_group(edit.group)
                if bad is not None:
                    raise bad
                state, held = described[edit.group], fetched[edit.group]
                if isinstance(state, OffsetMgrError):
                    raise state
                if isinstance(held, OffsetMgrError):
                    raise held
                return await self._edit(edit, state, held, deadline)
            except OffsetMgrError as error:
                return all_failed(edit, error)

        return list(await asyncio.gather(*map(one, edits)))

    async def _edit(
        self, edit: GroupEdit, state: GroupDescription, held: FetchedGroup, deadline: float
    ) -> GroupEditResult:
        if not state.idle or state.members:
            from offsetmgr.wire.membership import group_active

            raise group_active(edit.group, [str(member) for member in state.members])
        decided = decide(edit.changes, held)
        if not decided.todo:
            return GroupEditResult(edit.group, decided.outcomes, how="nothing had to be written")
        at = Address.parse(state.coordinator)
        if edit.guard is Guard.COMPARE:
            again = (await self._client.fetch({edit.group: list(edit.changes)}, deadline))[edit.group]
            if isinstance(again, OffsetMgrError):
                raise again
            return await self._simple(edit, again, COMPARED, deadline, at)
        if state.state == "DEAD" and not held.offsets and not held.errors:
            return await self._simple(edit, held, NEW_GROUP, deadline, at, decided)
        from offsetmgr.wire.grouplock import locked

        # Asking for all is the shorter question; for a few of many it would be the longer answer.
        asked = None if len(held.offsets) <= 2 * len(edit.changes) else list(edit.changes)
        async with locked(self._client, edit.group, deadline, at) as lock:
            held = await lock.fetch(asked)
            return GroupEditResult(edit.group, await carry_out(edit.changes, held, lock.commit, lock.delete))

    async def _simple(
        self,
        edit: GroupEdit,
        held: FetchedGroup,
        how: str,
        deadline: float,
        at: Address | None,
        decided: Decided | None = None,
    ) -> GroupEditResult:
        """Without the lock. A group that has got members since we looked refuses the write itself."""

        async def write(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Outcomes:
            return await self._client.commit(edit.group, offsets, deadline, at, edit.committer)

        async def erase(partitions: Sequence[TopicPartition]) -> Outcomes:
            from offsetmgr.wire.membership import delete

            address = await self._client.coordinator(edit.group, deadline)
            connection = await self._client.node(address).connection(deadline)
            return await delete(connection, edit.group, partitions, deadline)

        try:
            outcomes = await carry_out(edit.changes, held, write, erase, decided)
        except NotAMember:
            raise await self._active(edit.group, deadline) from None
        return GroupEditResult(edit.group, outcomes, atomic=False, how=how)

    async def _active(self, group: str, deadline: float) -> GroupActive:
        """The error for a group that turned out to have members."""
        from offsetmgr.wire.membership import group_active

        state = (await self._client.describe([group], deadline))[group]
        members = state.members if isinstance(state, GroupDescription) else ()
        return group_active(group, [str(member) for member in members])


class Decided(NamedTuple):
    """The outcomes that need no write (unchanged, refused, unreadable), and the partitions left to write."""

    outcomes: dict[TopicPartition, ChangeOutcome]
    todo: list[TopicPartition]


async def carry_out(
    changes: Mapping[TopicPartition, Change],
    held: FetchedGroup,
    write: Write,
    erase: Erase,
    decided: Decided | None = None,
) -> dict[TopicPartition, ChangeOutcome]:
    """Decides what is to be written over ``held`` (unless that is ``decided``), writes it, and tells what became of
    each partition.

    A failure of the commit as a whole is each of its partitions' outcome, and then nothing is erased either; what was
    decided without writing stays decided.  Raises `LockLost` if it was lost before anything was written.
    """
    outcomes, todo = decided or decide(changes, held)
    commits: dict[TopicPartition, OffsetAndMetadata] = {}
    erasures: list[TopicPartition] = []
    for tp in todo:
        after = changes[tp].after
        if after is None:
            erasures.append(tp)
        else:
            commits[tp] = after
    results: Outcomes = {}
    try:
        if commits:
            results |= await write(commits)
        if erasures:
            results |= await erase(erasures)
    except LockLost:
        if not results:
            raise
        results |= dict.fromkeys(erasures, LockLost("group lock", "was lost before the deletion"))
    except OffsetMgrError as error:
        results |= {tp: error for tp in todo if tp not in results}
    for tp in todo:
        before = held.offsets.get(tp, ABSENT)
        if tp not in results:
            silence = ServerError(str(tp), "the broker did not answer for it")
            outcomes[tp] = ChangeOutcome(Verdict.FAILED, before, silence)
        elif (failure := results[tp]) is None:
            outcomes[tp] = ChangeOutcome(Verdict.WRITTEN, before)
        else:
            outcomes[tp] = ChangeOutcome(Verdict.FAILED, before, failure)
    return {tp: outcomes[tp] for tp in changes}


def decide(changes: Mapping[TopicPartition, Change], held: FetchedGroup) -> Decided:
    """What each change comes to, over what the group holds."""
    outcomes: dict[TopicPartition, ChangeOutcome] = {}
    todo: list[TopicPartition] = []
    errors, offsets = held.errors, held.offsets
    for tp, change in changes.items():
        unreadable = errors.get(tp) if errors else None
        before = offsets.get(tp, ABSENT)
        if unreadable is not None:
            outcomes[tp] = ChangeOutcome(Verdict.FAILED, None, unreadable)
        elif (refusal := _malformed(tp, change.after) or _conflict(tp, change, before)) is not None:
            outcomes[tp] = ChangeOutcome(Verdict.FAILED, before, refusal)
        elif same_value(before, change.after, CAPABILITIES):
            outcomes[tp] = ChangeOutcome(Verdict.UNCHANGED, before)
        elif (rewind := _rewind(tp, change, before)) is not None:
            outcomes[tp] = ChangeOutcome(Verdict.FAILED, before, rewind)
        else:
            todo.append(tp)
    return Decided(outcomes, todo)


def _overwrites(edit: GroupEdit) -> bool:
    """Whether the edit may be, and shall be, carried out without reading first."""
    return (
        edit.guard is Guard.OVERWRITE
        and bool(edit.changes)
        and all(change.allow_rewind and change.expected is None for change in edit.changes.values())
    )


def all_failed(edit: GroupEdit, error: OffsetMgrError) -> GroupEditResult:
    """The result where the group as a whole was refused."""
    return GroupEditResult(
        edit.group, {tp: ChangeOutcome(Verdict.FAILED, None, error) for tp in edit.changes}, how="nothing was written"
    )


def _conflict(tp: TopicPartition, change: Change, before: Offset) -> OffsetMgrError | None:
    expected = change.expected
    if expected is None or expected is before or _offset_of(expected) == _offset_of(before):
        return None
    return Conflict(str(tp), f"expected {_said(expected)}, found {_said(before)}", actual=before)


def _rewind(tp: TopicPartition, change: Change, before: Offset) -> OffsetMgrError | None:
    if change.allow_rewind or change.after is None or not isinstance(before, Committed):
        return None
    if change.after.offset >= before.offset:
        return None
    return RewindRefused(
        str(tp), f"is at {before.offset}, and {change.after.offset} would lower it", "allow rewinds if this is meant"
    )


def _malformed(tp: TopicPartition, after: OffsetAndMetadata | None) -> OffsetMgrError | None:
    """What cannot even be said in a request."""
    if not 0 <= tp.partition < 2**31 or not _is_string(tp.topic):
        return UnknownTopicOrPartition(str(tp)[:300], "there can be no such topic or partition")
    if after is None:
        return None
    if not 0 <= after.offset < 2**63:
        return UsageError(str(tp), f"{after.offset} is not an offset")
    if after.metadata and len(after.metadata.encode()) > _LONGEST_STRING:
        return OffsetMetadataTooLarge(str(tp), f"metadata of {len(after.metadata)} characters")
    if after.leader_epoch is not None and not 0 <= after.leader_epoch < 2**31:
        return UsageError(str(tp), f"{after.leader_epoch} is not a leader epoch")
    return None


@lru_cache(maxsize=4096)
def _is_string(text: str) -> bool:
    return 0 < len(text.encode()) <= _LONGEST_STRING


def _bad_group(group: str) -> OffsetMgrError | None:
    if _is_string(group):
        return None
    return UsageError(f"group {group[:50]!r}", "is not a possible group id")


def _scanned(group: str, found: FetchedGroup | OffsetMgrError) -> GroupOffsets:
    if isinstance(found, OffsetMgrError):
        return GroupOffsets(group, {}, error=found)
    return GroupOffsets(group, found.offsets, found.errors)


def _offset_of(found: Offset) -> int | None:
    return None if isinstance(found, Absent) else found.offset


def _said(found: Offset) -> str:
    return "no commit" if isinstance(found, Absent) else f"offset {found.offset}"
