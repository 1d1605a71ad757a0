"""`RunningEdits`: edits of Kafka groups whose consumers run.

Ordering contract: take over the group, *then* read the before-images and make them durable, commit, let the members
back without the edited partitions, read again, leave, and watch the next commits of the members.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import GroupActive, LockLost, OffsetMgrError, Overwritten, TimedOut
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, Absent, GroupDescription, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    RunningEditListener,
)
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.retry import Backoff, Retries, is_retriable
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.fetch import LATEST, list_offsets
from offsetmgr.kafka.groups.group_inspection import is_consumer_group
from offsetmgr.kafka.groups.group_lock import delete, non_member
from offsetmgr.kafka.groups.group_takeover import (
    ConsumerTakeover,
    GroupTakeover,
    settled,
    take_over,
    take_over_consumer_group,
)
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.protocol_edits import (
    COMPARED_FIELDS,
    KafkaEdits,
    all_failed,
    execute,
    group_id_error,
    partitions_to_read,
)

# The evidence that the members of a running group continue at edited offsets, and the report about it. The functions
# are pure: the caller passes the commits that it has read after the edit.

_MAX_NAMED: Final = 3
_MAX_RECORDS_PER_S: Final = 1_000_000
"""No consumer processes more records of a partition in a second."""


class WatchedPartition(NamedTuple):
    """An edited partition after the takeover: its new offset (None if the edit deleted it), its offset before the edit,
    and the log end at the end of the takeover (None if it is unknown)."""

    after: int | None
    before: Offset
    log_end: int | None

    def classify(self, offset: int, seconds: float) -> str:
        """Returns the field of `Evidence` for a commit that was seen ``seconds`` after the takeover."""
        beyond_batches = self.log_end is not None and offset > self.log_end
        if self.after is not None and not self.after <= offset <= self.after + max(seconds, 1.0) * _MAX_RECORDS_PER_S:
            return "stale"
        if isinstance(self.before, Absent):
            return "unclear"
        if self.after is None:
            return "moved" if offset < self.before.offset or beyond_batches else "unclear"
        if self.after < self.before.offset:
            return "moved" if offset < self.before.offset else "unclear"
        return "moved" if beyond_batches else "unclear"


@dataclass(slots=True)
class Evidence:
    """The offsets that were read after the takeover.

    ``stale`` are earlier commits, and ``unclear`` are commits that a member could also make without the edit. ``moved``
    are commits that show that the members have moved on from the edited offset. ``quiet`` are the partitions whose last
    successful read returned the edited offset, and ``deleted`` those whose new offset another client has deleted.
    ``unread`` is the reason for which offsets could not be read again.
    """

    stale: dict[TopicPartition, int] = field(default_factory=dict)
    unclear: dict[TopicPartition, int] = field(default_factory=dict)
    moved: dict[TopicPartition, int] = field(default_factory=dict)
    quiet: set[TopicPartition] = field(default_factory=set)
    deleted: set[TopicPartition] = field(default_factory=set)
    unread: str = ""

    def add(self, found: FetchedGroup, watched: Mapping[TopicPartition, WatchedPartition], seconds: float) -> None:
        """Adds the offsets that were read ``seconds`` after the takeover."""
        for tp in sorted(watched):
            if tp in found.errors:
                continue
            committed = found.offsets.get(tp)
            if (None if committed is None else committed.offset) == watched[tp].after:
                self.quiet.add(tp)
                continue
            self.quiet.discard(tp)
            if committed is None:
                self.deleted.add(tp)
            else:
                getattr(self, watched[tp].classify(committed.offset, seconds))[tp] = committed.offset

    def decided(self) -> set[TopicPartition]:
        """Returns the partitions that need not be read again."""
        return self.stale.keys() | self.unclear.keys() | self.moved.keys() | self.deleted


@dataclass(slots=True)
class TakeoverResult:
    """The result of one takeover: the outcomes, the before-images, and the numbers for the report."""

    outcomes: dict[TopicPartition, ChangeOutcome]
    before: Mapping[TopicPartition, Offset]
    members: int = 0
    back: int = 0
    seconds: float = 0.0
    rewritten: int = 0
    evidence: Evidence = field(default_factory=Evidence)
    """Before the watch: the partitions whose offset was deleted and has been committed again by a member that held it
    (``stale``), and those whose new offset another client has deleted during the takeover (``deleted``)."""
    log_ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The log ends at the end of the takeover. A batch that a member holds from before the edit ends there at most."""
    kept_partitions: bool = False
    """Whether a member committed edited partitions while offsetmgr owned them, in the consumer protocol. The member may
    have kept its positions."""
    ended_early: str = ""
    """The reason for which offsetmgr was no longer a member when the others came back."""
    left_at: float = 0.0


def watched_partitions(
    changes: Mapping[TopicPartition, Change], partitions: Iterable[TopicPartition], done: TakeoverResult
) -> dict[TopicPartition, WatchedPartition]:
    """Returns the partitions to read after the takeover."""
    return {
        tp: WatchedPartition(
            None if after is None else after.offset, done.before.get(tp, ABSENT), done.log_ends.get(tp)
        )
        for tp in partitions
        for after in (changes[tp].after,)
    }


def is_complete(changes: Mapping[TopicPartition, Change], done: TakeoverResult, evidence: Evidence) -> bool:
    """Returns whether no doubt about the edit is left."""
    doubt = evidence.stale or evidence.deleted or evidence.unread or done.ended_early or done.kept_partitions
    return done.back >= done.members and not doubt and not _deletions(changes, evidence.unclear)


def named(offsets: Mapping[TopicPartition, int]) -> str:
    """Names at most `_MAX_NAMED` partitions with their offsets."""
    return list_of((f"{tp} at {offset}" for tp, offset in sorted(offsets.items())), _MAX_NAMED)


def report(changes: Mapping[TopicPartition, Change], done: TakeoverResult, evidence: Evidence) -> str:
    """Describes what offsetmgr saw, for `GroupEditResult.how`."""
    parts = [f"{done.back} of {count_of(done.members, 'member')} back after {done.seconds:.1f} s"]
    if done.ended_early:
        parts.append(
            f"not verified: offsetmgr was removed from the group before the members were back ({done.ended_early})"
        )
    elif done.back < done.members:
        parts.append("the others have not called poll yet and continue at the new offsets when they do, not verified")
    if done.kept_partitions:
        parts.append("not verified: a member committed partitions that it did not own, and may have kept its positions")
    if evidence.unread:
        parts.append(f"not verified: the offsets could not be read again ({evidence.unread})")
    if evidence.deleted:
        gone = list_of(sorted(evidence.deleted), _MAX_NAMED)
        parts.append(f"not verified: another client meanwhile deleted the new offsets of {gone}")
    if done.rewritten:
        parts.append(f"{count_of(done.rewritten, 'earlier commit')} overwritten")
    return "; ".join((*parts, *_commits(changes, evidence)))


def _commits(changes: Mapping[TopicPartition, Change], evidence: Evidence) -> Iterable[str]:
    """Describes the commits of the members, first those of partitions with a new offset, then those of deletions."""
    began, again = (_deletions(changes, offsets) for offsets in (evidence.moved, evidence.unclear))
    moved = {tp: offset for tp, offset in evidence.moved.items() if tp not in began}
    unclear = {tp: offset for tp, offset in evidence.unclear.items() if tp not in again}
    absent = sum(changes[tp].after is None for tp in evidence.quiet)
    quiet = len(evidence.quiet) - absent
    if moved:
        yield f"seen: the members continue from the new offsets ({named(moved)})"
    if unclear:
        yield (
            f"inferred: {named(unclear)}: a member could also commit this without the edit, so the commits alone do not"
            " show that the members continue from the new offsets"
        )
    if quiet:
        yield f"{count_of(quiet, 'partition')} still at the new offset, without a commit of a member"
    if began:
        yield f"seen: the members began where auto.offset.reset says ({named(began)})"
    if again:
        yield (
            f"not verified: {count_of(len(again), 'deleted offset')} committed again ({named(again)}), by a member that"
            " began where auto.offset.reset says, or that kept its position"
        )
    if absent:
        yield f"{count_of(absent, 'deleted offset')} still absent, without a commit of a member"


def _deletions(
    changes: Mapping[TopicPartition, Change], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if changes[tp].after is None}


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
_LOG_ENDS_S: Final = 2.0
"""Seconds for which an edit waits for the log ends of its partitions. The edit does not depend on them."""
LEAVE_S: Final = 12.0
"""Seconds within which a cancelled edit has left its group."""


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
        if not any(c.after or described.may_consume(tp.topic) for tp, c in edit.changes.items()):
            return await self._erase(edit)
        if not conditional:
            edit = replace(edit, changes=_unconditional(edit.changes))
        return await self._edit_members(edit, described)

    async def _edit_idle(self, edit: GroupEdit) -> GroupEditResult:
        """Edits a group without members. Its before-images are the expected offsets, on which the write depends."""
        before = {tp: change.expected for tp, change in edit.changes.items() if change.expected is not None}
        await asyncio.to_thread(self._listener.on_before, edit.group, before)
        (result,) = await self._edits.edit([edit])
        return replace(result, how=result.how or "the group had no members")

    async def _erase(self, edit: GroupEdit) -> GroupEditResult:
        """Deletes offsets of topics to which no member subscribes, without removing a member from the group."""
        deadline = self._in(_TAKEOVER_S)
        found = await self._edits.fetch(edit.group, partitions_to_read(edit), deadline)
        before = {tp: found.offsets.get(tp, ABSENT) for tp in edit.changes if tp not in found.errors}
        await asyncio.to_thread(self._listener.on_before, edit.group, before)
        connection = await self._client.coordinator_connection(edit.group, deadline)
        erase = partial(delete, connection, non_member(edit.group), deadline=deadline)
        outcomes = await execute(edit, found, partial(self._client.commit, edit.group, deadline=deadline), erase)
        return GroupEditResult(edit.group, outcomes, how="no member subscribes to the topics; the members kept running")

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
            found = f"{named(evidence.stale)} was committed again" if evidence.stale else done.ended_early
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
            overwritten = Overwritten(str(tp), why, Advice("stop its consumers, then edit the group without {running}"))
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, outcomes[tp].before, overwritten)
        complete = is_complete(edit.changes, done, evidence)
        return GroupEditResult(edit.group, outcomes, atomic=complete, how=report(edit.changes, done, evidence))

    def _outcomes(self, edit: GroupEdit, done: TakeoverResult) -> dict[TopicPartition, ChangeOutcome]:
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

    async def _attempt(self, edit: GroupEdit, described: GroupDescription) -> TakeoverResult:
        """Takes the group over once. Repeats an attempt that failed before anything was written."""
        retries = Retries(self._in(_TAKEOVER_S))
        while True:
            try:
                deadline = self._in(_TAKEOVER_S)
                with _limit(edit.group, "it was not taken over, read and written", deadline):
                    return await self._take_over(edit, described, deadline)
            except OffsetMgrError as error:
                if not (is_retriable(error) or isinstance(error, LockLost)) or not await retries.pause():
                    raise
                described = await self._settled_again(described)

    async def _settled_again(self, before: GroupDescription) -> GroupDescription:
        """Returns the description of the group for another attempt. If the removed members are not back yet, it still
        contains them, so that the attempt waits for them."""
        found = await settled(self._client, before.group, self._in(_SETTLE_S))
        return replace(before, coordinator=found.coordinator) if found.idle else found

    async def _take_over(self, edit: GroupEdit, described: GroupDescription, deadline: float) -> TakeoverResult:
        now = asyncio.get_running_loop().time
        started = now()
        takeover: AbstractAsyncContextManager[GroupTakeover] = take_over(self._client, described, deadline)
        if await is_consumer_group(self._client, described, deadline):
            takeover = take_over_consumer_group(self._client, described, edit.changes.keys(), deadline)
        async with takeover as group:
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
            done = TakeoverResult(outcomes, self._before[edit.group], len(group.evicted))
            held = [tp for tp, outcome in done.outcomes.items() if outcome.status is not EditStatus.FAILED]
            if held:
                members = count_of(done.members, "member")
                self._listener.on_step(f"group {edit.group}: {members} left; waiting up to {self._wait_s:g} s for them")
                try:
                    done.back = await group.readmit(held, self._in(self._wait_s))
                    done.log_ends, _ = await asyncio.gather(self._log_ends(held), asyncio.sleep(_QUIET_S))
                    until = self._in(_TAKEOVER_S)
                    with _limit(edit.group, "its offsets were not read and written again", until):
                        await self._write_again(group, edit, held, done, until)
                except OffsetMgrError as error:  # the offsets are written, and the watch reports what follows
                    done.ended_early = str(error)
                    done.log_ends = done.log_ends or await self._log_ends(held)
        done.left_at = now()
        done.seconds = done.left_at - started
        return done

    async def _write_again(
        self,
        group: GroupTakeover,
        edit: GroupEdit,
        held: Sequence[TopicPartition],
        done: TakeoverResult,
        deadline: float,
    ) -> None:
        found = await group.fetch(held, deadline)
        again: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp in held:
            after, now = edit.changes[tp].after, found.offsets.get(tp, ABSENT)
            if tp in found.errors:
                continue  # the watch reads it again
            if after is None:
                if not isinstance(now, Absent):
                    done.evidence.stale[tp] = now.offset
            elif isinstance(now, Absent):
                done.evidence.deleted.add(tp)
            elif not same_value(now, after, COMPARED_FIELDS):
                again[tp] = after
        if again:
            done.rewritten = len(again)
            done.kept_partitions = isinstance(group, ConsumerTakeover)
            for error in (await group.commit(again, deadline)).values():
                if error is not None:
                    raise error

    async def _stable_offsets(self, group: GroupTakeover, edit: GroupEdit) -> FetchedGroup:
        """Returns the committed offsets. Waits until open transactions of the group have ended."""
        deadline = self._in(_TRANSACTION_S)
        retries, partitions = Retries(deadline), partitions_to_read(edit)
        while True:
            found = await group.fetch(partitions, deadline)
            if not any(is_retriable(error) for error in found.errors.values()) or not await retries.pause():
                return found

    async def _watch(self, edit: GroupEdit, held: Collection[TopicPartition], done: TakeoverResult) -> Evidence:
        """Reads the commits that the members make after the takeover."""
        evidence = done.evidence
        now, until = asyncio.get_running_loop().time, done.left_at + _WATCH_S
        partitions = watched_partitions(edit.changes, held, done)
        errors: dict[TopicPartition, OffsetMgrError] = {}
        poll = Retries(until, Backoff.fixed(_POLL_S))
        while waiting := sorted(partitions.keys() - evidence.decided()):
            try:
                found = await self._edits.fetch(edit.group, waiting, until + _TAKEOVER_S)
            except OffsetMgrError as error:
                evidence.unread = str(error)
                break
            evidence.add(found, {tp: partitions[tp] for tp in waiting}, now() - done.left_at)
            errors |= found.errors
            if not await poll.pause():
                break
        never_read = errors.keys() - evidence.decided() - evidence.quiet
        if never_read and not evidence.unread:
            evidence.unread = str(errors[min(never_read)])
        return evidence

    async def _log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the log ends, without those that cannot be read."""
        latest = dict.fromkeys(partitions, LATEST)
        try:
            found = await list_offsets(PartitionLeaders(self._client), latest, self._in(_LOG_ENDS_S))
        except OffsetMgrError:
            return {}
        return {tp: end for tp, end in found.items() if isinstance(end, int)}

    @staticmethod
    def _in(seconds: float) -> float:
        return asyncio.get_running_loop().time() + seconds


@contextmanager
def _limit(group: str, failed: str, deadline: float) -> Iterator[None]:
    """Replaces the error of a request that ended at the deadline of a takeover. The request had only the rest of the
    time, so its error does not name the limit."""
    try:
        yield
    except TimedOut as error:
        if asyncio.get_running_loop().time() < deadline:
            raise
        why = f"{failed} within {_TAKEOVER_S:g} s; the last request waited for {error.what}"
        hint = Advice("try again, or stop its consumers and edit it without {running}")
        raise TimedOut(f"group {group}", why, hint) from error


def _unconditional(changes: Mapping[TopicPartition, Change]) -> dict[TopicPartition, Change]:
    return {tp: change._replace(expected=None) for tp, change in changes.items()}
