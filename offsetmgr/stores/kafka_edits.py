"""Edits of Kafka groups, protected by the group lock or by a comparison just before the write.

Ordering contract under the group lock: join the group, *then* read, compare, commit with the generation, and leave the
group. The lock's module is imported only when an edit needs the lock, because most commands never need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from offsetmgr.core.errors import Conflict, GroupNotFound, LockLost, OffsetMgrError
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, Absent, GroupDescription, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
)
from offsetmgr.core.outcome import value_of
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.releases import DELETES_GROUPS, HOLDS_LOCK, KEEPS_EPOCHS
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.conditional_edit import (
    decide,
    execute,
    group_id_error,
    partitions_to_read,
    without_epochs,
)
from offsetmgr.stores.protocol_edits import COMPARED, ProtocolEdits, edit_each
from offsetmgr.stores.unseen_offsets import UnseenOffsets

UNLOCKED: Final = "read and compared just before the write, and read again after it: Kafka before 0.9 has no group lock"
"""The value of `GroupEditResult.how` for brokers that do not support the group lock."""
COMPARED_FIELDS_WITHOUT_LOCK: Final = Capabilities(
    metadata=True, leader_epoch=False, commit_timestamp=False, conditional="none"
)
"""The fields of a commit that are stored by brokers without support for the group lock."""

_LOCK_BACKOFF: Final = Backoff.fixed(0, max_retries=2)
"""Retries of an edit that has lost its group lock. There is no pause before a retry, because the loss of a lock already
takes longer than a session."""


class KafkaEdits(ProtocolEdits):
    """Reads and edits of the groups of a Kafka cluster."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        super().__init__(client, timeout_s)
        self.unseen = UnseenOffsets(client)

    async def read(
        self, partitions: Mapping[str, Sequence[TopicPartition] | None], deadline: float
    ) -> dict[str, FetchedGroup | OffsetMgrError]:
        """Like the method of the base class. Whole groups have an error for each pending first commit, which the
        coordinators do not list."""
        found = await super().read(partitions, deadline)
        if whole := [group for group, named in partitions.items() if named is None]:
            await self.unseen.add_pending(whole, found, deadline)
        return found

    async def scan(self, groups: list[str]) -> list[GroupOffsets]:
        """Like the base class. The error of a share group, and of a group of the Streams protocol without offsets, is
        `OtherGroupKind`."""
        found = await super().scan(groups)
        unknown = [
            one.group
            for one in found
            if not (one.offsets or one.errors) and (one.error is None or isinstance(one.error, GroupNotFound))
        ]
        if not unknown:
            return found
        from offsetmgr.kafka.client.group_kinds import other_kinds

        kinds = await other_kinds(self._client, unknown, self.deadline())
        return [GroupOffsets(one.group, {}, error=kinds[one.group]) if one.group in kinds else one for one in found]

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group; on brokers that cannot delete groups, deletes all offsets of the group instead. Raises
        `GateRefused` if the group may have offsets that its coordinator does not list, and is not accepted."""
        if group in self.unseen.unproved and group not in self.unseen.accepted:
            await self.unseen.delete_by_proof(group, self.edit, deadline)
            return
        for reason in (await self.unseen.reasons([group], deadline, by_deletion=False)).values():
            raise reason
        at = await self._client.coordinator(group, deadline)
        if DELETES_GROUPS.supported_by(await self._client.versions(at, deadline)):
            await super().delete_group(group, deadline)
            return
        found = await self.fetch(group, None, deadline)
        if not found.offsets:
            raise GroupNotFound(f"group {group}", "it has no offsets")
        (result,) = await self._edit_conditionally(
            [GroupEdit(group, dict.fromkeys(found.offsets, Change(None)))], deadline
        )
        for error in result.failures.values():
            raise error

    async def _edit_conditionally(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        valid_groups = [edit.group for edit in edits if edit.changes and group_id_error(edit.group) is None]
        from offsetmgr.kafka.client.broker_permissions import denied_topics
        from offsetmgr.kafka.client.group_kinds import describe

        topics = {tp.topic for edit in edits if edit.whole for tp in partitions_to_read(edit)}
        described, fetched, denied = await asyncio.gather(
            describe(self._client, valid_groups, deadline),
            self._client.fetch(dict.fromkeys(valid_groups), deadline),
            denied_topics(self._client, topics, deadline),
        )

        async def one(edit: GroupEdit) -> GroupEditResult:
            state, current = value_of(described[edit.group]), value_of(fetched[edit.group])
            errors = current.errors | {tp: denied[tp.topic] for tp in edit.changes if tp.topic in denied}
            result = await self._edit(edit, state, current._replace(errors=errors), deadline)
            self.unseen.remember(edit, result)
            return result

        return await edit_each(edits, one)

    async def _edit(
        self, edit: GroupEdit, state: GroupDescription, current: FetchedGroup, deadline: float
    ) -> GroupEditResult:
        at = Address.parse(state.coordinator)
        versions = await self._client.versions(at, deadline)
        lockable = HOLDS_LOCK.supported_by(versions)
        if not KEEPS_EPOCHS.supported_by(versions):
            edit = replace(edit, changes=without_epochs(edit.changes))
        if lockable and (not state.idle or state.members):
            from offsetmgr.kafka.groups.lock_membership import active_members_error

            raise active_members_error(edit.group, [str(member) for member in state.members], state.lock_ends_s)
        decided = decide(edit.group, edit.changes, current, whole=edit.whole)
        if not decided.todo:
            return GroupEditResult(edit.group, decided.outcomes, how="nothing had to be written")
        if not lockable:
            return await self.unlocked(edit, deadline, at)
        if edit.guard is Guard.COMPARE or not edit.group:  # no client can join the group with the empty id
            return await self._compare_and_write(edit, deadline, at)
        from offsetmgr.kafka.groups.group_lock import acquire_lock

        # A request for all partitions is shorter than a request that names the partitions of the edit. It has two
        # disadvantages: the response omits partitions whose only commit belongs to an open transaction, and the
        # response is long if the group has many more partitions than the edit.
        few_of_many = len(current.offsets) > 2 * len(edit.changes)
        named = few_of_many or edit.changes.keys() - current.offsets.keys()
        read_partitions = partitions_to_read(edit) if named else None
        retries = Retries(deadline, _LOCK_BACKOFF)
        while True:
            try:
                async with acquire_lock(self._client, edit.group, deadline, at) as lock:
                    found = await lock.fetch(read_partitions, deadline)
                    write, erase = partial(lock.commit, deadline=deadline), partial(lock.delete, deadline=deadline)
                    return GroupEditResult(edit.group, await execute(edit, found, write, erase))
            except LockLost:
                # This process was suspended for longer than the lock's session timeout. Nothing was written, so the
                # edit starts again.
                if not await retries.pause():
                    raise

    async def unlocked(self, edit: GroupEdit, deadline: float, at: Address | None = None) -> GroupEditResult:
        """Edits a group on a broker without the group lock: reads, compares, writes, and reads again to confirm."""
        result = await self._compare_and_write(edit, deadline, at, UNLOCKED)
        written = [tp for tp, outcome in result.outcomes.items() if outcome.status is EditStatus.WRITTEN]
        if not written:
            return result
        try:
            after = await self.fetch(edit.group, written, deadline)
        except OffsetMgrError as error:
            return replace(result, how=_not_confirmed("the group", error))
        outcomes, how = dict(result.outcomes), result.how
        for tp in written:
            planned, found = edit.changes[tp].after, after.offsets.get(tp, ABSENT)
            if (unreadable := after.errors.get(tp)) is not None:
                how = _not_confirmed(str(tp), unreadable)
            elif not same_value(found, planned, COMPARED_FIELDS_WITHOUT_LOCK):
                outcomes[tp] = ChangeOutcome(
                    EditStatus.FAILED, outcomes[tp].before, _overwritten_error(tp, planned, found)
                )
        return replace(result, outcomes=outcomes, how=how)


def _not_confirmed(what: str, error: OffsetMgrError) -> str:
    return f"{COMPARED}; written, but not confirmed: offsetmgr could not read {what} again: {error}"


def _overwritten_error(tp: TopicPartition, planned: OffsetAndMetadata | None, found: Offset) -> Conflict:
    did = "deleted the offset" if planned is None else f"wrote {planned.offset}"
    said = "no commit" if isinstance(found, Absent) else f"offset {found.offset}"
    return Conflict(
        str(tp), f"offsetmgr {did} and then found {said}: another client commits to the group", actual=found
    )
