"""Decides on the changes of one group's edit and executes them, for stores over Kafka's protocol.

This module performs no I/O: the caller passes the group's current offsets and the functions that write and delete.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    LockLost,
    OffsetMetadataTooLarge,
    OffsetMgrError,
    ServerError,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.evaluation import evaluate, stopped
from offsetmgr.core.model import ABSENT, BrokerPartition, OffsetAndMetadata, TopicPartition, is_valid_offset
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    CommitErrors,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
)
from offsetmgr.kafka.protocol.errors import NegativeOffset
from offsetmgr.kafka.protocol.requests import FetchedGroup

COMPARED_FIELDS: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="none")
"""The fields of a new value that are compared with the committed value. If these fields are equal, nothing is
written."""

_MAX_STRING_BYTES: Final = 2**15 - 1

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
        before = current.offsets.get(tp, ABSENT)
        if tp not in results:
            missing = ServerError(str(tp), "the broker's response does not contain it")
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, before, missing)
        elif (failure := results[tp]) is None:
            outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN, before)
        else:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, before, failure)
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
    return GroupEditResult(
        edit.group,
        {tp: ChangeOutcome(EditStatus.FAILED, None, error) for tp in edit.changes},
        how="nothing was written",
    )


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
