"""The before-images of a mirror: the target's offsets of each group before the mirror writes to the group.

An import of a file of before-images undoes the mirror for the partitions that still hold the offset of the first copy.
The import rejects a partition that the mirror or a consumer has advanced since, unless the user allows rewinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from offsetmgr.core.advice import Invocation
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.groups.before_images import image_file
from offsetmgr.groups.edit_plan import BY_PARTITION, EditPlan, GroupEditPlan, PlannedChange
from offsetmgr.groups.edits import plan_import
from offsetmgr.groups.execute import EditOrigin
from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.mirror import GroupMirror, Mirror
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck


@dataclass(slots=True)
class MirrorImages:
    """Writes the files of before-images. The groups that exist when the mirror begins are in ``path``. The file of
    groups that the mirror finds later has a number in its name."""

    source: OffsetStore
    target: OffsetStore
    options: PlanOptions
    path: Path
    crossing: CrossClusterCheck | None = None
    on_durable: Callable[[Path], None] = lambda _path: None
    _files: int = 0
    _saved: dict[str, Set[TopicPartition]] = field(default_factory=dict)
    _changes: dict[str, dict[TopicPartition, PlannedChange]] = field(default_factory=dict)

    def prepare(self, new: Sequence[GroupMirror]) -> None:
        """Determines the last writers of new groups, and writes a file with their before-images, and another one once
        more partitions can be read. Raises `OffsetMgrError` if it cannot be written or if a store cannot be read."""
        writes = last_writes(self.source, self.target, window_s=0, selects=self.options.selects)
        for mirrored, pair in zip(new, writes.find(writes.read([(m.group, m.target_group) for m in new])), strict=True):
            mirrored.writers, mirrored.first_offsets = pair.writers, pair.source.offsets
            mirrored.unread_partitions = frozenset({**pair.source.errors, **pair.target.errors})
            mirrored.unread = pair.source.error or pair.target.error or pair.target.hidden
            if mirrored.unread is not None:
                mirrored.fail(mirrored.unread, lag_unknown=True)
        new = [one for one in new if one.unread is None and self._saved.get(one.group) != one.unread_partitions]
        if not new:
            return
        self._saved |= {mirror.group: mirror.unread_partitions for mirror in new}
        rename = {mirror.group: mirror.target_group for mirror in new}
        found = self.source.scan(sorted(rename))
        topics = self.options.selection
        with EditPlan.of(plan_import(self.target, found, topics, rename=rename, crossing=self.crossing)) as plan:
            self._files += 1
            path = self.path if self._files == 1 else self.path.with_stem(f"{self.path.stem}.{self._files}")
            image_file(path, self.target, plan, self.on_durable).intend(plan)

    def save_translated(self, new: Sequence[GroupMirror]) -> None:
        """Adds the before-images of the partitions that are written for the first time to the file. Raises
        `OffsetMgrError` if it cannot be written or if the target cannot be read."""
        unsaved = ((one, one.behind().keys() - self._changes.get(one.target_group, {}).keys()) for one in new)
        found = [
            GroupOffsets(one.target_group, {tp: one.mirrored_offsets[tp] for tp in partitions})
            for one, partitions in unsaved
            if partitions
        ]
        if self._files and not found:
            return
        for plan in plan_import(self.target, found, crossing=self.crossing):
            if plan.problem is not None:
                raise plan.problem
            self._changes.setdefault(plan.name, {}).update({change.partition: change for change in plan.changes})
        changes = {name: tuple(sorted(found.values(), key=BY_PARTITION)) for name, found in self._changes.items()}
        plans = [GroupEditPlan(name, found) for name, found in changes.items()]
        file = image_file(self.path, self.target, plans, self.on_durable)
        if self._files:
            file.rewrite(plans)
        else:
            file.intend(plans)
            self._files = 1

    @contextmanager
    def recorded(self, mirror: Mirror, groups: Sequence[str], origin: EditOrigin) -> Iterator[None]:
        """Records the mirror in the operation log. ``groups`` are the source groups that exist now."""
        path, store = str(self.path.absolute()), self.target.uri
        undo = Invocation("offsets import", (path,), {"store": store, **origin.undo_options})
        names = [self.options.target_group(group) for group in groups]
        count, named = len(names), first_groups(names)
        start = OperationStart(origin.operation, (store,), named, count, 0, (path,), (undo,), origin.reason)
        with OperationLog().recorded(start) as recorded:
            try:
                yield
            finally:
                recorded.written = mirror.status().copied
                recorded.failed = sum(not one.succeeded for one in mirror.groups.values())
                recorded.interrupted = mirror.interrupted
