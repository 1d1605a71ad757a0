"""The rules of a dual store (data rule "dual commit: Kafka first") as pure functions of the values in both stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult, GroupOffsets


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that the primary has accepted but the secondary has not yet accepted.

    ``after`` is the value to write, or None for a deletion. ``expected`` is the secondary's value when the change was
    decided, or None if that value could not be read. ``error`` is the error of the latest attempt.
    """

    after: OffsetAndMetadata | None
    expected: Offset | None
    allow_rewind: bool
    error: OffsetMgrError

    @property
    def may_lower(self) -> bool:
        """Whether the change may lower or delete the secondary's offset."""
        return self.allow_rewind or self.after is None

    def change(self) -> Change:
        """Returns the change for the secondary. If the change may lower the offset, it is written only if the secondary
        still has the ``expected`` value. All other changes can only raise the offset."""
        return Change(self.after, self.expected if self.may_lower else None, self.allow_rewind)

    def superseded(self, primary: Offset) -> bool:
        """Returns whether another client has changed the primary after this change; ``primary`` is the primary's
        current value. If so, this change must no longer be written to the secondary."""
        if self.after is None or isinstance(primary, Absent):
            return not (self.after is None and isinstance(primary, Absent))
        return primary.offset != self.after.offset if self.may_lower else primary.offset < self.after.offset


@dataclass(frozen=True, slots=True)
class DualDecision:
    """The decision on the changes of one group: the outcomes of rejected changes, and the changes to write to each
    store."""

    failed: dict[TopicPartition, ChangeOutcome]
    primary: dict[TopicPartition, Change]
    secondary: dict[TopicPartition, PendingChange]


def rejection(
    where: str,
    change: Change,
    first: Offset | OffsetMgrError,
    second: Offset | OffsetMgrError,
    pending: PendingChange | None,
) -> ChangeOutcome | None:
    """Returns the outcome of a change that must not be written to either store; None if the change may be written.

    ``first`` and ``second`` are the values (or read errors) of the primary and the secondary, ``pending`` is the
    partition's pending change.
    """
    if isinstance(first, OffsetMgrError):
        return ChangeOutcome(EditStatus.FAILED, None, first)
    if isinstance(second, OffsetMgrError):
        # A change without ``expected`` needs no check here: the primary itself checks whether the change may lower its
        # offset.
        return ChangeOutcome(EditStatus.FAILED, None, second) if change.expected is not None else None
    current = larger(first, second)
    if change.expected is not None and _offset(change.expected) != _offset(current):
        why = f"holds {_as_text(current)} where {_as_text(change.expected)} was expected"
        return ChangeOutcome(EditStatus.FAILED, current, Conflict(where, why, "read it again", actual=current))
    # If a rewind or deletion is pending, the secondary's offset is outdated, so a later commit is compared with the
    # primary's offset only.
    floor = first if pending is not None and pending.may_lower and change.expected is None else current
    if change.after is not None and isinstance(floor, Committed) and change.after.offset < floor.offset:
        if change.allow_rewind:
            return None
        why = f"{change.after.offset} is below the committed {floor.offset}"
        return ChangeOutcome(EditStatus.FAILED, current, RewindRefused(where, why, "allow rewinds if meant"))
    return None


def combined(
    edit: GroupEdit,
    decision: DualDecision,
    primary_result: GroupEditResult | None,
    second: GroupOffsets,
    errors: Mapping[TopicPartition, OffsetMgrError],
    written: Iterable[TopicPartition],
) -> GroupEditResult:
    """Combines the results of both stores into one; ``written`` are the partitions that the secondary has accepted."""
    outcomes = dict(decision.failed)
    also_written = set(written)
    for tp, outcome in {} if primary_result is None else primary_result.outcomes.items():
        secondary_outcome = outcome_of(second, tp)
        known = outcome.before is not None and not isinstance(secondary_outcome, OffsetMgrError)
        before = larger(outcome.before, secondary_outcome) if known else None  # type: ignore[arg-type]
        unchanged = outcome.status is EditStatus.UNCHANGED and tp in also_written
        outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN if unchanged else outcome.status, before, outcome.error)
    compared = any(change.expected is not None for change in edit.changes.values())
    how = f"primary: {primary_result.how or 'its own check'}" if primary_result is not None else ""
    if compared:
        how += "; the secondary was read before the primary was written, and written after it"
    return GroupEditResult(
        edit.group,
        {tp: outcomes[tp] for tp in edit.changes},
        atomic=(primary_result is None or primary_result.atomic) and not compared,
        how=how,
        secondary=errors,
    )


def merged(first: GroupOffsets, second: GroupOffsets) -> GroupOffsets:
    """Combines the offsets of both stores: the larger offset of each partition, or the error if either store could not
    read the partition (data rule "absent is not zero")."""
    if error := first.error or second.error:
        return GroupOffsets(first.group, {}, error=error)
    errors = {**second.errors, **first.errors}
    offsets = {
        tp: found
        for tp in dict.fromkeys([*first.offsets, *second.offsets])
        if tp not in errors
        and isinstance(found := larger(first.offsets.get(tp, ABSENT), second.offsets.get(tp, ABSENT)), Committed)
    }
    return GroupOffsets(first.group, offsets, errors)


def outcome_of(found: GroupOffsets, tp: TopicPartition) -> Offset | OffsetMgrError:
    """Returns the offset of a partition, or the error with which its read failed."""
    error = found.error or found.errors.get(tp)
    return error if error is not None else found.offsets.get(tp, ABSENT)


def larger(first: Offset, second: Offset) -> Offset:
    """Returns the larger offset, or the first one if both are equal. The result has no version, because a version is
    valid in one store only."""
    if isinstance(first, Absent) or (isinstance(second, Committed) and second.offset > first.offset):
        first = second
    return first if isinstance(first, Absent) else first._replace(version=None)


def _offset(found: Offset) -> int | None:
    return found.offset if isinstance(found, Committed) else None


def _as_text(found: Offset) -> str:
    return str(found.offset) if isinstance(found, Committed) else "no commit"
