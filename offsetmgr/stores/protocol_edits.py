"""Reads and edits of groups over Kafka's protocol that brokers and offset managers have in common.

Asyncio over `offsetmgr.kafka`. `kafka_edits` and `manager_edits` guard edits. Rarely used parts of the client are
imported where they are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import GroupActive, OffsetMgrError, TimedOut
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
)
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.offset_commits import NotAMember
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.conditional_edit import EditDecision, Outcomes, all_failed, bad_group, execute, malformed, scanned

COMPARED: Final = "read and compared just before the write, which was not conditional"
_STALE_AFTER_S: Final = 0.05
"""Seconds after which a value is read again before it is compared and overwritten: only a stopped process or a very
busy machine takes so long."""
_ANSWERED_WITHIN_S: Final = 1.0
"""Seconds after which a response counts as old: a process that was stopped reads it when it continues."""
_ATTEMPTS: Final = 20
OVERWRITTEN: Final = "nothing was compared: the last commit wins, as among consumers"


class _Stale(Exception):
    """The compared values were read too long ago; nothing was written."""


class ProtocolEdits:
    """Executes batches of reads and edits of different groups. Use it within the client's event loop."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    def deadline(self) -> float:
        """Returns the deadline of a call that starts now, in the loop's time."""
        return asyncio.get_running_loop().time() + self._timeout

    async def fetch(self, group: str, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the offsets of one group. Raises `OffsetMgrError`."""
        found = bad_group(group) or (await self._client.fetch({group: partitions}, deadline))[group]
        if isinstance(found, OffsetMgrError):
            raise found
        return found

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group. Raises `GroupActive`, `GroupNotFound`, others."""
        try:
            await self._client.delete_group(group, deadline)
        except GroupActive:
            raise await self._active(group, deadline) from None

    async def scan(self, groups: list[str]) -> list[GroupOffsets]:
        """Returns all offsets of the groups, one result for each. Raises only if no broker was ever reached."""
        good = [group for group in groups if bad_group(group) is None]
        found: dict[str, FetchedGroup | OffsetMgrError] = dict(
            await self._client.fetch(dict.fromkeys(good), self.deadline())
        )
        return [scanned(group, bad_group(group) or found[group]) for group in groups]

    async def scan_partitions(self, asked: list[tuple[str, Sequence[TopicPartition]]]) -> list[GroupOffsets]:
        """Returns the offsets of the given partitions of each group. Raises the errors of `scan`."""
        good = {group: partitions for group, partitions in asked if bad_group(group) is None}
        found: dict[str, FetchedGroup | OffsetMgrError] = dict(await self._client.fetch(good, self.deadline()))
        return [scanned(group, bad_group(group) or found[group]) for group, _ in asked]

    async def edit(self, edits: list[GroupEdit]) -> list[GroupEditResult]:
        """Returns one result for each edit; the edits must be of different groups. Raises only if no broker was ever
        reached."""
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
        """Executes edits that are plain commits: one lookup of all coordinators, then one request for each group."""
        sound = [edit.group for edit in edits if bad_group(edit.group) is None]
        where: dict[str, Address | OffsetMgrError] = {}
        try:
            where = await self._client.find_coordinators(sound, deadline) if sound else {}
        except OffsetMgrError as error:
            if not self._client.reached or not error.retriable:
                raise

        async def one(edit: GroupEdit) -> GroupEditResult:
            refusals = {tp: bad for tp, change in edit.changes.items() if (bad := malformed(tp, change.after))}
            decided = EditDecision(
                {tp: ChangeOutcome(EditStatus.FAILED, None, bad) for tp, bad in refusals.items()},
                [tp for tp in edit.changes if tp not in refusals],
            )
            found = where.get(edit.group)
            at = found if isinstance(found, Address) else None
            try:
                if bad := bad_group(edit.group):
                    raise bad
                result = await self._simple(edit, FetchedGroup({}, {}), OVERWRITTEN, deadline, at, decided)
            except OffsetMgrError as error:
                return all_failed(edit, error)
            unread = {tp: outcome._replace(before=None) for tp, outcome in result.outcomes.items()}
            return GroupEditResult(edit.group, unread, result.atomic, result.how)

        return list(await asyncio.gather(*map(one, edits)))

    async def _compared(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        """Executes edits that depend on the current offsets."""
        raise NotImplementedError

    async def _compare_and_write(
        self, edit: GroupEdit, deadline: float, at: Address | None, how: str = COMPARED
    ) -> GroupEditResult:
        """Reads, compares and writes without the lock."""

        async def write(held: FetchedGroup, read_at: float) -> GroupEditResult:
            return await self._simple(edit, held, how, deadline, at, read_at=read_at)

        return await self._just_read(edit.group, list(edit.changes), write, deadline)

    async def recommit(self, group: str, deadline: float) -> GroupEditResult:
        """Commits the group's offsets again without the lock, which restarts their retention."""

        async def write(held: FetchedGroup, read_at: float) -> GroupEditResult:
            edit = GroupEdit(group, {tp: Change(committed.value()) for tp, committed in held.offsets.items()})
            unread = {tp: ChangeOutcome(EditStatus.FAILED, None, error) for tp, error in held.errors.items()}
            decided = EditDecision({}, list(edit.changes))
            done = await self._simple(edit, held, COMPARED, deadline, None, decided, read_at)
            return GroupEditResult(group, {**done.outcomes, **unread}, atomic=False, how=COMPARED)

        return await self._just_read(group, None, write, deadline)

    async def _just_read(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        write: Callable[[FetchedGroup, float], Awaitable[GroupEditResult]],
        deadline: float,
    ) -> GroupEditResult:
        """Passes the offsets and the time of the read to ``write``. A process that was stopped before the write reads
        again."""
        now = asyncio.get_running_loop().time
        for attempts_left in reversed(range(_ATTEMPTS)):
            asked_at = now()
            held = await self.fetch(group, partitions, deadline)
            try:
                if now() - asked_at > _ANSWERED_WITHIN_S:
                    raise _Stale
                return await write(held, now())
            except _Stale:
                if not attempts_left:
                    why = "this process was stopped between reading and writing, again and again"
                    raise TimedOut(f"group {group}", why) from None
        raise AssertionError("the last attempt returns or raises")

    async def _simple(
        self,
        edit: GroupEdit,
        held: FetchedGroup,
        how: str,
        deadline: float,
        at: Address | None,
        decided: EditDecision | None = None,
        read_at: float | None = None,
    ) -> GroupEditResult:
        """Writes without the lock. A group that has received members since rejects the write itself.

        Raises `_Stale`, and writes nothing, if ``held`` was read (at ``read_at``, in the loop's time) too long ago.
        """

        async def write(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Outcomes:
            if read_at is not None and asyncio.get_running_loop().time() - read_at > _STALE_AFTER_S:
                raise _Stale
            return await self._client.commit(edit.group, offsets, deadline, at, edit.committer)

        async def erase(partitions: Sequence[TopicPartition]) -> Outcomes:
            from offsetmgr.kafka.groups.lock_membership import delete, non_member

            address = await self._client.coordinator(edit.group, deadline)
            connection = await self._client.node(address).connection(deadline)
            compared = held.offsets if read_at is not None else None
            return await delete(connection, non_member(edit.group), partitions, deadline, compared)

        try:
            outcomes = await execute(edit.changes, held, write, erase, decided)
        except NotAMember:
            raise await self._active(edit.group, deadline) from None
        return GroupEditResult(edit.group, outcomes, atomic=False, how=how)

    async def _active(self, group: str, deadline: float) -> GroupActive:
        """Returns the error for a group with members."""
        from offsetmgr.kafka.groups.lock_membership import active_members_error

        state = (await self._client.describe([group], deadline))[group]
        if not isinstance(state, GroupDescription):
            return active_members_error(group, ())
        return active_members_error(group, [str(member) for member in state.members], state.lock_ends_s)


def _overwrites(edit: GroupEdit) -> bool:
    """Returns whether the edit may be executed without a read."""
    return (
        edit.guard is Guard.OVERWRITE
        and bool(edit.changes)
        and all(change.allow_rewind and change.expected is None for change in edit.changes.values())
    )
