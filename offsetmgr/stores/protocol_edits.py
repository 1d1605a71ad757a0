"""Reads and edits of groups over Kafka's protocol. This module contains the code that is the same for brokers and
offset managers.

The subclasses in `kafka_edits` and `manager_edits` protect edits against concurrent writers. All calls are coroutines
that use the client of `offsetmgr.kafka`. Functions import rarely used parts of the client when they need them, so that
commands start fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import GroupActive, OffsetMgrError, TimedOut, UnsupportedOperation
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    ChangeOutcome,
    CommitErrors,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
)
from offsetmgr.core.outcome import value_of
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.background_loop import ClientThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.offset_commits import NotAMember
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.releases import DELETES_OFFSETS
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.conditional_edit import (
    EditDecision,
    all_failed,
    execute,
    group_id_error,
    group_offsets,
    partitions_to_read,
    value_error,
)

COMPARED: Final = "read and compared just before the write, which was not conditional"
"""The value of `GroupEditResult.how` for edits without a lock or a conditional commit."""
_MAX_READ_AGE_S: Final = 0.05
"""Maximum time in seconds between the read of the committed offsets and the write that is compared with them. The time
is exceeded only if the process was suspended or the machine is very busy. In both cases the offsets are read again."""
_MAX_RESPONSE_AGE_S: Final = 1.0
"""Maximum time in seconds between a request and its response. If this time is exceeded, the offsets are read again,
because a process that was suspended after the request receives an outdated response when it continues."""
_MAX_ATTEMPTS: Final = 20
OVERWRITTEN: Final = "nothing was compared: the last commit wins, as among consumers"
"""The value of `GroupEditResult.how` for commits with `Guard.OVERWRITE`."""


class _Stale(Exception):
    """Nothing was written, because the committed offsets for the comparison were read too long ago."""


class ProtocolEdits:
    """Reads and edits batches of groups. The methods run in the client's event loop."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    def deadline(self) -> float:
        """Returns the deadline of a call that starts now, as a time of the loop's clock."""
        return asyncio.get_running_loop().time() + self._timeout_s

    async def fetch(self, group: str, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the offsets of one group. Raises `OffsetMgrError`."""
        return value_of(group_id_error(group) or (await self.read({group: partitions}, deadline))[group])

    async def read(
        self, partitions: Mapping[str, Sequence[TopicPartition] | None], deadline: float
    ) -> dict[str, FetchedGroup | OffsetMgrError]:
        """Returns the offsets of many groups; the partitions None select all of a group. See `Client.fetch`."""
        return await self._client.fetch(partitions, deadline)

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group. Raises `GroupActive` with the members' names, `GroupNotFound`, and other errors of the
        client."""
        try:
            await self._client.delete_group(group, deadline)
        except GroupActive:
            raise await self._group_active_error(group, deadline) from None

    async def scan(self, groups: list[str]) -> list[GroupOffsets]:
        """Returns all offsets of the groups, one result for each. Raises only if the client has never reached a
        broker."""
        good = [group for group in groups if group_id_error(group) is None]
        found: dict[str, FetchedGroup | OffsetMgrError] = dict(await self.read(dict.fromkeys(good), self.deadline()))
        return [group_offsets(group, group_id_error(group) or found[group]) for group in groups]

    async def scan_partitions(self, requests: list[tuple[str, Sequence[TopicPartition]]]) -> list[GroupOffsets]:
        """Returns the offsets of the given partitions of each group. Raises the errors of `scan`."""
        good = {group: partitions for group, partitions in requests if group_id_error(group) is None}
        found: dict[str, FetchedGroup | OffsetMgrError] = await self.read(good, self.deadline())
        return [group_offsets(group, group_id_error(group) or found[group]) for group, _ in requests]

    async def edit(self, edits: list[GroupEdit]) -> list[GroupEditResult]:
        """Returns one result for each edit; the edits must be of different groups. Raises only if the client has never
        reached a broker."""
        deadline = self.deadline()
        unconditional = [edit for edit in edits if _overwrites(edit)]
        if not unconditional:
            return await self._edit_conditionally(edits, deadline)
        if len(unconditional) == len(edits):
            return await self._edit_unconditionally(unconditional, deadline)
        others = [edit for edit in edits if not _overwrites(edit)]
        both = await asyncio.gather(
            self._edit_unconditionally(unconditional, deadline), self._edit_conditionally(others, deadline)
        )
        return [*both[0], *both[1]]

    async def _edit_unconditionally(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        """Executes edits with `Guard.OVERWRITE`: looks up all coordinators at once, then sends one commit for each
        group."""
        valid_groups = [edit.group for edit in edits if group_id_error(edit.group) is None]
        where: dict[str, Address | OffsetMgrError] = {}
        try:
            where = await self._client.find_coordinators(valid_groups, deadline) if valid_groups else {}
        except OffsetMgrError as error:
            if not self._client.reached or not error.retriable:
                raise

        async def one(edit: GroupEdit) -> GroupEditResult:
            rejections = {tp: bad for tp, change in edit.changes.items() if (bad := value_error(tp, change.after))}
            decided = EditDecision(
                {tp: ChangeOutcome(EditStatus.FAILED, None, bad) for tp, bad in rejections.items()},
                [tp for tp in edit.changes if tp not in rejections],
            )
            found = where.get(edit.group)
            at = found if isinstance(found, Address) else None
            result = await self._write_as_simple_consumer(
                edit, FetchedGroup({}, {}), OVERWRITTEN, deadline, at, decided
            )
            unread = {tp: outcome._replace(before=None) for tp, outcome in result.outcomes.items()}
            return GroupEditResult(edit.group, unread, result.atomic, result.how)

        return await edit_each(edits, one)

    async def _edit_conditionally(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        """Executes edits that read the current offsets before they write."""
        raise NotImplementedError

    async def _compare_and_write(
        self, edit: GroupEdit, deadline: float, at: Address | None, how: str = COMPARED
    ) -> GroupEditResult:
        """Reads, compares and writes without a group lock, as a simple consumer."""

        async def write(current: FetchedGroup, read_at: float) -> GroupEditResult:
            return await self._write_as_simple_consumer(edit, current, how, deadline, at, read_at=read_at)

        return await self._write_after_read(edit.group, partitions_to_read(edit), write, deadline)

    async def recommit(
        self, group: str, deadline: float, leave_out: Collection[TopicPartition] = ()
    ) -> GroupEditResult:
        """Commits the group's offsets again without a group lock, to restart their retention, except those of
        ``leave_out``."""

        async def write(current: FetchedGroup, read_at: float) -> GroupEditResult:
            kept = ((tp, committed) for tp, committed in current.offsets.items() if tp not in leave_out)
            edit = GroupEdit(group, {tp: Change(committed.value()) for tp, committed in kept})
            unread = {tp: ChangeOutcome(EditStatus.FAILED, None, error) for tp, error in current.errors.items()}
            decided = EditDecision({}, list(edit.changes))
            done = await self._write_as_simple_consumer(edit, current, COMPARED, deadline, None, decided, read_at)
            return GroupEditResult(group, {**done.outcomes, **unread}, atomic=False, how=COMPARED)

        return await self._write_after_read(group, None, write, deadline)

    async def _write_after_read(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        write: Callable[[FetchedGroup, float], Awaitable[GroupEditResult]],
        deadline: float,
    ) -> GroupEditResult:
        """Reads offsets and passes them, with the time of the read, to ``write``. If ``write`` raises `_Stale`, reads
        and writes again.

        Raises `TimedOut` if too much time passed between read and write in every attempt.
        """
        now = asyncio.get_running_loop().time
        retries = Retries(backoff=Backoff.fixed(0, _MAX_ATTEMPTS - 1))
        while True:
            requested_at = now()
            current = await self.fetch(group, partitions, deadline)
            try:
                if now() - requested_at > _MAX_RESPONSE_AGE_S:
                    raise _Stale
                return await write(current, now())
            except _Stale:
                if not await retries.pause():
                    why = f"this process was paused for too long between read and write in all {_MAX_ATTEMPTS} attempts"
                    raise TimedOut(f"group {group}", why) from None

    async def _write_as_simple_consumer(
        self,
        edit: GroupEdit,
        current: FetchedGroup,
        how: str,
        deadline: float,
        at: Address | None,
        decided: EditDecision | None = None,
        read_at: float | None = None,
    ) -> GroupEditResult:
        """Writes without a group lock. The coordinator rejects the write if members have joined the group since the
        read.

        Raises `_Stale`, and writes nothing, if too much time has passed since ``read_at``, the time (by the loop's
        clock) at which ``current`` was read.
        """

        async def write(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> CommitErrors:
            if read_at is not None and asyncio.get_running_loop().time() - read_at > _MAX_READ_AGE_S:
                raise _Stale
            return await self._client.commit(edit.group, offsets, deadline, at, edit.committer)

        async def erase(partitions: Sequence[TopicPartition]) -> CommitErrors:
            from offsetmgr.kafka.groups.lock_membership import delete, non_member

            address = await self._client.coordinator(edit.group, deadline)
            connection = await self._client.node(address).connection(deadline)
            if not edit.group and DELETES_OFFSETS.supported_by(connection.versions):
                return await self._erase_all(edit.group, partitions, deadline)
            compared = current.offsets if read_at is not None else None
            return await delete(connection, non_member(edit.group), partitions, deadline, compared)

        try:
            outcomes = await execute(edit, current, write, erase, decided)
        except NotAMember:
            raise await self._group_active_error(edit.group, deadline) from None
        return GroupEditResult(edit.group, outcomes, atomic=False, how=how)

    async def _erase_all(self, group: str, partitions: Sequence[TopicPartition], deadline: float) -> CommitErrors:
        """Deletes the group with the empty id, of which brokers do not delete single offsets."""
        error = None
        found = await self.fetch(group, None, deadline)
        if {*found.offsets, *found.errors} <= set(partitions):
            await self.delete_group(group, deadline)
        else:
            why = "brokers delete the offsets of the group with the empty id only together"
            error = UnsupportedOperation(f"group {group!r}", why, "delete all of its offsets")
        return dict.fromkeys(partitions, error)

    async def _group_active_error(self, group: str, deadline: float) -> GroupActive:
        """Returns the error for a group that has members, with their names."""
        from offsetmgr.kafka.groups.lock_membership import active_members_error

        state = (await self._client.describe([group], deadline))[group]
        if not isinstance(state, GroupDescription):
            return active_members_error(group, ())
        return active_members_error(group, [str(member) for member in state.members], state.lock_ends_s)


async def edit_each(
    edits: list[GroupEdit], edit_group: Callable[[GroupEdit], Awaitable[GroupEditResult]]
) -> list[GroupEditResult]:
    """Executes the edits at the same time. An error of ``edit_group`` is the result of its edit."""

    async def one(edit: GroupEdit) -> GroupEditResult:
        if not edit.changes:
            return GroupEditResult(edit.group, {})
        try:
            if bad := group_id_error(edit.group):
                raise bad
            return await edit_group(edit)
        except OffsetMgrError as error:
            return all_failed(edit, error)

    return list(await asyncio.gather(*map(one, edits)))


def _overwrites(edit: GroupEdit) -> bool:
    """Returns whether the edit may be executed without reading the current offsets first."""
    return (
        edit.guard is Guard.OVERWRITE
        and bool(edit.changes)
        and all(change.allow_rewind and change.expected is None for change in edit.changes.values())
    )


class StoreThread(ClientThread):
    """The client of a store and its thread, with the object that reads and edits groups."""

    def __init__(self, client: Client, edits: ProtocolEdits, timeout_s: float) -> None:
        super().__init__(client, timeout_s)
        self.edits = edits
