"""Edits a dual store so that the edit can be undone in each of its two stores.

A dual store returns the larger of its two stores' offsets, so a single before-image cannot restore both stores.
Therefore each of the two stores has its own plan and its own before-images.

Ordering contract: both files of before-images are complete and fsynced before the first edit. The primary store is
written before the secondary store. If the primary store rejects a partition, the partition is not written to the
secondary store (data rule "dual commit: Kafka first"). Every write is conditional on the value in its before-image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.model import ABSENT, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import (
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
    OffsetStore,
    same_value,
)
from offsetmgr.groups.before_images import write_images
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange
from offsetmgr.groups.selection import scan_in_order
from offsetmgr.snapshots.base import SnapshotHeader

GROUPS_AT_ONCE: Final = 200
"""The number of groups in a batch. A batch is written first to the primary store, and then to the secondary store."""


@runtime_checkable
class StorePair(Protocol):
    """A store that keeps the same offsets in two other stores."""

    @property
    def primary(self) -> OffsetStore: ...

    @property
    def secondary(self) -> OffsetStore: ...


class BeforeImageFile(NamedTuple):
    """The path of the before-image file of one of the two stores, and the header to write to that file."""

    path: Path
    header: SnapshotHeader


def execute_dual(
    store: StorePair,
    plan: EditPlan,
    images: tuple[BeforeImageFile, BeforeImageFile],
    *,
    guard: Guard = Guard.LOCK,
    on_images: Callable[[Path], None] | None = None,
) -> Iterator[GroupEditResult]:
    """Executes a plan like `execute`, with one file of before-images for the primary store and one for the secondary.

    If a partition fails only in the secondary store, its status is FAILED, and its error says whether the partition was
    written to the primary store.
    """
    names = [p.group for p in plan if p.edit(guard) is not None]
    with EditPlan() as first, EditPlan() as second:
        both = zip(scan_in_order(store.primary, names), scan_in_order(store.secondary, names), strict=True)
        for group_plan, (in_primary, in_secondary) in zip(
            (p for p in plan if p.edit(guard) is not None), both, strict=True
        ):
            changed = _changed_since_plan(group_plan, in_primary, in_secondary)
            first.add(_plan_for_store(group_plan, in_primary, changed, store.primary))
            second.add(_plan_for_store(group_plan, in_secondary, changed, store.secondary))
        for image, store_plan in zip(images, (first, second), strict=True):
            write_images(image.path, store_plan, image.header)
            if on_images is not None:
                on_images(image.path)
        pairs = zip(first, second, strict=True)
        while batch := list(islice(pairs, GROUPS_AT_ONCE)):
            yield from _execute_batch(store, batch, guard)


def _changed_since_plan(
    plan: GroupEditPlan, in_primary: GroupOffsets, in_secondary: GroupOffsets
) -> Mapping[TopicPartition, OffsetMgrError]:
    """Returns the partitions that must not be changed, each with its error. Either one of the stores cannot read the
    partition, or the offset has changed since the plan was made."""
    found: dict[TopicPartition, OffsetMgrError] = {}
    for change in plan.changes:
        tp = change.partition
        error = in_primary.error or in_secondary.error or in_primary.errors.get(tp) or in_secondary.errors.get(tp)
        if error is None:
            committed = (in_primary.offsets.get(tp), in_secondary.offsets.get(tp))
            now = max((c.offset for c in committed if c is not None), default=None)
            if now != (change.before.offset if isinstance(change.before, Committed) else None):
                error = Conflict(
                    f"group {plan.group}, {tp}", f"was changed by another client since the plan: now {now}"
                )
        if error is not None:
            found[tp] = error
    return found


def _plan_for_store(
    plan: GroupEditPlan, found: GroupOffsets, changed: Mapping[TopicPartition, OffsetMgrError], store: OffsetStore
) -> GroupEditPlan:
    """Returns the plan for one of the two stores: the changes in ``plan``, with before-images from this store."""

    def for_store(planned: PlannedChange) -> PlannedChange:
        before: Offset = found.offsets.get(planned.partition, ABSENT)
        differs = not same_value(before, planned.after, store.capabilities)
        problem = changed.get(planned.partition)
        return planned._replace(before=before, problem=problem, writes=differs and problem is None)

    return GroupEditPlan(plan.group, tuple(for_store(c) for c in plan.changes if c.writes and c.problem is None))


def _execute_batch(
    store: StorePair, batch: list[tuple[GroupEditPlan, GroupEditPlan]], guard: Guard
) -> Iterator[GroupEditResult]:
    done = _edit(store.primary, [edit for first, _ in batch if (edit := first.edit(guard)) is not None])
    secondary_edits: list[GroupEdit] = []
    for _, second in batch:
        edit = second.edit(guard)
        if edit is None:
            continue
        failed = done[second.group].failures if second.group in done else {}
        accepted = {tp: change for tp, change in edit.changes.items() if tp not in failed}
        if accepted:
            secondary_edits.append(GroupEdit(second.group, accepted, guard))
    secondary_done = _edit(store.secondary, secondary_edits)
    for first, _ in batch:
        yield _combined(first, done.get(first.group), secondary_done.get(first.group))


def _edit(store: OffsetStore, edits: list[GroupEdit]) -> dict[str, GroupEditResult]:
    """Edits a store and returns one result for each group. If the whole store fails, every group that has no result yet
    gets the store's error as its result."""
    done: dict[str, GroupEditResult] = {}
    try:
        for result in store.edit(edits) if edits else ():
            done[result.group] = result
    except OffsetMgrError as error:
        failed = ChangeOutcome(EditStatus.FAILED, None, error)
        for edit in edits:
            done.setdefault(edit.group, GroupEditResult(edit.group, dict.fromkeys(edit.changes, failed), atomic=False))
    return done


def _combined(plan: GroupEditPlan, first: GroupEditResult | None, second: GroupEditResult | None) -> GroupEditResult:
    outcomes: dict[TopicPartition, ChangeOutcome] = {}
    for change in plan.changes:
        tp = change.partition
        in_primary = first.outcomes.get(tp) if first is not None else None
        in_secondary = second.outcomes.get(tp) if second is not None else None
        if change.problem is not None:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, change.problem)
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
