"""Plans the edits that can be planned without log ranges: delete, import, copy, and undo.

Each function yields one `GroupEditPlan` for each group and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError
from offsetmgr.core.evaluation import rejection
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupOffsets, OffsetStore
from offsetmgr.groups.edit_plan import BY_PARTITION, GroupEditPlan, PlannedChange, holds_offset, plan_change
from offsetmgr.groups.log_checks import LogChecks
from offsetmgr.groups.selection import ALL_TOPICS, TopicSelection, require_known, scan_in_order
from offsetmgr.snapshots.group_images import GroupImages
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck


def plan_delete(store: OffsetStore, groups: Iterable[str], topics: TopicSelection) -> Iterator[GroupEditPlan]:
    """Plans the deletion of the groups' committed offsets in the selected topics.

    A partition that cannot be read has no before-image. The plan does not delete the offset of such a partition, and
    the problem of the change is the read error.
    """
    for found in scan_in_order(store, groups):
        if found.error is not None:
            yield GroupEditPlan(found.group, (), found.error)
            continue
        if not (found.offsets or found.errors):
            require_known(store, [found.group])
        changes = [
            plan_change(tp, committed, None, store.capabilities, note="deletes")
            for tp, committed in found.offsets.items()
            if topics.matches(tp)
        ]
        changes += _unreadable(found.errors, topics)
        problem = None
        if not changes and topics.patterns:
            problem = GroupNotFound(f"group {found.group!r}", "has no committed offsets in these topics")
        yield GroupEditPlan(found.group, tuple(sorted(changes, key=BY_PARTITION)), problem, found.as_of)


@runtime_checkable
class GroupRemovingStore(Protocol):
    """A store whose groups can exist without offsets."""

    def delete_group(self, group: str) -> object:
        """Deletes the group with its offsets. Raises `GroupActive`, `GroupNotFound`."""
        ...


def remove_groups(store: OffsetStore, groups: Iterable[str]) -> Iterator[tuple[str, OffsetMgrError | None]]:
    """Deletes groups whose offsets have already been deleted with before-images. Yields each group with an error, or
    with None if the group was deleted.

    If another client has committed to a group in the meantime, the function does not delete the group and yields the
    error `Conflict`. In some stores a group consists only of its offsets; for these stores the function does nothing.
    """
    if not isinstance(store, GroupRemovingStore):
        return
    for group in groups:
        try:
            if store.fetch(group):
                yield group, Conflict(f"group {group!r}", "another client committed to it meanwhile, so it stays")
                continue
            store.delete_group(group)
        except GroupNotFound:
            yield group, None  # the group disappeared with its last offset
        except OffsetMgrError as error:
            yield group, error
        else:
            yield group, None


def groups_left_without_offsets(store: OffsetStore, groups: Iterable[str]) -> list[str]:
    """Returns the groups that the store still lists although they have no offsets. Raises any error from reading the
    store."""
    known = set(store.groups())
    names = [group for group in groups if group in known]
    return [f.group for f in scan_in_order(store, names) if not (f.offsets or f.errors or f.error)]


def plan_import(
    store: OffsetStore,
    sources: Iterable[GroupOffsets],
    topics: TopicSelection = ALL_TOPICS,
    *,
    rename: Mapping[str, str] | None = None,
    allow_rewind: bool = False,
    crossing: CrossClusterCheck | None = None,
    checks: LogChecks | None = None,
) -> Iterator[GroupEditPlan]:
    """Plans the import of the offsets in ``sources`` (groups of a snapshot or of another store) into ``store``.

    Unless ``allow_rewind`` is True, a change that would lower a committed offset gets a problem (data rule "no
    accidental rewind"). ``crossing`` detects offsets whose topic was recreated after the commit; a change to such an
    offset gets a problem, too. If ``crossing`` is None, the function does not import leader epochs, and the caller
    guarantees that the offsets belong to the logs of the target's cluster. ``checks`` clamps offsets outside their
    logs, except those that ``store`` already holds; a change to an offset without a log gets a problem. Partitions
    without an offset in ``sources`` are not changed.
    """
    rename, new = rename or {}, tuple.__new__
    sources = sources if checks is None else checks.loaded(sources, topics)
    keeps_epochs = crossing is not None and crossing.comparison.keeps_epochs
    pending: dict[str, GroupOffsets] = {}

    def targets() -> Iterator[str]:
        for source in sources:
            target = rename.get(source.group, source.group)
            pending[target] = source
            yield target

    for found in scan_in_order(store, targets()):
        source = pending.pop(found.group)
        problem = source.error or found.error
        if problem is not None:
            yield GroupEditPlan(found.group, (), problem)
            continue
        changes: list[PlannedChange] = []
        if crossing is not None:
            crossing.load_topics({tp.topic for tp in source.offsets})
        for tp, original in source.offsets.items():
            if topics.patterns and not topics.matches(tp):
                continue
            committed = original if keeps_epochs or original[2] is None else original._replace(leader_epoch=None)
            before, note = found.offsets.get(tp), ""
            rejected: OffsetMgrError | None = crossing.recreation_error(tp, committed) if crossing is not None else None
            if checks is not None and rejected is None:
                committed, note, rejected = checks.clamped(tp, committed, before, store.capabilities)
            if rejected is not None:
                changes.append(PlannedChange(tp, before or ABSENT, committed.value(), problem=rejected, writes=False))
            elif before is not None and committed[0] > before[0]:  # fast path of `_plan_imported` for the usual case
                changes.append(
                    new(PlannedChange, (tp, before, new(OffsetAndMetadata, committed[:4]), note, None, True))
                )
            else:
                changes.append(_plan_imported(store, tp, found, committed.value(), allow_rewind, note))
        changes += _unreadable(source.errors, topics)
        yield GroupEditPlan(found.group, tuple(sorted(changes, key=BY_PARTITION)), as_of=found.as_of)


def plan_undo(
    store: OffsetStore,
    images: Iterable[GroupImages],
    topics: TopicSelection = ALL_TOPICS,
    *,
    force: bool = False,
    crossing: CrossClusterCheck | None = None,
) -> Iterator[GroupEditPlan]:
    """Plans the undo of an edit: restores the previous offsets and deletes the offsets that the edit created.

    If a partition holds neither the offset that the edit wrote nor the previous offset, another client has committed
    since the edit. Unless ``force`` is True, the partition gets the problem `Conflict`. An undo may rewind offsets.
    ``crossing`` detects before-images whose topic was recreated after the commit; the change to such a before-image
    gets a problem, too. If ``crossing`` is None, the caller guarantees that the before-images belong to the logs to
    which the store's offsets refer.
    """
    pending: dict[str, GroupImages] = {}

    def targets() -> Iterator[str]:
        for one in images:
            pending[one.group] = one
            yield one.group

    for found in scan_in_order(store, targets()):
        source = pending.pop(found.group)
        if found.error is not None:
            yield GroupEditPlan(found.group, (), found.error)
            continue
        changes: list[PlannedChange] = []
        if crossing is not None:
            crossing.load_topics({tp.topic for tp in source.after})
        for tp, written_offset in source.after.items():
            if not topics.matches(tp):
                continue
            if (error := found.errors.get(tp)) is not None:
                changes.append(PlannedChange(tp, ABSENT, None, problem=error, writes=False))
                continue
            current = found.offsets.get(tp, ABSENT)
            before = source.before.get(tp)
            back = before.value() if before is not None else None
            if crossing is not None and before is not None and back is not None:
                back = crossing.adapt(back)
                if (rejected := crossing.recreation_error(tp, before)) is not None:
                    changes.append(PlannedChange(tp, current, back, problem=rejected, writes=False))
                    continue
            change = plan_change(tp, current, back, store.capabilities, note="deletes" if back is None else "")
            if change.writes and not force and not holds_offset(current, written_offset):
                change = change._replace(problem=_moved_on(found.group, tp, current, written_offset), writes=False)
            changes.append(change)
        yield GroupEditPlan(found.group, tuple(sorted(changes, key=BY_PARTITION)), as_of=found.as_of)


def _plan_imported(
    store: OffsetStore, tp: TopicPartition, found: GroupOffsets, after: OffsetAndMetadata, allow_rewind: bool, note: str
) -> PlannedChange:
    if (error := found.errors.get(tp)) is not None:
        return PlannedChange(tp, ABSENT, after, note, problem=error, writes=False)
    before = found.offsets.get(tp, ABSENT)
    if isinstance(before, Committed) and (
        refused := rejection(found.group, tp, Change(after, None, allow_rewind), before)
    ):
        return PlannedChange(tp, before, after, note, problem=refused, writes=False)
    return plan_change(tp, before, after, store.capabilities, note=note)


def _moved_on(group: str, tp: TopicPartition, current: Offset, written_offset: int | None) -> Conflict:
    now = current.offset if isinstance(current, Committed) else "absent"
    return Conflict(
        f"group {group}, {tp}",
        f"has changed since: {now} now, the edit wrote {'absent' if written_offset is None else written_offset}",
        "add --allow-rewind to restore it anyway",
    )


def _unreadable(errors: Mapping[TopicPartition, OffsetMgrError], topics: TopicSelection) -> list[PlannedChange]:
    return [
        PlannedChange(tp, ABSENT, None, problem=error, writes=False)
        for tp, error in errors.items()
        if topics.matches(tp)
    ]
