"""The edits of whole groups: `GroupDeletion` and `GroupRename`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from offsetmgr.app.edits import EditListener, EditReport, PlannedEdit
from offsetmgr.app.ui import Interrupted
from offsetmgr.core.advice import Advice
from offsetmgr.core.offset_store import GroupTreeStore
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.copy import plan_copy, verify_copy
from offsetmgr.groups.describe import require_idle
from offsetmgr.groups.edits import inner_stores, plan_removal, remove_groups, start_deletion, with_trees
from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart, first_groups

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.edit_plan import GroupEditPlan
    from offsetmgr.groups.saved_edit import SavedEdit


class GroupDeletion(PlannedEdit):
    """The deletion of whole groups. A group in ZooKeeper is a tree of znodes, which the before-images contain."""

    _tree_verb: ClassVar[str] = "delete"

    def __init__(
        self,
        connections: Connections,
        operation: str,
        store: OffsetStore,
        groups: Sequence[str],
        *,
        lose: Container[str],
        accept_unseen: bool,
    ) -> None:
        self._groups = groups
        self._lose = lose
        self._accept_unseen = accept_unseen
        found = plan_removal(store, groups, accept_unseen=accept_unseen)
        super().__init__(connections, operation, store, found)

    def _checked(self, found: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        return with_trees(self.store, super()._checked(found), self._lose)

    def _start(self, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        return start_deletion(self.store, self._plan, path, on_durable, self._connections.ui.note)

    def execute(
        self,
        before_images: Path | str | None = None,
        *,
        reason: str = "",
        on_durable: Callable[[Path], None] = lambda _path: None,
        listener: EditListener | None = None,
    ) -> EditReport:
        report = super().execute(before_images, reason=reason, on_durable=on_durable, listener=listener)
        failed = {*self.problems, *report.failed, *report.failed_groups}
        if left := [name for name in self._groups if name not in failed]:
            had_offsets = bool(report.before_images)
            if not (had_offsets or self.is_confirmed):
                question = f"groups delete: remove {count_of(len(left), 'group')} without offsets?"
                self._connections.ui.confirm(question)
            self._remove(left, report, had_offsets=had_offsets, reason=reason)
        return report

    def _remove(self, groups: list[str], report: EditReport, *, had_offsets: bool, reason: str) -> None:
        """Deletes groups whose offsets are deleted. Does nothing in stores in which a group consists only of its
        offsets. If the groups had no offsets from the start, no edit is in the operation log, and this method records
        the deletion there."""
        ui, empty = self._connections.ui, "" if had_offsets else "empty "
        for inner in inner_stores(self.store):
            if isinstance(inner, GroupTreeStore):
                continue  # the trees are deleted already
            start = OperationStart("groups delete", (inner.uri,), first_groups(groups), len(groups), 0, reason=reason)
            record = nullcontext(OperationProgress("")) if had_offsets else OperationLog().recorded(start)
            with record as recorded:
                removed = remove_groups(inner, groups, accept_unseen=self._accept_unseen)
                for name, error in ui.progress(removed, "removing", len(groups)):
                    if error is None:
                        ui.note(f"removed {empty}group {name!r} from {inner.uri}")
                        continue
                    ui.note(Advice("error: {}", error.text))
                    if error.hint:
                        ui.note(Advice("hint: {}", error.hint))
                    recorded.failed += 1
                    report.failed_groups[name] = error


class GroupRename(PlannedEdit):
    """The copy of a group, which is verified before the original group is deleted."""

    def __init__(
        self,
        connections: Connections,
        store: OffsetStore,
        names: tuple[str, str],
        *,
        lose: Container[str],
        accept_unseen: bool,
    ) -> None:
        self._names = names
        self._lose = lose
        self._accept_unseen = accept_unseen
        source, target = names
        crossing = connections.check_crossing("groups rename", store, store, None)
        found = plan_copy(store, source, store, target, crossing=crossing, accept_unseen=accept_unseen)
        super().__init__(connections, "groups rename", store, found)

    def execute(
        self,
        before_images: Path | str | None = None,
        *,
        reason: str = "",
        on_durable: Callable[[Path], None] = lambda _path: None,
        listener: EditListener | None = None,
    ) -> EditReport:
        report = super().execute(before_images, reason=reason, on_durable=on_durable, listener=listener)
        if not report.ok:
            return report
        (source, target), store = self._names, self.store
        count = verify_copy(store, source, store, target, accept_unseen=self._accept_unseen)
        verified = f"verified: group {target!r} has the {count_of(count, 'offset')} that were read from {source!r}"
        self._connections.ui.note(verified)
        require_idle(self._connections.group_describer_for_edit(), [source], "deletion")
        path = f"{before_images}.deleted" if before_images else None
        name, lose, accept_unseen = "groups rename delete", self._lose, self._accept_unseen
        try:
            planned = GroupDeletion(self._connections, name, store, [source], lose=lose, accept_unseen=accept_unseen)
        except Interrupted as error:
            done = "group {} was copied to {}, and was not deleted; undo: {}"
            raise Interrupted(Advice(done, source, target, *report.undo[:1])) from error
        with planned as deletion:
            deletion.is_confirmed = True
            if listener is not None:
                listener.planned(deletion)
            try:
                deletion.execute(path, reason=reason, on_durable=on_durable, listener=listener)
            finally:
                if deletion.report is not None:
                    report.add(deletion.report)
        return report
