"""The rules of a dual store (data rule "dual commit: Kafka first") as functions of the values in both stores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult, GroupOffsets


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that the primary accepted and the secondary did not, yet.

    ``after`` None is a deletion. ``expected`` is the secondary's value at the decision, None if it could not be read.
    ``error`` is the latest failure.
    """

    after: OffsetAndMetadata | None
    expected: Offset | None
    allow_rewind: bool
    error: OffsetMgrError

    @property
    def lowers(self) -> bool:
        """Returns whether it may lower (or delete) the secondary's offset."""
        return self.allow_rewind or self.after is None

    def change(self) -> Change:
        """Returns the change for the secondary: forward only, unless a rewind was intended, and then only over the
        previous value."""
        return Change(self.after, self.expected if self.lowers else None, self.allow_rewind)

    def overtaken(self, primary: Offset) -> bool:
        """Returns whether other clients have changed the primary since, so that this must not be written any more."""
        if self.after is None or isinstance(primary, Absent):
            return not (self.after is None and isinstance(primary, Absent))
        return primary.offset != self.after.offset if self.lowers else primary.offset < self.after.offset


@dataclass(frozen=True, slots=True)
class DualDecision:
    """The decision on the changes of one group: immediate failures, and the part of each store."""

    failed: dict[TopicPartition, ChangeOutcome]
    primary: dict[TopicPartition, Change]
    secondary: dict[TopicPartition, PendingChange]


def refused(
    where: str,
    change: Change,
    first: Offset | OffsetMgrError,
    second: Offset | OffsetMgrError,
    waiting: PendingChange | None,
) -> ChangeOutcome | None:
    """Returns the outcome of a change that must not reach the primary, or None."""
    if isinstance(first, OffsetMgrError):
        return ChangeOutcome(EditStatus.FAILED, None, first)
    if isinstance(second, OffsetMgrError):
        # the primary's own rule suffices: a change that does not lower the primary cannot lower the larger offset
        return ChangeOutcome(EditStatus.FAILED, None, second) if change.expected is not None else None
    held = larger(first, second)
    if change.expected is not None and _offset(change.expected) != _offset(held):
        why = f"holds {_said(held)} where {_said(change.expected)} was expected"
        return ChangeOutcome(EditStatus.FAILED, held, Conflict(where, why, "read it again", actual=held))
    # a pending rewind or deletion counts as done for later commits
    floor = first if waiting is not None and waiting.lowers and change.expected is None else held
    if change.after is not None and isinstance(floor, Committed) and change.after.offset < floor.offset:
        if change.allow_rewind:
            return None
        why = f"{change.after.offset} is below the committed {floor.offset}"
        return ChangeOutcome(EditStatus.FAILED, held, RewindRefused(where, why, "allow rewinds if meant"))
    return None


def combined(
    edit: GroupEdit,
    decision: DualDecision,
    done: GroupEditResult | None,
    second: GroupOffsets,
    errors: Mapping[TopicPartition, OffsetMgrError],
    written: Iterable[TopicPartition],
) -> GroupEditResult:
    """Returns the outcomes of both stores as one; ``written`` are the partitions that the secondary accepted now."""
    outcomes = dict(decision.failed)
    also_written = set(written)
    for tp, outcome in {} if done is None else done.outcomes.items():
        there = outcome_of(second, tp)
        known = outcome.before is not None and not isinstance(there, OffsetMgrError)
        before = larger(outcome.before, there) if known else None  # type: ignore[arg-type]
        unchanged = outcome.status is EditStatus.UNCHANGED and tp in also_written
        outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN if unchanged else outcome.status, before, outcome.error)
    compared = any(change.expected is not None for change in edit.changes.values())
    how = f"primary: {done.how or 'its own rule'}" if done is not None else ""
    if compared:
        how += "; the secondary was read before the primary was written, and written after it"
    return GroupEditResult(
        edit.group,
        {tp: outcomes[tp] for tp in edit.changes},
        atomic=(done is None or done.atomic) and not compared,
        how=how,
        secondary=errors,
    )


def merged(first: GroupOffsets, second: GroupOffsets) -> GroupOffsets:
    """Returns the larger offset of each partition; an error in either store is the partition's error (data rule "absent
    is not zero")."""
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
    error = found.error or found.errors.get(tp)
    return error if error is not None else found.offsets.get(tp, ABSENT)


def larger(first: Offset, second: Offset) -> Offset:
    """Returns the larger offset, the primary's if they are equal, without a version, which belongs to one store."""
    if isinstance(first, Absent) or (isinstance(second, Committed) and second.offset > first.offset):
        first = second
    return first if isinstance(first, Absent) else first._replace(version=None)


def _offset(found: Offset) -> int | None:
    return found.offset if isinstance(found, Committed) else None


def _said(found: Offset) -> str:
    return str(found.offset) if isinstance(found, Committed) else "no commit"
