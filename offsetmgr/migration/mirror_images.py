"""The before-images of a mirror: the target's offsets of each group before the mirror writes to the group.

An import of a file of before-images undoes the mirror for the partitions that still hold the offset of the first copy.
The import rejects a partition that the mirror or a consumer has advanced since, unless the user allows rewinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from offsetmgr.core.advice import Invocation
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.before_images import image_file
from offsetmgr.groups.edit_plan import EditPlan
from offsetmgr.groups.edits import plan_import
from offsetmgr.groups.operation_log import OperationStart, first_groups
from offsetmgr.groups.saved_edit import EditOrigin
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.mirror_group import GroupMirror
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

    def prepare(self, new: Sequence[GroupMirror]) -> None:
        """Determines the last writers of new groups, and saves their before-images as `save`."""
        writes = last_writes(self.source, self.target, window_s=0, selects=self.options.selects)
        for mirrored, pair in zip(new, writes.find_of_groups([(m.group, m.target_group) for m in new]), strict=True):
            mirrored.writers, mirrored.first_offsets = pair.writers, pair.source.offsets
            mirrored.unread_partitions = frozenset({**pair.source.errors, **pair.target.errors})
            mirrored.unread = pair.source.error or pair.target.error or pair.target.hidden
            if mirrored.unread is not None:
                mirrored.fail(mirrored.unread, lag_unknown=True)
        self.save([mirrored for mirrored in new if mirrored.unread is None])

    def save(self, new: Sequence[GroupMirror]) -> None:
        """Writes a file with the target's offsets of new groups, and another one once more partitions can be read.
        Raises `OffsetMgrError` if it cannot be written or if a store cannot be read."""
        new = [mirror for mirror in new if self._saved.get(mirror.group) != mirror.unread_partitions]
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

    def operation(self, groups: Sequence[str], origin: EditOrigin) -> OperationStart:
        """Returns the record of the mirror for the operation log. ``groups`` are the source groups that exist now."""
        path, store = str(self.path.absolute()), self.target.uri
        undo = Invocation("offsets import", (path,), {"store": store, **origin.undo_options})
        names = [self.options.target_group(group) for group in groups]
        return OperationStart(
            origin.operation,
            (store,),
            first_groups(names),
            len(names),
            0,
            (path,),
            (undo,),
            origin.reason,
        )
