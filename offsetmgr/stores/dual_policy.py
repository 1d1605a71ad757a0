"""The rules of a dual store (data rule "dual commit: Kafka first") as pure functions of the values in both stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.evaluation import rejection
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
)

SUPERSEDED: Final = "the primary no longer holds it: another client has committed, or the topic was recreated"


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that the primary has accepted but the secondary has not yet accepted.

    ``after`` is the value to write, None for a deletion. ``expected`` is the secondary's value at the time of the
    decision, None if it could not be read. ``may_lower`` tells whether the change may lower or delete the secondary's
    offset. ``error`` is the error of the latest attempt.
    """

    after: OffsetAndMetadata | None
    expected: Offset | None
    may_lower: bool
    error: OffsetMgrError

    def change(self) -> Change:
        return secondary_change(self.after, self.expected, may_lower=self.may_lower)


def is_superseded(after: OffsetAndMetadata | None, primary: Offset, *, may_lower: bool) -> bool:
    """Returns whether the primary has changed after it accepted ``after``: another client has committed, or the topic
    was deleted and its offsets with it. ``primary`` is the primary's current value. If so, ``after`` must no longer be
    written to the secondary."""
    if after is None or isinstance(primary, Absent):
        return not (after is None and isinstance(primary, Absent))
    return primary.offset != after.offset if may_lower else primary.offset < after.offset


def secondary_change(after: OffsetAndMetadata | None, known: Offset | None, *, may_lower: bool) -> Change:
    """Returns the change that writes a value of the primary to the secondary.

    ``known`` is the secondary's last known value; None if it is unknown. A change that may lower or delete the
    secondary's offset is conditional on ``known``, because the change could otherwise undo a commit of another client.
    Any other change can only raise the offset.
    """
    return Change(after, known if may_lower else None, may_lower)


def accepted_by_primary(change: Change, outcome: ChangeOutcome) -> bool:
    """Returns whether a change may be written to the secondary, given its outcome in the primary. The secondary
    receives only changes that the primary accepted; a deletion counts as accepted if the primary has no such group."""
    return outcome.error is None or (change.after is None and isinstance(outcome.error, GroupNotFound))


@dataclass(frozen=True, slots=True)
class DualDecision:
    """The decision on the changes of one group: the outcomes of rejected changes, and the changes to write to each
    store."""

    failed: dict[TopicPartition, ChangeOutcome]
    primary: dict[TopicPartition, Change]
    secondary: dict[TopicPartition, PendingChange]


def dual_rejection(
    group: str,
    tp: TopicPartition,
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
    # A pending rewind or deletion is not in the secondary yet, so only the primary's offset counts for later commits.
    floor = first if pending is not None and pending.may_lower and change.expected is None else current
    error = rejection(group, tp, change, floor)
    return None if error is None else ChangeOutcome(EditStatus.FAILED, current, error)


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


def without_epochs(found: GroupOffsets) -> GroupOffsets:
    """Returns a group's offsets without their leader epochs, which are not valid in the logs of another cluster."""
    if not any(committed.leader_epoch is not None for committed in found.offsets.values()):
        return found
    return replace(found, offsets={tp: c._replace(leader_epoch=None) for tp, c in found.offsets.items()})


def merged(first: GroupOffsets, second: GroupOffsets) -> GroupOffsets:
    """Combines the offsets of both stores: the larger offset of each partition, or the error if either store could not
    read the partition (data rule "absent is not zero")."""
    if error := first.error or second.error:
        return GroupOffsets(first.name, {}, error=error)
    errors = {**second.errors, **first.errors}
    offsets = {
        tp: found
        for tp in dict.fromkeys([*first.offsets, *second.offsets])
        if tp not in errors
        and isinstance(found := larger(first.offsets.get(tp, ABSENT), second.offsets.get(tp, ABSENT)), Committed)
    }
    unrecognised, hidden = first.unrecognised + second.unrecognised, first.hidden or second.hidden
    return GroupOffsets(first.name, offsets, errors, unrecognised=unrecognised, hidden=hidden)


def partitions_ahead(
    used: Mapping[TopicPartition, Offset | OffsetMgrError], other: Mapping[TopicPartition, Offset | OffsetMgrError]
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Returns the partitions in which the offset in ``other`` is larger than the offset in ``used``. A fetch from both
    stores would return the larger offset. Each value is a pair of the offset in ``used`` (None if there is no commit or
    it is unreadable) and the offset in ``other``."""
    found: dict[TopicPartition, tuple[int | None, int]] = {}
    for tp in sorted(other):
        in_use, unused = used.get(tp), other[tp]
        if not isinstance(unused, Committed):
            continue
        if not isinstance(in_use, Committed):
            found[tp] = (None, unused.offset)
        elif unused.offset > in_use.offset:
            found[tp] = (in_use.offset, unused.offset)
    return found


def catch_up_changes(
    behind: Mapping[TopicPartition, Offset], ahead: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, Change]:
    """Returns the writes that raise the offsets in ``behind`` to the larger offsets in ``ahead``. Each write is
    conditional on the current value in ``behind``."""
    changes: dict[TopicPartition, Change] = {}
    for tp in partitions_ahead(behind, ahead):
        larger = ahead[tp]
        assert isinstance(larger, Committed)
        value = OffsetAndMetadata(larger.offset, larger.metadata, larger.leader_epoch)
        changes[tp] = Change(value, expected=behind.get(tp, ABSENT))
    return changes


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
