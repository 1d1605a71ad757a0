"""Reads and edits of groups over Kafka's protocol: the part that brokers and offset managers share, and the edits of
brokers' groups.

`ProtocolStore` is the base class of the stores. `KafkaEdits`, and `ManagerEdits` of `offsetmgr.stores.manager`, protect
edits against concurrent writers. They are coroutines that use the client of `offsetmgr.kafka`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import (
    Conflict,
    GateRefused,
    GroupActive,
    GroupNotFound,
    LockLost,
    NotAuthorized,
    OffsetMetadataTooLarge,
    OffsetMgrError,
    ServerError,
    TimedOut,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
    value_of,
)
from offsetmgr.core.evaluation import evaluate, same_value, stopped
from offsetmgr.core.java_hash import java_hash, partition_of_hash
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import (
    ABSENT,
    Absent,
    BrokerPartition,
    Committed,
    GroupDescription,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    is_valid_offset,
)
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    CommitErrors,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
    OffsetStore,
    fetched,
)
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.client import Client, ClientThread, NotAMember, PartitionLeaders, batches, run_batches
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import LATEST, list_offsets, partition_counts
from offsetmgr.kafka.groups.group_lock import acquire_lock, active_members_error, delete, non_member
from offsetmgr.kafka.protocol.errors import NegativeOffset, UnstableOffset
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.releases import (
    DELETES_GROUPS,
    DELETES_OFFSETS,
    HOLDS_LOCK,
    KEEPS_EPOCHS,
    REPORTS_TRANSACTIONS,
    is_before,
)
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC, FetchedGroup, FetchedGroups, RequestedOffsets

# Decides on the changes of one group's edit and executes them, for stores over Kafka's protocol. This part performs
# no I/O: the caller passes the group's current offsets and the functions that write and delete.

COMPARED_FIELDS: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="none")
"""The fields of a new value that are compared with the committed value. If these fields are equal, nothing is
written."""

_MAX_STRING_BYTES: Final = 2**15 - 1

ScanRequest: TypeAlias = tuple[str, Sequence[TopicPartition] | None]
"""A group and the partitions to read; None selects all partitions with a commit."""
Write = Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Awaitable[CommitErrors]]
Erase = Callable[[Sequence[TopicPartition]], Awaitable[CommitErrors]]


class EditDecision(NamedTuple):
    """The outcomes of changes that need no write (unchanged, rejected, unreadable), and the partitions to write."""

    outcomes: dict[TopicPartition, ChangeOutcome]
    todo: list[TopicPartition]


async def execute(
    edit: GroupEdit,
    current: FetchedGroup,
    write: Write,
    erase: Erase,
    decided: EditDecision | None = None,
) -> dict[TopicPartition, ChangeOutcome]:
    """Decides on an edit, given the current offsets, executes it, and returns the outcome of each partition.

    If ``decided`` is given, it is used instead of a new decision. If the commit request as a whole fails, its error
    becomes the outcome of every partition that was to be written or deleted, and nothing is deleted. Raises `LockLost`
    if the lock was lost before anything was written.
    """
    changes = edit.changes
    outcomes, todo = decided or decide(edit.group, changes, current, whole=edit.whole)
    commits: dict[TopicPartition, OffsetAndMetadata] = {}
    deletions: list[TopicPartition] = []
    for tp in todo:
        after = changes[tp].after
        if after is None:
            deletions.append(tp)
        else:
            commits[tp] = after
    results: CommitErrors = {}
    try:
        if commits:
            results |= await write(commits)
        if deletions:
            results |= await erase(deletions)
    except LockLost:
        if not results:
            raise
        results |= dict.fromkeys(deletions, LockLost("group lock", "was lost before the deletion"))
    except OffsetMgrError as error:
        results |= {tp: error for tp in todo if tp not in results}
    for tp in todo:
        failure = results[tp] if tp in results else ServerError(str(tp), "the broker's response does not contain it")
        status = EditStatus.WRITTEN if failure is None else EditStatus.FAILED
        outcomes[tp] = ChangeOutcome(status, current.offsets.get(tp, ABSENT), failure)
    return {tp: outcomes[tp] for tp in changes}


def decide(
    group: str, changes: Mapping[TopicPartition, Change], current: FetchedGroup, *, whole: bool = False
) -> EditDecision:
    """Returns the decision on each change of the group, given its current offsets; see `GroupEdit.whole`. A negative
    offset counts as absent, because it is not a position."""
    outcomes: dict[TopicPartition, ChangeOutcome] = {}
    todo: list[TopicPartition] = []
    errors, offsets = current.errors, current.offsets
    for tp, change in changes.items():
        unreadable = errors.get(tp) if errors else None
        if isinstance(unreadable, NegativeOffset):
            unreadable = None
        before = offsets.get(tp, ABSENT)
        if unreadable is not None:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, None, unreadable)
        elif (invalid := value_error(tp, change.after)) is not None:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, before, invalid)
        elif (outcome := evaluate(group, tp, change, before, COMPARED_FIELDS)) is not None:
            outcomes[tp] = outcome
        else:
            todo.append(tp)
    if whole and (others := stopped(group, outcomes, todo)):
        return EditDecision(outcomes | others, [])
    return EditDecision(outcomes, todo)


def without_epochs(changes: Mapping[TopicPartition, Change]) -> dict[TopicPartition, Change]:
    """Returns the changes without leader epochs, for a broker that does not store them. If the changes kept their
    epochs, a commit that differs from the stored commit only in its epoch would be written again each time."""
    return {
        tp: change
        if change.after is None or change.after.leader_epoch is None
        else change._replace(after=change.after._replace(leader_epoch=None))
        for tp, change in changes.items()
    }


def all_failed(edit: GroupEdit, error: OffsetMgrError) -> GroupEditResult:
    """Returns the result of an edit that failed as a whole with ``error``."""
    failed = ChangeOutcome(EditStatus.FAILED, None, error)
    return GroupEditResult(edit.group, dict.fromkeys(edit.changes, failed), how="nothing was written")


def value_error(tp: TopicPartition, after: OffsetAndMetadata | None) -> OffsetMgrError | None:
    """Returns the error if a request cannot contain this partition or value; None if both are valid."""
    if isinstance(tp.partition, BrokerPartition):
        return UsageError(
            str(tp),
            "is a byte position of Kafka 0.7, not an offset",
            Advice("see migrate plan {partition_map}"),
        )
    if not 0 <= tp.partition < 2**31 or not _is_string(tp.topic):
        return UnknownTopicOrPartition(str(tp)[:300], "no topic or partition can have this name or number")
    if after is None:
        return None
    if not is_valid_offset(after.offset):
        return UsageError(str(tp), f"{after.offset} is not an offset")
    if after.metadata and len(after.metadata.encode()) > _MAX_STRING_BYTES:
        return OffsetMetadataTooLarge(str(tp), f"metadata of {len(after.metadata)} characters")
    if after.leader_epoch is not None and not 0 <= after.leader_epoch < 2**31:
        return UsageError(str(tp), f"{after.leader_epoch} is not a leader epoch")
    return None


def partitions_to_read(edit: GroupEdit) -> list[TopicPartition]:
    """Returns the partitions of an edit that a request can contain. For a negative partition, Kafka 0.8.2 responds that
    the group's offsets are still loading."""
    return [tp for tp in edit.changes if value_error(tp, None) is None]


@lru_cache(maxsize=4096)
def _is_string(text: str) -> bool:
    return 0 < len(text.encode()) <= _MAX_STRING_BYTES


def group_id_error(group: str) -> OffsetMgrError | None:
    """Returns the error if a request cannot contain this group id; None if it is valid."""
    if not group or _is_string(group):  # brokers accept the empty group id
        return None
    return UsageError(f"group {group[:50]!r}", "is not a valid group id: it must have at most 32767 bytes")


def group_offsets(group: str, found: FetchedGroup | OffsetMgrError) -> GroupOffsets:
    if isinstance(found, OffsetMgrError):
        return GroupOffsets(group, {}, error=found)
    return GroupOffsets(group, found.offsets, found.errors)


# Finds the offsets of Kafka groups that the coordinator's list of all offsets leaves out. The list leaves out two
# kinds of offsets without an error: first commits that are pending in an open transaction, and the offsets of topics
# that the principal may not describe. Before a group is deleted, one of three proofs must show that its list is
# complete:
#
# - The coordinator has no authorizer, and the group's partition of ``__consumer_offsets`` has no open transaction.
# - The log of this partition, which the principal may read, has no other offset of the group.
# - All listed offsets were deleted, and the coordinator then reports the group as DEAD. Coordinators of Kafka 2.4 to
#   3.9 keep a group as long as it has an offset, also a pending one. Coordinators of Kafka 4.0 and later keep every
#   group for some minutes, so EMPTY proves nothing there. Azure Event Hubs reports groups with offsets as DEAD, which
#   proves nothing either. If this proof fails, the deleted offsets are written back.

_ACCEPT: Final = Advice("or add {accept_unseen=True}: unseen offsets are then lost, and no undo restores them")
_MAX_NAMED: Final = 200_000
"""The maximum number of partitions that one call of `UnseenOffsets.add_pending` asks for by name."""
_CHECK_S: Final = 5.0
"""The maximum time in seconds for the check of open transactions, which is part of every read of whole groups."""


class UnseenOffsets:
    """Finds unseen offsets in one cluster. Use it in the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = PartitionLeaders(client)
        self._partitions = 0
        """The number of partitions of the offsets topic; 0 if unknown."""
        self._filters: dict[Address, bool] = {}
        """Whether a coordinator may leave out offsets."""
        self.accepted: set[str] = set()
        """The groups that may be deleted with unseen offsets, because the user accepts it."""
        self.unproved: dict[str, dict[TopicPartition, Committed]] = {}
        """The groups that need the third proof, with the offsets that this process has deleted since `reasons`."""

    async def add_pending(
        self, groups: Sequence[str], found: Mapping[str, FetchedGroup | OffsetMgrError], deadline: float
    ) -> None:
        """Adds an error to ``found`` for each partition of these groups whose first commit is pending.

        Asks by name, and only for groups whose partition of the offsets topic has an open transaction. If there are
        many, asks for some of them only in the topics in which they have other commits. Adds nothing if the principal
        may not describe the offsets topic.
        """
        until = min(deadline, asyncio.get_running_loop().time() + _CHECK_S)
        try:
            groups = await self._in_transactions(groups, until)
            counts = await partition_counts(self._client, None, until) if groups else {}
            every = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
            named: dict[str, list[TopicPartition]] = {}
            for at, group in enumerate(groups, 1):
                known = found[group]
                topics = {tp.topic for tp in known.offsets} if isinstance(known, FetchedGroup) else set()
                named[group] = [tp for tp in every if at * len(every) <= _MAX_NAMED or tp.topic in topics]
            answers = await self._client.fetch(named, until) if named else {}
        except OffsetMgrError:
            return
        for group, answer in answers.items():
            known = found[group]
            if isinstance(known, FetchedGroup) and isinstance(answer, FetchedGroup):
                known.errors.update({tp: e for tp, e in answer.errors.items() if isinstance(e, UnstableOffset)})

    async def _in_transactions(self, groups: Sequence[str], deadline: float) -> list[str]:
        """Returns the groups in whose partition of the offsets topic a transaction of any group is open."""
        if not REPORTS_TRANSACTIONS.supported_by((await self._client.any_connection(deadline)).versions):
            return []
        if not self._partitions:
            counts = await partition_counts(self._client, [OFFSETS_TOPIC], deadline)
            self._partitions = counts.get(OFFSETS_TOPIC, 0)
        if not self._partitions:
            return []
        where = {g: TopicPartition(OFFSETS_TOPIC, partition_of_hash(java_hash(g), self._partitions)) for g in groups}
        latest = dict.fromkeys(where.values(), LATEST)
        # The end is read first, so that later commits do not look like open transactions.
        ends = await list_offsets(self._leaders, latest, deadline)
        stable = await list_offsets(self._leaders, latest, deadline, read_committed=True)
        return [group for group, tp in where.items() if not _reaches(stable[tp], ends[tp])]

    async def reasons(self, groups: Sequence[str], deadline: float, *, by_deletion: bool) -> dict[str, OffsetMgrError]:
        """Returns, for each group that must not be deleted, the reason: an offset that is not listed, or that no proof
        is possible. With ``by_deletion``, groups for which the third proof is possible have no reason; they are in
        ``unproved`` from now on."""

        async def ask(address: Address, names: list[str]) -> dict[str, bool | OffsetMgrError | None]:
            """Returns whether the third proof is possible; None for a group that does not need another proof."""
            connection = await self._client.node(address).connection(deadline)
            versions = connection.versions
            if address not in self._filters:
                from offsetmgr.kafka.client.broker_checks import has_authorizer

                reports = REPORTS_TRANSACTIONS.supported_by(versions)
                self._filters[address] = not reports or await has_authorizer(connection, deadline)
            in_doubt = names if self._filters[address] else await self._in_transactions(names, deadline)
            third = by_deletion and DELETES_OFFSETS.supported_by(versions) and is_before("4.0", versions)
            # Brokers delete the group with the empty id only as a whole, so its deletion proves nothing.
            return {name: third and name != "" if name in in_doubt else None for name in names}

        valid = [group for group in groups if group not in self.accepted and group_id_error(group) is None]
        answers = await self._client.per_group(valid, ask, deadline)
        reasons = {group: answer for group, answer in answers.items() if isinstance(answer, OffsetMgrError)}
        in_doubt = {group: answer for group, answer in answers.items() if isinstance(answer, bool)}
        if not in_doubt or self._client.offsets_topic is None:
            return reasons
        saved, failed = dict[str, Mapping[TopicPartition, bool]](), None
        try:
            saved = await self._client.offsets_topic().partitions_in_log(list(in_doubt), deadline)
        except OffsetMgrError as error:
            failed = error
        # The list is read after the log, so it has every offset that the log has, unless the offset is unseen.
        listed = await self._client.fetch(dict.fromkeys(in_doubt), deadline)
        described = await self._client.describe([group for group, third in in_doubt.items() if third], deadline)
        dead = {group for group, one in described.items() if isinstance(one, GroupDescription) and one.state == "DEAD"}
        for group, third in in_doubt.items():
            known = listed[group]
            if isinstance(known, OffsetMgrError):
                reasons[group] = known
            elif failed is not None and third and known.offsets and group not in dead:
                self.unproved[group] = {}
            elif failed is not None:
                reasons[group] = _not_proved(group, failed)
            else:
                shown = {*known.offsets, *known.errors}
                if hidden := {tp: pending for tp, pending in saved[group].items() if tp not in shown}:
                    reasons[group] = _not_listed(group, hidden)
        return reasons

    def remember(self, edit: GroupEdit, result: GroupEditResult) -> None:
        """Keeps the offsets that ``edit`` deleted, in case the third proof of its group fails."""
        for tp, (status, before, _) in result.outcomes.items() if edit.group in self.unproved else ():
            if status is EditStatus.WRITTEN and edit.changes[tp].after is None and isinstance(before, Committed):
                self.unproved[edit.group][tp] = before

    async def delete_by_proof(
        self, group: str, edit: Callable[[list[GroupEdit]], Awaitable[list[GroupEditResult]]], deadline: float
    ) -> None:
        """Makes the coordinator delete a group of ``unproved`` whose listed offsets were deleted. If the coordinator
        keeps the group, writes the offsets back with ``edit`` and raises `GateRefused`."""
        deleted = self.unproved.pop(group)
        state: GroupDescription | OffsetMgrError
        try:
            connection = await self._client.coordinator_connection(group, deadline)
            # With each OffsetDelete the coordinator checks whether the group has an offset, although these are deleted.
            await delete(connection, non_member(group), list(deleted), deadline)
            state = (await self._client.describe([group], deadline))[group]
        except GroupNotFound:
            return
        except OffsetMgrError as error:
            state = error
        why = f"cannot be described after the deletion of its offsets: {state}"
        if isinstance(state, GroupDescription):
            if state.state == "DEAD":
                return
            why = f"still exists ({state.state}) after offsetmgr deleted all offsets that this login sees"
        (back,) = await edit([GroupEdit(group, {tp: Change(one.value(), ABSENT) for tp, one in deleted.items()})])
        restored = "; offsetmgr has committed the deleted offsets again"
        if failures := back.failures:
            first, why_not = next(iter(failures.items()))
            restored = f"; {count_of(len(failures), 'deleted offset')} could not be written back ({first}: {why_not})"
        raise GateRefused(f"group {group!r}", why + restored, Advice("allow Read on {}, {}", OFFSETS_TOPIC, _ACCEPT))


def _reaches(stable: int | OffsetMgrError, end: int | OffsetMgrError) -> bool:
    """Returns whether all records before ``end`` are stable. An error means that this is unknown."""
    return isinstance(stable, int) and isinstance(end, int) and stable >= end


def _not_listed(group: str, hidden: Mapping[TopicPartition, bool]) -> GateRefused:
    """``hidden`` has, for each partition, whether its offset is pending in an open transaction."""
    named = list_of([f"{tp} (pending in a transaction)" if hidden[tp] else str(tp) for tp in sorted(hidden)], 3)
    why = f"has {count_of(len(hidden), 'offset')} that its coordinator does not show to this login: {named}"
    hint = Advice("end the transactions and allow Describe on the topics, {}", _ACCEPT)
    return GateRefused(f"group {group!r}", why, hint)


def _not_proved(group: str, error: OffsetMgrError) -> GateRefused:
    why = f"may have offsets that its coordinator does not show, and {OFFSETS_TOPIC} cannot be read: {error.why}"
    if isinstance(error, NotAuthorized):
        why = "may have offsets in topics that this login may not describe: brokers with an authorizer leave them out"
    hint = Advice("allow Read on the topic {}, which shows all offsets, {}", OFFSETS_TOPIC, _ACCEPT)
    return GateRefused(f"group {group!r}", why, hint)


COMPARED: Final = "read and compared just before the write, which was not conditional"
"""The value of `GroupEditResult.how` for edits without a lock or a conditional commit."""
UNLOCKED: Final = "read and compared just before the write, and read again after it: Kafka before 0.9 has no group lock"
"""The value of `GroupEditResult.how` for brokers that do not support the group lock."""
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


def check_age(read_at: float | None) -> None:
    """Raises `_Stale` if too much time has passed since ``read_at``, by the clock of the running event loop."""
    if read_at is not None and asyncio.get_running_loop().time() - read_at > _MAX_READ_AGE_S:
        raise _Stale


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

    async def read(self, partitions: RequestedOffsets, deadline: float) -> FetchedGroups:
        """Returns the offsets of many groups; the partitions None select all of a group. See `Client.fetch`."""
        return await self._client.fetch(partitions, deadline)

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group. Raises `GroupActive` with the members' names, `GroupNotFound`, and other errors of the
        client."""
        try:
            await self._client.delete_group(group, deadline)
        except GroupActive:
            raise await self._group_active_error(group, deadline) from None

    async def scan(self, requests: list[ScanRequest]) -> list[GroupOffsets]:
        """Returns the offsets of the given partitions of each group, one result for each. Raises only if the client has
        never reached a broker."""
        good = {group: partitions for group, partitions in requests if group_id_error(group) is None}
        found = await self.read(good, self.deadline())
        return [group_offsets(group, group_id_error(group) or found[group]) for group, _ in requests]

    async def edit(self, edits: list[GroupEdit]) -> list[GroupEditResult]:
        """Returns one result for each edit; the edits must be of different groups. Raises only if the client has never
        reached a broker."""
        deadline = self.deadline()
        methods = {True: self._edit_unconditionally, False: self._edit_conditionally}
        by_method = by_key((methods[_overwrites(edit)], edit) for edit in edits)
        results = await asyncio.gather(*(method(its_edits, deadline) for method, its_edits in by_method.items()))
        return list(chain.from_iterable(results))

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
            rejections = {
                tp: ChangeOutcome(EditStatus.FAILED, None, bad)
                for tp, change in edit.changes.items()
                if (bad := value_error(tp, change.after))
            }
            decided = EditDecision(rejections, [tp for tp in edit.changes if tp not in rejections])
            at = found if isinstance(found := where.get(edit.group), Address) else None
            unknown = FetchedGroup({}, {})
            result = await self._write_as_simple_consumer(edit, unknown, OVERWRITTEN, deadline, at, decided)
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
            check_age(read_at)
            return await self._client.commit(edit.group, offsets, deadline, at, edit.committer)

        async def erase(partitions: Sequence[TopicPartition]) -> CommitErrors:
            connection = await self._client.coordinator_connection(edit.group, deadline)
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

    async def unlocked(
        self, edit: GroupEdit, deadline: float, at: Address | None = None, how: str = UNLOCKED
    ) -> GroupEditResult:
        """Edits a group without a group lock: reads, compares, writes, and reads again to confirm. ``how`` is the value
        of `GroupEditResult.how`."""
        result = await self._compare_and_write(edit, deadline, at, how)
        written = [tp for tp, outcome in result.outcomes.items() if outcome.status is EditStatus.WRITTEN]
        if not written:
            return replace(result, how=COMPARED)  # nothing was read again
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

    async def _group_active_error(self, group: str, deadline: float) -> GroupActive:
        """Returns the error for a group that has members, with their names."""
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


Edits = TypeVar("Edits", bound=ProtocolEdits)


class StoreThread(ClientThread, Generic[Edits]):
    """The client of a store and its thread, with the object that reads and edits groups."""

    def __init__(self, client: Client, edits: type[Edits], timeout_s: float) -> None:
        super().__init__(client, timeout_s)
        self.edits = edits(client, timeout_s)


# Edits of Kafka groups, protected by the group lock or by a comparison just before the write. Ordering contract under
# the group lock: join the group, *then* read, compare, commit with the generation, and leave the group. The lock's
# module is imported only when an edit needs the lock, because most commands never need it.

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

    async def read(self, partitions: RequestedOffsets, deadline: float) -> FetchedGroups:
        """Like the method of the base class. Whole groups have an error for each pending first commit, which the
        coordinators do not list."""
        found = await super().read(partitions, deadline)
        if whole := [group for group, named in partitions.items() if named is None]:
            await self.unseen.add_pending(whole, found, deadline)
        return found

    async def scan(self, requests: list[ScanRequest]) -> list[GroupOffsets]:
        """Like the base class. If all offsets of a share group, or of a group of the Streams protocol without offsets,
        were requested, its error is `OtherGroupKind`."""
        found = await super().scan(requests)
        unknown = [
            one.name
            for one, (_, partitions) in zip(found, requests, strict=True)
            if partitions is None
            and not (one.offsets or one.errors)
            and (one.error is None or isinstance(one.error, GroupNotFound))
        ]
        if not unknown:
            return found
        from offsetmgr.kafka.client.groups import other_kinds

        kinds = await other_kinds(self._client, unknown, self.deadline())
        return [GroupOffsets(one.name, {}, error=kinds[one.name]) if one.name in kinds else one for one in found]

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group; on brokers that cannot delete groups, deletes all offsets of the group instead. Raises
        `GateRefused` if the group may have offsets that its coordinator does not list, and is not accepted."""
        if group in self.unseen.unproved and group not in self.unseen.accepted:
            await self.unseen.delete_by_proof(group, self.edit, deadline)
            return
        for reason in (await self.unseen.reasons([group], deadline, by_deletion=False)).values():
            raise reason
        if DELETES_GROUPS.supported_by((await self._client.coordinator_connection(group, deadline)).versions):
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
        from offsetmgr.kafka.client.broker_checks import denied_topics
        from offsetmgr.kafka.client.groups import describe

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
        described_by = Address.parse(state.coordinator)  # it may have stopped since
        connection = await self._client.coordinator_connection(edit.group, deadline, described_by)
        at, lockable = connection.address, HOLDS_LOCK.supported_by(connection.versions)
        if not KEEPS_EPOCHS.supported_by(connection.versions):
            edit = replace(edit, changes=without_epochs(edit.changes))
        if lockable and (not state.idle or state.members):
            raise active_members_error(edit.group, [str(member) for member in state.members], state.lock_ends_s)
        decided = decide(edit.group, edit.changes, current, whole=edit.whole)
        if not decided.todo:
            return GroupEditResult(edit.group, decided.outcomes, how="nothing had to be written")
        if not lockable:
            return await self.unlocked(edit, deadline, at)
        if edit.guard is Guard.COMPARE or not edit.group:  # no client can join the group with the empty id
            return await self._compare_and_write(edit, deadline, at)
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


def _not_confirmed(what: str, error: OffsetMgrError) -> str:
    return f"{COMPARED}; written, but not confirmed: offsetmgr could not read {what} again: {error}"


def _overwritten_error(tp: TopicPartition, planned: OffsetAndMetadata | None, found: Offset) -> Conflict:
    did = "deleted the offset" if planned is None else f"wrote {planned.offset}"
    said = "no commit" if isinstance(found, Absent) else f"offset {found.offset}"
    return Conflict(
        str(tp), f"offsetmgr {did} and then found {said}: another client commits to the group", actual=found
    )


# The base class of stores over Kafka's protocol: blocking methods that run coroutines in a background event loop.
# `protocol_edits.ProtocolEdits` and its subclasses contain the coroutines that read and write. The Kafka client is
# imported when it is first needed, because the import takes a tenth of a second.

A = TypeVar("A")
T = TypeVar("T")
Batch: TypeAlias = Callable[[list[A]], Coroutine[Any, Any, list[T]]]
_SCAN_BATCH: Final = 300
_EDIT_BATCH: Final = 128
_FIRST_BATCH: Final = 25
"""The number of groups in the first batch of a stream. It is small so that the first results arrive soon."""
_SCANS_IN_FLIGHT: Final = 3
_EDITS_IN_FLIGHT: Final = 4


class ProtocolStore(OffsetStore, Generic[Edits]):
    """An `OffsetStore` whose subclasses provide a `Client` and its `ProtocolEdits`.

    ``timeout_ms`` of the configuration limits each read and each edit of a batch of groups. Connections use plain text
    or TLS, with or without SASL PLAIN or SCRAM.
    """

    kind: ClassVar[str]
    parallel_calls = 8

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        self._bootstrap = bootstrap
        self._config = config or ConnectionConfig()
        self._connection: StoreThread[Edits] | None = None
        self._connecting = threading.Lock()

    @abstractmethod
    def _new_thread(self, security: Security, timeout_s: float) -> StoreThread[Edits]:
        """Returns a client that has not connected yet, and the object that reads and edits groups."""

    @property
    def uri(self) -> str:
        return f"{self.kind}://{self._bootstrap}"

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        requested = None if partitions is None else list(dict.fromkeys(partitions))
        if requested is not None and not requested:
            return {}
        thread = self.store_thread()
        found = thread.run(lambda deadline: thread.edits.fetch(group, requested, deadline))
        return fetched(f"fetch of group {group}", found.offsets, found.errors, requested)

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        yield from self._scan((group, None) for group in groups)

    def scan_partitions(self, partitions: Mapping[str, Sequence[TopicPartition]]) -> Iterator[GroupOffsets]:
        yield from self._scan(partitions.items())

    def _scan(self, requests: Iterable[ScanRequest]) -> Iterator[GroupOffsets]:
        scan, group_of = self.store_thread().edits.scan, itemgetter(0)
        return self._in_batches(requests, scan, group_of, _SCAN_BATCH, _SCANS_IN_FLIGHT, finish=False)

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        yield from self._in_batches(edits, self.store_thread().edits.edit, attrgetter("group"))

    def _in_batches(
        self,
        items: Iterable[A],
        do: Batch[A, T],
        key: Callable[[A], str],
        max_size: int = _EDIT_BATCH,
        in_flight: int = _EDITS_IN_FLIGHT,
        *,
        finish: bool = True,
    ) -> Iterator[T]:
        """Runs ``do`` on batches of the items; see `run_batches`."""
        split = batches(items, first=_FIRST_BATCH, max_size=max_size, key=key)
        return run_batches(self.store_thread().runner, split, do, max_in_flight=in_flight, key=key, finish=finish)

    def log_origin(self) -> LogOrigin:
        """Returns the cluster that the brokers report. Managers report the cluster of the brokers behind them."""
        thread = self.store_thread()
        cluster_id, brokers = thread.run(thread.client.cluster)
        known = frozenset(f"{broker.host.lower()}:{broker.port}" for broker in brokers)
        return LogOrigin(cluster_id or None, f"cluster id and brokers as {self.uri} names them", known)

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        from offsetmgr.kafka.client.topics import topic_ids

        thread, requested = self.store_thread(), None if topics is None else list(topics)
        return thread.run(lambda deadline: topic_ids(thread.client, requested, deadline))

    def delete_group(self, group: str) -> None:
        """Deletes a group with all its offsets.

        Raises `GroupActive` with the members' names, `GroupNotFound`, and the errors of `fetch`. A store of a Kafka
        cluster also raises the error of `KafkaStore.unseen`. If the deletion was to prove that all offsets had been
        read, and fails, the group is as it was before this object deleted its offsets.
        """
        thread = self.store_thread()
        thread.run(lambda deadline: thread.edits.delete_group(group, deadline))

    def close(self) -> None:
        with self._connecting:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def store_thread(self) -> StoreThread[Edits]:
        """Returns the client and its event loop. The first call creates both. Raises the errors of `Security.of`."""
        with self._connecting:
            if self._connection is None:
                security = Security.of(self._config.kafka)
                self._connection = self._new_thread(security, self._config.timeout_ms / 1000)
            return self._connection
