"""How edits of Kafka groups are guarded: the group lock, or a comparison just before the write.

Ordering contract under the lock: join, *then* read, compare, commit with the generation, leave.  The lock is imported
where it is taken: most commands never do.
"""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.errors import LockLost, OffsetMgrError
from offsetmgr.model import GroupDescription
from offsetmgr.stores.base import GroupEdit, GroupEditResult, Guard
from offsetmgr.stores.deciding import all_failed, bad_group, carry_out, decide
from offsetmgr.stores.wired_edits import WiredEdits
from offsetmgr.wire.connection import Address
from offsetmgr.wire.requests import FetchedGroup

_LOCK_ATTEMPTS: Final = 3


class KafkaEdits(WiredEdits):
    """See `WiredEdits`."""

    async def _compared(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        sound = [edit.group for edit in edits if edit.changes and bad_group(edit.group) is None]
        described, fetched = await asyncio.gather(
            self._client.describe(sound, deadline),
            self._client.fetch(dict.fromkeys(sound), deadline),
        )

        async def one(edit: GroupEdit) -> GroupEditResult:
            if not edit.changes:
                return GroupEditResult(edit.group, {})
            try:
                bad = bad_group(edit.group)
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

            raise group_active(edit.group, [str(member) for member in state.members], state.lock_ends_s)
        decided = decide(edit.changes, held)
        if not decided.todo:
            return GroupEditResult(edit.group, decided.outcomes, how="nothing had to be written")
        at = Address.parse(state.coordinator)
        if edit.guard is Guard.COMPARE:
            return await self._compare_and_write(edit, deadline, at)
        from offsetmgr.wire.grouplock import locked

        # Asking for all partitions is the shorter request. But the answer leaves out partitions whose only commit
        # belongs to an open transaction, and it is long where a few partitions of many are edited.
        few_of_many = len(held.offsets) > 2 * len(edit.changes)
        asked = list(edit.changes) if few_of_many or edit.changes.keys() - held.offsets.keys() else None
        for attempts_left in reversed(range(_LOCK_ATTEMPTS)):
            try:
                async with locked(self._client, edit.group, deadline, at) as lock:
                    found = await lock.fetch(asked)
                    return GroupEditResult(edit.group, await carry_out(edit.changes, found, lock.commit, lock.delete))
            except LockLost:
                # This process was stopped for longer than the lock's session. Nothing was written: read again.
                if not attempts_left or asyncio.get_running_loop().time() >= deadline:
                    raise
        raise AssertionError("the last attempt returns or raises")
