"""`RunningEdits`: edits of Kafka groups whose consumers run.

Ordering contract: take over the group, *then* read the before-images and make them durable, commit, let the members
back without the edited partitions, read again, leave, and watch the next commits of the members.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from offsetmgr.core.errors import Conflict, GroupActive, LockLost, OffsetMgrError
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, Committed, GroupDescription, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.core.plurals import count_of
from offsetmgr.core.retry import Backoff, Retries, is_retriable
from offsetmgr.core.running_store import RunningEditListener
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.groups.consumer_takeover import ConsumerTakeover, take_over_consumer_group
from offsetmgr.kafka.groups.group_inspection import is_consumer_group, reject_static_members
from offsetmgr.kafka.groups.group_takeover import GroupTakeover, settled, take_over
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.conditional_edit import COMPARED_FIELDS, all_failed, execute, group_id_error, partitions_to_read
from offsetmgr.stores.kafka_edits import KafkaEdits

_SETTLE_S: Final = 15.0
"""Seconds for which an edit waits until a rebalance of the group is complete."""
_TAKEOVER_S: Final = 20.0
"""Seconds within which the group must be taken over, read and written."""
_TRANSACTION_S: Final = 10.0
"""Seconds for which an edit waits until the open transactions that commit edited partitions have ended."""
_QUIET_S: Final = 0.5
"""Seconds for which the edited partitions stay unassigned after the members are back. A commit of such a partition in
this time comes from a member that held records which it had received before the edit."""
_WATCH_S: Final = 8.0
"""Seconds after the takeover in which the commits of the members are watched."""
_POLL_S: Final = 0.25
_MAX_REPEATS: Final = 2
LEAVE_S: Final = 12.0
"""Seconds within which a cancelled edit has left its group."""
_MAX_NAMED: Final = 3
_MAX_RECORDS_PER_S: Final = 1_000_000
"""No consumer processes more records of a partition in a second."""


@dataclass(slots=True)
class _Takeover:
    """The result of one takeover: the outcomes, the before-images, and the numbers for the report."""

    outcomes: dict[TopicPartition, ChangeOutcome]
    before: Mapping[TopicPartition, Offset]
    members: int = 0
    back: int = 0
    seconds: float = 0.0
    rewritten: int = 0
    recreated: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions whose offset was deleted and has been committed again by a member that held it."""
    kept_partitions: bool = False
    """Whether a member committed edited partitions while offsetmgr owned them, in the consumer protocol. The member may
    have kept its positions."""
    ended_early: str = ""
    """The reason for which offsetmgr was no longer a member when the others came back."""
    left_at: float = 0.0


@dataclass(slots=True)
class _Evidence:
    """The commits that were seen after the takeover: partitions with an earlier commit, partitions whose commit may be
    an earlier one, and partitions on which the members have moved on from the edited offset."""

    stale: dict[TopicPartition, int] = field(default_factory=dict)
    unclear: dict[TopicPartition, int] = field(default_factory=dict)
    moved: dict[TopicPartition, int] = field(default_factory=dict)
    unread: str = ""
    """The reason for which the offsets could not be read again."""


class RunningEdits:
    """Edits running groups of a Kafka cluster. The methods run in the client's event loop."""

    def __init__(self, client: Client, edits: KafkaEdits, listener: RunningEditListener, wait_s: float) -> None:
        self._client = client
        self._edits = edits
        self._listener = listener
        self._wait_s = wait_s
        self._before: dict[str, Mapping[TopicPartition, Offset]] = {}
        """The before-images of the groups for which a write was sent. They must not change any more."""

    async def edit(self, edit: GroupEdit, ended: threading.Event, *, conditional: bool) -> GroupEditResult:
        """Returns the result of the edit. An error of the whole group is the outcome of each of its partitions. Sets
        ``ended`` when offsetmgr has left the group, also if the edit is cancelled."""
        try:
            if (bad := group_id_error(edit.group)) is not None:
                raise bad
            return await self._edit(edit, conditional=conditional)
        except OffsetMgrError as error:
            if edit.group not in self._before:
                return all_failed(edit, error)
            why = f"an earlier attempt may have written the offsets, and the next attempt failed: {error}"
            unknown = LockLost(f"group {edit.group}", why, error.hint)
            return replace(all_failed(edit, unknown), atomic=False, how="the outcome of the write is unknown")
        finally:
            ended.set()

    async def _edit(self, edit: GroupEdit, *, conditional: bool) -> GroupEditResult:
        retries = Retries(self._in(_SETTLE_S))
        while (described := await settled(self._client, edit.group, self._in(_SETTLE_S))).idle:
            result = await self._edit_idle(edit)
            joined = any(isinstance(outcome.error, GroupActive) for outcome in result.outcomes.values())
            if not joined or not await retries.pause():
                return result
        if not conditional:
            edit = replace(edit, changes=_unconditional(edit.changes))
        return await self._edit_members(edit, described)

    async def _edit_idle(self, edit: GroupEdit) -> GroupEditResult:
        """Edits a group without members. Its before-images are the expected offsets, on which the write depends."""
        before = {tp: change.expected for tp, change in edit.changes.items() if change.expected is not None}
        await asyncio.to_thread(self._listener.on_before, edit.group, before)
        (result,) = await self._edits.edit([edit])
        return replace(result, how=result.how or "the group had no members")

    async def _edit_members(self, edit: GroupEdit, described: GroupDescription) -> GroupEditResult:
        retries = Retries(backoff=Backoff.fixed(0, _MAX_REPEATS))
        done = await self._attempt(edit, described)
        while True:
            held = [tp for tp, outcome in done.outcomes.items() if outcome.status is not EditStatus.FAILED]
            if not held:
                members = count_of(done.members, "member")
                return GroupEditResult(edit.group, self._outcomes(edit, done), how=f"{members} left and rejoined")
            evidence = await self._watch(edit, held, done)
            early = done.ended_early and not evidence.moved.keys() >= set(held)
            doubtful = evidence.stale or early or done.kept_partitions
            if not doubtful or not await retries.pause():
                break
            found = f"{_named(evidence.stale)} was committed again" if evidence.stale else done.ended_early
            found = found or "a member committed partitions that it did not own"
            self._listener.on_step(f"group {edit.group}: {found}; the edit is repeated")
            try:
                described = await self._settled_again(described)
                done = await self._attempt(edit, described)
            except OffsetMgrError as error:
                done.ended_early = f"{done.ended_early or found}; the repeated edit failed: {error}"
                break
        outcomes = self._outcomes(edit, done)
        for tp, offset in evidence.stale.items():
            why = f"a member committed {offset} after the edit, so it commits offsets that it holds"
            conflict = Conflict(str(tp), why, "stop its consumers, then edit the group without --running")
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, outcomes[tp].before, conflict)
        complete = done.back >= done.members and not (evidence.stale or done.ended_early or evidence.unread)
        complete = complete and not done.kept_partitions
        return GroupEditResult(edit.group, outcomes, atomic=complete, how=_report(edit, done, evidence))

    def _outcomes(self, edit: GroupEdit, done: _Takeover) -> dict[TopicPartition, ChangeOutcome]:
        """Returns the outcomes with the before-images of the first attempt. A repeated attempt may have found the
        offset that an earlier attempt had written."""
        first = self._before.get(edit.group, {})
        outcomes: dict[TopicPartition, ChangeOutcome] = {}
        for tp, outcome in done.outcomes.items():
            before, status = first.get(tp), outcome.status
            changed = before is not None and not same_value(before, edit.changes[tp].after, COMPARED_FIELDS)
            if status is EditStatus.UNCHANGED and changed:
                status = EditStatus.WRITTEN
            outcomes[tp] = outcome._replace(status=status, before=before)
        return outcomes

    async def _attempt(self, edit: GroupEdit, described: GroupDescription) -> _Takeover:
        """Takes the group over once. Repeats an attempt that failed before anything was written."""
        retries = Retries(self._in(_TAKEOVER_S))
        while True:
            try:
                return await self._take_over(edit, described)
            except OffsetMgrError as error:
                if not (is_retriable(error) or isinstance(error, LockLost)) or not await retries.pause():
                    raise
                described = await self._settled_again(described)

    async def _settled_again(self, before: GroupDescription) -> GroupDescription:
        """Returns the description of the group for another attempt. If the removed members are not back yet, it still
        contains them, so that the attempt waits for them."""
        found = await settled(self._client, before.group, self._in(_SETTLE_S))
        return replace(before, coordinator=found.coordinator) if found.idle else found

    async def _take_over(self, edit: GroupEdit, described: GroupDescription) -> _Takeover:
        now = asyncio.get_running_loop().time
        deadline, started = self._in(_TAKEOVER_S), now()
        async with await self._takeover(edit, described, deadline) as group:
            current = await self._stable_offsets(group, edit)
            before = {tp: current.offsets.get(tp, ABSENT) for tp in edit.changes if tp not in current.errors}
            first = edit.group not in self._before
            if first:
                await asyncio.to_thread(self._listener.on_before, edit.group, before)
                self._before[edit.group] = before
            else:  # the values of the first attempt are the before-images
                edit = replace(edit, changes=_unconditional(edit.changes))
            write, erase = partial(group.commit, deadline=deadline), partial(group.delete, deadline=deadline)
            try:
                outcomes = await execute(edit, current, write, erase)
            except LockLost:  # nothing was written, and the members may commit until the next attempt
                if first:
                    del self._before[edit.group]
                raise
            done = _Takeover(outcomes, self._before[edit.group], len(group.evicted))
            held = [tp for tp, outcome in done.outcomes.items() if outcome.status is not EditStatus.FAILED]
            if held:
                members = count_of(done.members, "member")
                self._listener.on_step(f"group {edit.group}: {members} left; waiting up to {self._wait_s:g} s for them")
                try:
                    await self._bring_back(group, edit, held, done)
                except OffsetMgrError as error:  # the offsets are written, and the watch reports what follows
                    done.ended_early = str(error)
        done.left_at = now()
        done.seconds = done.left_at - started
        return done

    async def _takeover(
        self, edit: GroupEdit, described: GroupDescription, deadline: float
    ) -> AbstractAsyncContextManager[GroupTakeover | ConsumerTakeover]:
        if await is_consumer_group(self._client, described, deadline):
            reject_static_members(described)
            return take_over_consumer_group(self._client, described, edit.changes.keys(), deadline)
        return take_over(self._client, described, deadline)

    async def _bring_back(
        self, group: GroupTakeover | ConsumerTakeover, edit: GroupEdit, held: Sequence[TopicPartition], done: _Takeover
    ) -> None:
        """Waits until the members are back, and writes the offsets again that a member has overwritten meanwhile."""
        done.back = await group.readmit(held, self._in(self._wait_s))
        await asyncio.sleep(_QUIET_S)
        deadline = self._in(_TAKEOVER_S)
        found = await group.fetch(held, deadline)
        again: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp in held:
            after, now = edit.changes[tp].after, found.offsets.get(tp, ABSENT)
            if after is not None and not same_value(now, after, COMPARED_FIELDS):
                again[tp] = after
            elif after is None and isinstance(now, Committed):
                done.recreated[tp] = now.offset
        if again:
            done.rewritten = len(again)
            done.kept_partitions = isinstance(group, ConsumerTakeover)
            for error in (await group.commit(again, deadline)).values():
                if error is not None:
                    raise error

    async def _stable_offsets(self, group: GroupTakeover | ConsumerTakeover, edit: GroupEdit) -> FetchedGroup:
        """Returns the committed offsets. Waits until open transactions of the group have ended."""
        deadline = self._in(_TRANSACTION_S)
        retries, partitions = Retries(deadline), partitions_to_read(edit)
        while True:
            found = await group.fetch(partitions, deadline)
            if not any(is_retriable(error) for error in found.errors.values()) or not await retries.pause():
                return found

    async def _watch(self, edit: GroupEdit, held: Collection[TopicPartition], done: _Takeover) -> _Evidence:
        """Reads the commits that the members make after the takeover."""
        evidence = _Evidence(stale=dict(done.recreated))
        now, until = asyncio.get_running_loop().time, done.left_at + _WATCH_S
        waiting = {tp for tp in held if edit.changes[tp].after is not None}
        poll = Retries(until, Backoff.fixed(_POLL_S))
        while waiting:
            try:
                found = await self._edits.fetch(edit.group, sorted(waiting), until + _TAKEOVER_S)
            except OffsetMgrError as error:
                evidence.unread = str(error)
                break
            for tp in sorted(waiting):
                after, committed = edit.changes[tp].after, found.offsets.get(tp)
                assert after is not None
                if tp in found.errors or (committed is not None and committed.offset == after.offset):
                    continue
                offset = -1 if committed is None else committed.offset
                kind = _classify(offset, after.offset, done.before.get(tp, ABSENT), now() - done.left_at)
                getattr(evidence, kind)[tp] = offset
                waiting.discard(tp)
            if not await poll.pause():
                break
        return evidence

    @staticmethod
    def _in(seconds: float) -> float:
        return asyncio.get_running_loop().time() + seconds


def _classify(offset: int, edited: int, before: Offset, seconds: float) -> str:
    """Returns the field of `_Evidence` for a commit that was seen ``seconds`` after the takeover."""
    if offset < edited or offset > edited + max(seconds, 1.0) * _MAX_RECORDS_PER_S:
        return "stale"
    if isinstance(before, Committed) and edited < before.offset <= offset:
        return "unclear"
    return "moved"


def _unconditional(changes: Mapping[TopicPartition, Change]) -> dict[TopicPartition, Change]:
    return {tp: change._replace(expected=None) for tp, change in changes.items()}


def _named(offsets: Mapping[TopicPartition, int]) -> str:
    """Names at most `_MAX_NAMED` partitions with their offsets."""
    listed = [f"{tp} at {offset}" for tp, offset in sorted(offsets.items())]
    more = len(listed) - _MAX_NAMED
    return ", ".join(listed[:_MAX_NAMED]) + (f" and {count_of(more, 'other')}" if more > 0 else "")


def _report(edit: GroupEdit, done: _Takeover, evidence: _Evidence) -> str:
    """Describes what offsetmgr saw, for `GroupEditResult.how`."""
    parts = [f"{done.back} of {count_of(done.members, 'member')} back after {done.seconds:.1f} s"]
    if done.ended_early:
        parts.append(f"not verified: offsetmgr left the group before the members were back ({done.ended_early})")
    elif done.back < done.members:
        parts.append("the others have not called poll yet and continue at the new offsets when they do, not verified")
    if done.kept_partitions:
        parts.append("not verified: a member committed partitions that it did not own, and may have kept its positions")
    if evidence.unread:
        parts.append(f"not verified: the offsets could not be read again ({evidence.unread})")
    if done.rewritten:
        parts.append(f"{count_of(done.rewritten, 'earlier commit')} overwritten")
    if evidence.moved:
        parts.append(f"seen: the members continue from the new offsets ({_named(evidence.moved)})")
    if evidence.unclear:
        parts.append(
            f"inferred: {_named(evidence.unclear)}: the commits are past the offsets before the edit, so they alone do"
            " not show that the records were read again"
        )
    quiet = sum(change.after is not None for change in edit.changes.values()) - len(evidence.moved)
    quiet -= len(evidence.unclear) + len(evidence.stale)
    if quiet > 0:
        parts.append(f"{count_of(quiet, 'partition')} still at the new offset, without a commit of a member")
    return "; ".join(parts)
