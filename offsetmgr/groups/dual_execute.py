"""Edits of a dual store that can be undone in each of the two stores.

A dual store returns the larger offset, so one before-image could not restore both: each of the two stores has its own
plan and its own before-images.

Ordering contract: both files of before-images are complete and fsynced before the first edit; the primary store is
written before the secondary, and the secondary never for a partition that the primary rejected (data rule "dual commit:
Kafka first"). Every write is conditional on the value in its before-image.
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
"""The number of groups that are written to the primary store before the secondary."""


@runtime_checkable
class DualEdit(Protocol):
    """A store that keeps the same offsets in two others."""

    @property
    def primary(self) -> OffsetStore: ...

    @property
    def secondary(self) -> OffsetStore: ...


class Image(NamedTuple):
    """The file of before-images of one of the two stores, and its header."""

    path: Path
    header: SnapshotHeader


def execute_dual(
    store: DualEdit,
    proposal: EditPlan,
    images: tuple[Image, Image],
    *,
    guard: Guard = Guard.LOCK,
    on_images: Callable[[Path], None] | None = None,
) -> Iterator[GroupEditResult]:
    """Works as `execute`, with one file of before-images for the primary store and one for the secondary.

    A partition that failed only in the secondary store is FAILED, and its error says that the primary was written.
    """
    names = [p.group for p in proposal if p.edit(guard) is not None]
    with EditPlan() as first, EditPlan() as second:
        both = zip(scan_in_order(store.primary, names), scan_in_order(store.secondary, names), strict=True)
        for one, (here, there) in zip((p for p in proposal if p.edit(guard) is not None), both, strict=True):
            moved = _moved(one, here, there)
            first.add(_inner(one, here, moved, store.primary))
            second.add(_inner(one, there, moved, store.secondary))
        for image, inner in zip(images, (first, second), strict=True):
            write_images(image.path, inner, image.header)
            if on_images is not None:
                on_images(image.path)
        pairs = zip(first, second, strict=True)
        while batch := list(islice(pairs, GROUPS_AT_ONCE)):
            yield from _carry_out(store, batch, guard)


def _moved(proposal: GroupEditPlan, here: GroupOffsets, there: GroupOffsets) -> Mapping[TopicPartition, OffsetMgrError]:
    """Returns partitions that cannot be changed: unreadable in one of the stores, or changed since the plan."""
    found: dict[TopicPartition, OffsetMgrError] = {}
    for change in proposal.changes:
        tp = change.partition
        error = here.error or there.error or here.errors.get(tp) or there.errors.get(tp)
        if error is None:
            committed = (here.offsets.get(tp), there.offsets.get(tp))
            now = max((c.offset for c in committed if c is not None), default=None)
            if now != (change.before.offset if isinstance(change.before, Committed) else None):
                error = Conflict(f"group {proposal.group}, {tp}", f"has moved on meanwhile: {now} now")
        if error is not None:
            found[tp] = error
    return found


def _inner(
    proposal: GroupEditPlan, found: GroupOffsets, moved: Mapping[TopicPartition, OffsetMgrError], store: OffsetStore
) -> GroupEditPlan:
    """Returns the plan of one of the two stores: the same changes with its own before-images."""

    def change(wanted: PlannedChange) -> PlannedChange:
        before: Offset = found.offsets.get(wanted.partition, ABSENT)
        differs = not same_value(before, wanted.after, store.capabilities)
        problem = moved.get(wanted.partition)
        return wanted._replace(before=before, problem=problem, writes=differs and problem is None)

    wanted = (c for c in proposal.changes if c.writes and c.problem is None)
    return GroupEditPlan(proposal.group, tuple(change(one) for one in wanted))


def _carry_out(
    store: DualEdit, batch: list[tuple[GroupEditPlan, GroupEditPlan]], guard: Guard
) -> Iterator[GroupEditResult]:
    done = _edit(store.primary, [edit for first, _ in batch if (edit := first.edit(guard)) is not None])
    seconds: list[GroupEdit] = []
    for _, second in batch:
        edit = second.edit(guard)
        if edit is None:
            continue
        failed = done[second.group].failures if second.group in done else {}
        taken = {tp: change for tp, change in edit.changes.items() if tp not in failed}
        if taken:
            seconds.append(GroupEdit(second.group, taken, guard))
    also = _edit(store.secondary, seconds)
    for first, _ in batch:
        yield _combined(first, done.get(first.group), also.get(first.group))


def _edit(store: OffsetStore, edits: list[GroupEdit]) -> dict[str, GroupEditResult]:
    """Returns one result for each group: if the whole store fails, its error for all groups without a result."""
    done: dict[str, GroupEditResult] = {}
    try:
        for result in store.edit(edits) if edits else ():
            done[result.group] = result
    except OffsetMgrError as error:
        failed = ChangeOutcome(EditStatus.FAILED, None, error)
        for edit in edits:
            done.setdefault(edit.group, GroupEditResult(edit.group, dict.fromkeys(edit.changes, failed), atomic=False))
    return done


def _combined(
    proposal: GroupEditPlan, first: GroupEditResult | None, second: GroupEditResult | None
) -> GroupEditResult:
    outcomes: dict[TopicPartition, ChangeOutcome] = {}
    for change in proposal.changes:
        tp = change.partition
        here = first.outcomes.get(tp) if first is not None else None
        there = second.outcomes.get(tp) if second is not None else None
        if change.problem is not None:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, change.problem)
        elif here is not None and here.error is not None:
            outcomes[tp] = here
        elif there is not None and there.error is not None:
            written = "written to the primary" if here is not None else "already so in the primary"
            error = OffsetMgrError(
                f"group {proposal.group}, {tp}", f"{written}, but not to the secondary: {there.error}", there.error.hint
            )
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, error)
        else:
            wrote = any(o is not None and o.status is EditStatus.WRITTEN for o in (here, there))
            outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN if wrote else EditStatus.UNCHANGED, change.before)
    both = "the two stores are written one after the other, each on its own condition"
    return GroupEditResult(proposal.group, outcomes, atomic=False, how=both)
