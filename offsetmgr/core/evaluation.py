"""Evaluates a conditional change against the current value of its partition.

The functions are pure. Every store that reads a value before it writes calls `evaluate` with that value, and writes
only the changes for which `evaluate` returns None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused, UnknownTopicOrPartition
from offsetmgr.core.model import Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, ChangeOutcome, EditStatus


def evaluate(
    group: str, tp: TopicPartition, change: Change, current: Offset, compared: Capabilities
) -> ChangeOutcome | None:
    """Returns the outcome of a change that needs no write; None if the store must write it.

    The outcome is FAILED with the error of `rejection`, or UNCHANGED if the store already holds the new value.
    ``current`` is the partition's value in the store. ``compared`` are the fields that the store saves.
    """
    after, expected, _, keeps_metadata = change
    if (
        after is not None
        and (isinstance(current, Absent) or after.offset > current.offset)
        and (expected is None or expected is current or expected == current)
    ):
        return None  # nearly every change: it raises the offset, or the partition has no committed offset
    error = rejection(group, tp, change, current)
    if error is not None:
        return ChangeOutcome(EditStatus.FAILED, current, error)
    if keeps_metadata and after is not None and isinstance(current, Committed) and after.offset == current.offset:
        return ChangeOutcome(EditStatus.UNCHANGED, current)
    if same_value(current, change.after, compared):
        return ChangeOutcome(EditStatus.UNCHANGED, current)
    return None


def rejection(group: str, tp: TopicPartition, change: Change, current: Offset) -> OffsetMgrError | None:
    """Returns the error of a change that the current value does not permit; None if the current value permits the
    change.

    The error is `Conflict` if the current value is not the expected one (data rule "conditional writes"), or
    `RewindRefused` if the change lowers the offset without permission (data rule "no accidental rewind").
    """
    after, expected, allow_rewind, _ = change
    if expected is not None and not _meets(current, expected):
        why = f"expected {_described(expected)}, found {_described(current)}"
        return Conflict(_name(group, tp), why, "nothing was written; read the offset again", actual=current)
    if allow_rewind or after is None or isinstance(current, Absent) or after.offset >= current.offset:
        return None
    return RewindRefused(
        _name(group, tp),
        f"would go back from {current.offset} to {after.offset}",
        Advice("add {allow_rewind=True} if this is intended"),
    )


def stops_group(error: OffsetMgrError | None) -> TypeGuard[OffsetMgrError]:
    """Returns whether the error of one partition stops all changes of its group (see `GroupEdit.whole`). A partition
    that the cluster does not have stops nothing, because no consumer reads it."""
    return error is not None and not isinstance(error, UnknownTopicOrPartition)


def stopped(
    group: str, outcomes: Mapping[TopicPartition, ChangeOutcome], others: Iterable[TopicPartition]
) -> dict[TopicPartition, ChangeOutcome]:
    """Returns the outcomes of ``others`` if one of ``outcomes`` stops the changes of its group; otherwise an empty
    mapping."""
    for tp, outcome in outcomes.items():
        if stops_group(error := outcome.error):
            why = f"stays unchanged, because {tp} cannot be changed"
            return {o: ChangeOutcome(EditStatus.FAILED, None, type(error)(_name(group, o), why)) for o in others}
    return {}


def same_value(current: Offset | None, new: OffsetAndMetadata | None, compared: Capabilities) -> bool:
    """Returns whether a write of ``new`` over ``current`` would leave the stored value unchanged. ``compared`` are the
    fields that the store saves. The function ignores all other fields."""
    if new is None:
        return isinstance(current, Absent)
    if not isinstance(current, Committed) or current.offset != new.offset:
        return False
    if compared.metadata and current.metadata != new.metadata:
        return False
    return not (compared.leader_epoch and new.leader_epoch is not None and current.leader_epoch != new.leader_epoch)


def _meets(current: Offset, expected: Offset) -> bool:
    """Returns whether ``current`` and ``expected`` are equal. Two absent offsets are equal. The versions of two
    committed offsets are compared only if both have a version."""
    if isinstance(expected, Absent) or isinstance(current, Absent):
        return isinstance(expected, Absent) and isinstance(current, Absent)
    return expected.offset == current.offset and (
        expected.version is None or current.version is None or expected.version == current.version
    )


def _described(value: Offset) -> str:
    if isinstance(value, Absent):
        return "no commit"
    return f"offset {value.offset}" + ("" if value.version is None else f" (version {value.version})")


def _name(group: str, tp: TopicPartition) -> str:
    return f"group {group}, {tp}"
