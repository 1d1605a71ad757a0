"""Guards edits of an offset manager's groups with conditions that the manager checks.

It reads, decides, and commits on the condition that the read values are still committed; otherwise it reads and decides
again. The manager checks and appends in one step, and commits in flight break the condition (see
`offsetmgr.kafka.protocol.conditional_commit`), so an edit is atomic for each partition, including deletions.

If the server does not announce conditions (a broker, an older manager, a store without them), offsets are compared just
before the write, and the result records that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, ServerError, UnsupportedOperation
from offsetmgr.core.model import ABSENT, Offset, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult, same_value
from offsetmgr.kafka.client.conditional_commit import commit_if
from offsetmgr.kafka.client.offset_commits import NotAMember
from offsetmgr.kafka.client.retries import backoff
from offsetmgr.kafka.protocol.conditional_commit import NO_OFFSET
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.conditional_edit import KEPT, all_failed, bad_group, decide
from offsetmgr.stores.protocol_edits import ProtocolEdits

CONDITIONAL: Final = "the manager compared"
_NOT_WRITTEN: Final = "nothing had to be written"


class ManagerEdits(ProtocolEdits):
    """The edits of offset managers."""

    async def _compared(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        sound = [edit.group for edit in edits if edit.changes and bad_group(edit.group) is None]
        fetched = await self._client.fetch(dict.fromkeys(sound), deadline)

        async def one(edit: GroupEdit) -> GroupEditResult:
            if not edit.changes:
                return GroupEditResult(edit.group, {})
            try:
                if bad := bad_group(edit.group):
                    raise bad
                held = fetched[edit.group]
                if isinstance(held, OffsetMgrError):
                    raise held
                return await self._guarded(edit, held, deadline)
            except OffsetMgrError as error:
                return all_failed(edit, error)

        return list(await asyncio.gather(*map(one, edits)))

    async def _guarded(self, edit: GroupEdit, held: FetchedGroup, deadline: float) -> GroupEditResult:
        work = _Work(edit)
        for pause in backoff():
            work.decide(held)
            if not work.todo:
                break
            try:
                wanted = {tp: edit.changes[tp].after for tp in work.todo}
                done = await commit_if(self._client, edit.group, wanted, work.conditions, deadline)
            except UnsupportedOperation:
                return await self._compare_and_write(edit, deadline, None)
            except NotAMember:
                work.fail(await self._active(edit.group, deadline))
                break
            except OffsetMgrError as error:
                work.fail(error)
                break
            if not work.settle(done.outcomes, repeated=done.retried):
                break
            if asyncio.get_running_loop().time() + pause >= deadline:
                work.give_up()
                break
            await asyncio.sleep(pause)
            try:
                held = await self.fetch(edit.group, work.todo, deadline)
            except OffsetMgrError as error:
                work.fail(error)
                break
        return GroupEditResult(edit.group, work.result(), how=CONDITIONAL if work.written else _NOT_WRITTEN)


class _Work:
    """One edit in progress: decisions, and the partitions to write with their conditions."""

    def __init__(self, edit: GroupEdit) -> None:
        self._changes = edit.changes
        self._outcomes: dict[TopicPartition, ChangeOutcome] = {}
        self._before = FetchedGroup({}, {})
        self._unsure: set[TopicPartition] = set()
        """Partitions for which an earlier attempt may have succeeded."""
        self.todo: Sequence[TopicPartition] = list(edit.changes)
        self.written = False

    @property
    def conditions(self) -> dict[TopicPartition, int]:
        offsets = self._before.offsets
        return {tp: offsets[tp].offset if tp in offsets else NO_OFFSET for tp in self.todo}

    def decide(self, held: FetchedGroup) -> None:
        """Decides over the current offsets of the group."""
        for tp in [tp for tp in self.todo if tp in self._unsure]:
            found = held.offsets.get(tp, ABSENT)
            if tp not in held.errors and same_value(found, self._changes[tp].after, KEPT):
                self._outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN, self._before.offsets.get(tp, ABSENT))
        changes: Mapping[TopicPartition, Change] = {
            tp: self._changes[tp] for tp in self.todo if tp not in self._outcomes
        }
        decided = decide(changes, held)
        self._outcomes |= decided.outcomes
        self._before, self.todo = held, decided.todo

    def settle(self, results: Mapping[TopicPartition, OffsetMgrError | None], *, repeated: bool) -> bool:
        """Processes the manager's responses; returns whether a decision has to be repeated."""
        again: list[TopicPartition] = []
        for tp in self.todo:
            error = results.get(tp, ServerError(str(tp), "the manager did not answer for it"))
            if error is None:
                self.written = True
                self._outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN, self._held(tp))
            elif isinstance(error, Conflict):
                again.append(tp)
                if repeated:
                    self._unsure.add(tp)
            else:
                self._outcomes[tp] = ChangeOutcome(EditStatus.FAILED, self._held(tp), error)
        self.todo = again
        return bool(again)

    def fail(self, error: OffsetMgrError) -> None:
        for tp in self.todo:
            self._outcomes[tp] = ChangeOutcome(EditStatus.FAILED, self._held(tp), error)

    def give_up(self) -> None:
        for tp in self.todo:
            error = Conflict(str(tp), "others kept changing it", "try again when the group is quiet")
            self._outcomes[tp] = ChangeOutcome(EditStatus.FAILED, self._held(tp), error)

    def result(self) -> dict[TopicPartition, ChangeOutcome]:
        """Returns the outcomes in the order of the changes."""
        return {tp: self._outcomes[tp] for tp in self._changes}

    def _held(self, tp: TopicPartition) -> Offset:
        return self._before.offsets.get(tp, ABSENT)
