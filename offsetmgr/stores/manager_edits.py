"""Edits of an offset manager's groups by conditional commits.

An edit reads the offsets, decides, and sends a commit on the condition that the offsets have not changed since the
read. If the manager rejects the condition, the edit reads and decides again. The manager checks the condition and
appends in one step, and a commit in flight makes the condition fail (see
`offsetmgr.kafka.protocol.conditional_commit`), so an edit is atomic for each partition, including deletions.

If the server does not announce conditional commits (a broker, an older manager, or a store without them), the edit
compares the offsets just before the write instead, and its result reports that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, ServerError, UnsupportedOperation, value_of
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, NO_OFFSET, Offset, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.conditional_commit import commit_if
from offsetmgr.kafka.client.offset_commits import NotAMember
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.protocol_edits import COMPARED_FIELDS, ProtocolEdits, decide, edit_each, group_id_error

CONDITIONAL: Final = "the manager compared"
"""The value of `GroupEditResult.how` for conditional commits."""
_NOT_WRITTEN: Final = "nothing had to be written"


class ManagerEdits(ProtocolEdits):
    """Reads and edits of the groups of offset managers."""

    async def _edit_conditionally(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        valid_groups = [edit.group for edit in edits if edit.changes and group_id_error(edit.group) is None]
        fetched = await self._client.fetch(dict.fromkeys(valid_groups), deadline)

        async def one(edit: GroupEdit) -> GroupEditResult:
            return await self._edit_group(edit, value_of(fetched[edit.group]), deadline)

        return await edit_each(edits, one)

    async def _edit_group(self, edit: GroupEdit, current: FetchedGroup, deadline: float) -> GroupEditResult:
        progress = _EditProgress(edit)
        retries = Retries(deadline)
        while True:
            progress.decide(current)
            if not progress.todo:
                break
            try:
                values = {tp: edit.changes[tp].after for tp in progress.todo}
                done = await commit_if(self._client, edit.group, values, progress.conditions, deadline)
            except UnsupportedOperation:
                return await self._compare_and_write(edit, deadline, None)
            except NotAMember:
                progress.fail(await self._group_active_error(edit.group, deadline))
                break
            except OffsetMgrError as error:
                progress.fail(error)
                break
            if not progress.apply_responses(done.outcomes, repeated=done.retried):
                break
            if not await retries.pause():
                progress.fail_remaining_as_conflicts()
                break
            try:
                current = await self.fetch(edit.group, progress.todo, deadline)
            except OffsetMgrError as error:
                progress.fail(error)
                break
        return GroupEditResult(edit.group, progress.result(), how=CONDITIONAL if progress.written else _NOT_WRITTEN)


class _EditProgress:
    """The state of one edit: the outcomes so far, and the partitions that must still be written, each with its
    condition."""

    def __init__(self, edit: GroupEdit) -> None:
        self._group, self._changes, self._whole = edit.group, edit.changes, edit.whole
        self._outcomes: dict[TopicPartition, ChangeOutcome] = {}
        self._current = FetchedGroup({}, {})
        self._in_doubt: set[TopicPartition] = set()
        """Partitions for which an earlier attempt may have succeeded although its response was lost."""
        self.todo: Sequence[TopicPartition] = list(edit.changes)
        self.written = False

    @property
    def conditions(self) -> dict[TopicPartition, int]:
        offsets = self._current.offsets
        return {tp: offsets[tp].offset if tp in offsets else NO_OFFSET for tp in self.todo}

    def decide(self, current: FetchedGroup) -> None:
        """Decides again on the remaining partitions, given the current offsets of the group."""
        for tp in [tp for tp in self.todo if tp in self._in_doubt]:
            found = current.offsets.get(tp, ABSENT)
            if tp not in current.errors and same_value(found, self._changes[tp].after, COMPARED_FIELDS):
                self._outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN, self._current.offsets.get(tp, ABSENT))
        changes: Mapping[TopicPartition, Change] = {
            tp: self._changes[tp] for tp in self.todo if tp not in self._outcomes
        }
        decided = decide(self._group, changes, current, whole=self._whole and not self.written)
        self._outcomes |= decided.outcomes
        self._current, self.todo = current, decided.todo

    def apply_responses(self, results: Mapping[TopicPartition, OffsetMgrError | None], *, repeated: bool) -> bool:
        """Records the manager's responses. Returns whether a condition failed, so that the edit must read and decide
        again; ``repeated`` means that the client sent the request more than once."""
        again: list[TopicPartition] = []
        for tp in self.todo:
            error = results.get(tp, ServerError(str(tp), "the manager's response does not contain it"))
            if error is None:
                self.written = True
                self._outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN, self._current_offset(tp))
            elif isinstance(error, Conflict):
                again.append(tp)
                if repeated:
                    self._in_doubt.add(tp)
            else:
                self._outcomes[tp] = ChangeOutcome(EditStatus.FAILED, self._current_offset(tp), error)
        self.todo = again
        return bool(again)

    def fail(self, error: OffsetMgrError) -> None:
        for tp in self.todo:
            self._outcomes[tp] = ChangeOutcome(EditStatus.FAILED, self._current_offset(tp), error)

    def fail_remaining_as_conflicts(self) -> None:
        for tp in self.todo:
            error = Conflict(str(tp), "other clients kept changing it", "try again when the group is quiet")
            self._outcomes[tp] = ChangeOutcome(EditStatus.FAILED, self._current_offset(tp), error)

    def result(self) -> dict[TopicPartition, ChangeOutcome]:
        """Returns the outcomes in the order of the changes."""
        return {tp: self._outcomes[tp] for tp in self._changes}

    def _current_offset(self, tp: TopicPartition) -> Offset:
        return self._current.offsets.get(tp, ABSENT)
