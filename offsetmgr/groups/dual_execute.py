"""Edits a dual store so that the edit can be undone in each of its two stores.

A dual store returns the larger of its two stores' offsets, so a single before-image cannot restore both stores.
Therefore each of the two stores has its own plan and its own before-images.

Ordering contract: both files of before-images are complete and fsynced before the first edit. The primary store is
written before the secondary store. If the primary store rejects a partition, the partition is not written to the
secondary store (data rule "dual commit: Kafka first"). Every write is conditional on the value in its before-image.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Protocol, runtime_checkable

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, Offset, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    GroupTreeStore,
    OffsetStore,
)
from offsetmgr.groups.before_images import BeforeImageFile
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange, holds_offset
from offsetmgr.groups.scan import scan_in_order
from offsetmgr.stores.dual_calls import GROUPS_IN_FLIGHT, edit_store
from offsetmgr.stores.dual_policy import accepted_by_primary, dual_rejection, outcome_of


@runtime_checkable
class StorePair(Protocol):
    """A store that keeps the same offsets in two other stores."""

    @property
    def primary(self) -> OffsetStore: ...

    @property
    def secondary(self) -> OffsetStore: ...


def execute_dual(
    store: StorePair, plan: EditPlan, images: tuple[BeforeImageFile, BeforeImageFile]
) -> Generator[GroupEditResult, None, None]:
    """Executes a plan like `execute`, with one file of before-images for the primary store and one for the secondary.

    If the write of a partition fails only in the secondary store, the status of the partition is FAILED, and the error
    says whether the primary store was changed.
    """
    names = [p.group for p in plan if _has_work(p)]
    with EditPlan() as first, EditPlan() as second:
        both = zip(scan_in_order(store.primary, names), scan_in_order(store.secondary, names), strict=True)
        for group_plan, (in_primary, in_secondary) in zip(filter(_has_work, plan), both, strict=True):
            changed = _changed_since_plan(group_plan, in_primary, in_secondary)
            first.add(_plan_for_store(group_plan, in_primary, changed, store.primary))
            second.add(_plan_for_store(group_plan, in_secondary, changed, store.secondary))
        for image, store_plan in zip(images, (first, second), strict=True):
            image.intend(store_plan)
        pairs = zip(first, second, strict=True)
        for batch in batched(pairs, GROUPS_IN_FLIGHT):
            yield from _execute_batch(store, batch)


def _has_work(plan: GroupEditPlan) -> bool:
    return plan.edit() is not None or (bool(plan.removes) and plan.problem is None)


def _changed_since_plan(
    plan: GroupEditPlan, in_primary: GroupOffsets, in_secondary: GroupOffsets
) -> Mapping[TopicPartition, OffsetMgrError]:
    """Returns the partitions that must not be changed, each with its error. These are the partitions that one of the
    stores cannot read, and the partitions whose offset has changed since the plan was made. If the plan deletes the
    znodes, the secondary's value may be unreadable."""
    found: dict[TopicPartition, OffsetMgrError] = {}
    for change in plan.changes:
        tp = change.partition
        before = None if plan.removes and change.before is ABSENT else change.before
        unchanged = Change(change.after, before, allow_rewind=True)
        outcome = dual_rejection(
            plan.group, tp, unchanged, outcome_of(in_primary, tp), outcome_of(in_secondary, tp), None
        )
        if outcome is not None and outcome.error is not None:
            found[tp] = outcome.error
    return found


def _plan_for_store(
    plan: GroupEditPlan, found: GroupOffsets, changed: Mapping[TopicPartition, OffsetMgrError], store: OffsetStore
) -> GroupEditPlan:
    """Returns the plan for one of the two stores: the changes in ``plan``, with before-images from this store."""

    def for_store(planned: PlannedChange) -> PlannedChange:
        before: Offset = found.offsets.get(planned.partition, ABSENT)
        after, problem = planned.after, changed.get(planned.partition)
        differs = not same_value(before, after, store.capabilities)
        if after is not None and not after.metadata and holds_offset(before, after.offset):
            differs = differs and holds_offset(planned.before, after.offset)  # this store keeps its offset and metadata
        return planned._replace(before=before, problem=problem, writes=differs and problem is None)

    changes = tuple(for_store(c) for c in plan.changes if c.writes and c.problem is None)
    return GroupEditPlan(plan.group, changes, removes=plan.removes if isinstance(store, GroupTreeStore) else ())


def _execute_batch(store: StorePair, batch: list[tuple[GroupEditPlan, GroupEditPlan]]) -> Iterator[GroupEditResult]:
    """Writes a batch of groups first to the primary store, and then to the secondary store."""
    done = edit_store(store.primary, [edit for first, _ in batch if (edit := first.edit()) is not None])
    secondary_edits: list[GroupEdit] = []
    for _, second in batch:
        edit = second.edit()
        if edit is None:
            continue
        outcomes = done[second.group].outcomes if second.group in done else {}
        accepted = {
            tp: change
            for tp, change in edit.changes.items()
            if tp not in outcomes or accepted_by_primary(change, outcomes[tp])
        }
        if accepted:
            secondary_edits.append(GroupEdit(second.group, accepted))
    secondary_done = edit_store(store.secondary, secondary_edits)
    for first, _ in batch:
        yield _combined(first, done.get(first.group), secondary_done.get(first.group))


def _combined(plan: GroupEditPlan, first: GroupEditResult | None, second: GroupEditResult | None) -> GroupEditResult:
    outcomes: dict[TopicPartition, ChangeOutcome] = {}
    for change in plan.changes:
        tp = change.partition
        in_primary = first.outcomes.get(tp) if first is not None else None
        in_secondary = second.outcomes.get(tp) if second is not None else None
        if (problem := change.problem or plan.problem) is not None:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, problem)
        elif in_primary is not None and in_primary.error is not None:
            outcomes[tp] = in_primary
        elif in_secondary is not None and in_secondary.error is not None:
            written = "written to the primary" if in_primary is not None else "unchanged in the primary"
            error = OffsetMgrError(
                f"group {plan.group}, {tp}",
                f"{written}, but not to the secondary: {in_secondary.error}",
                in_secondary.error.hint,
            )
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, error)
        else:
            wrote = any(o is not None and o.status is EditStatus.WRITTEN for o in (in_primary, in_secondary))
            outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN if wrote else EditStatus.UNCHANGED, change.before)
    both = "the two stores are written one after the other, each with its own condition"
    return GroupEditResult(plan.group, outcomes, atomic=False, how=both)
