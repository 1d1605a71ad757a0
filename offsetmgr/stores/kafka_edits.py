"""How edits of Kafka groups are guarded: the group lock, or a comparison just before the write.

Ordering contract under the lock: join, *then* read, compare, commit with the generation, leave.  The lock is imported
where it is taken: most commands never do.
"""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.errors import OffsetMgrError
from offsetmgr.model import GroupDescription
from offsetmgr.stores.base import GroupEdit, GroupEditResult, Guard
from offsetmgr.stores.deciding import all_failed, bad_group, carry_out, decide
from offsetmgr.stores.wired_edits import COMPARED, WiredEdits
from offsetmgr.wire.connection import Address
from offsetmgr.wire.requests import FetchedGroup

NEW_GROUP: Final = "the group did not exist in Kafka"


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
            again = (await self._client.fetch({edit.group: list(edit.changes)}, deadline))[edit.group]
            if isinstance(again, OffsetMgrError):
                raise again
            return await self._simple(edit, again, COMPARED, deadline, at)
        if edit.guard is not Guard.FENCED and state.state == "DEAD" and not held.offsets and not held.errors:
            return await self._simple(edit, held, NEW_GROUP, deadline, at, decided)
        from offsetmgr.wire.grouplock import locked

        # Asking for all is the shorter question; for a few of many it would be the longer answer.
        asked = None if len(held.offsets) <= 2 * len(edit.changes) else list(edit.changes)
        async with locked(self._client, edit.group, deadline, at) as lock:
            held = await lock.fetch(asked)
            return GroupEditResult(edit.group, await carry_out(edit.changes, held, lock.commit, lock.delete))
