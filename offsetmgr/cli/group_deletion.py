"""`GroupDeletion`: the edit that deletes whole groups, for ``groups delete`` and ``groups rename``."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from offsetmgr.cli.edit_command import Edit, FailedWrite
from offsetmgr.cli.render import note
from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.group_tree import GroupTreeStore
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus, GroupEditResult
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.before_images import image_file
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan
from offsetmgr.groups.edits import tree_store, with_trees
from offsetmgr.groups.saved_edit import SavedEdit


class GroupDeletion(Edit):
    """Deletes whole groups. A group in ZooKeeper is a tree of znodes, which the before-images contain."""

    tree_verb = "delete"

    def __init__(self, *arguments: Any, lose: Container[str] = (), **shown: Any) -> None:
        super().__init__(*arguments, **shown)
        self._lose = lose
        self._trees = tree_store(self.store)
        self._failures: list[FailedWrite] = []

    def check(self, groups: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        return with_trees(self.store, super().check(groups), self._lose)

    def start(self, proposal: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        """A group in ZooKeeper alone is deleted with its offsets in one transaction."""
        if not isinstance(self.store, GroupTreeStore):
            return super().start(proposal, path, on_durable)
        image = image_file(path, self.store, proposal, on_durable)

        def results() -> Generator[GroupEditResult, None, None]:
            image.intend(proposal)
            for plan in proposal:
                if plan.removes and plan.problem is None:
                    yield self._delete_tree(plan)

        return SavedEdit((image,), results())

    def finish(self, proposal: EditPlan) -> Iterable[FailedWrite]:
        if not isinstance(self.store, GroupTreeStore):
            for plan in proposal:
                if plan.removes and plan.problem is None and plan.group not in self.failed:
                    self._delete_tree(plan)
        return self._failures

    def _delete_tree(self, plan: GroupEditPlan) -> GroupEditResult:
        assert self._trees is not None  # only a tree store adds trees to plans
        try:
            self._trees.delete_group(plan.group, plan.removes)
        except OffsetMgrError as error:
            self.failed.add(plan.group)
            self._failures.append((plan.group, None, error))
            return GroupEditResult(plan.group, {})
        note(f"removed group {plan.group!r} with {count_of(len(plan.removes), 'znode')}")
        written = {one.partition: ChangeOutcome(EditStatus.WRITTEN, one.before) for one in plan.changes if one.writes}
        return GroupEditResult(plan.group, written)

    def require_complete(self, plan: GroupEditPlan) -> None:
        """Raises an error if a rename of the group would lose data. ``plan`` is the deletion of the original."""
        (checked,) = self.check([plan])
        if left := next((one.path for one in checked.unrecognised if one.path not in self._lose), None):
            why = f"the data in {left} would not be copied, because offsetmgr does not understand it"
            raise Conflict(f"group {plan.group!r}", why, f"if no client needs the data, add --lose {left}")
        if checked.problem is not None:
            raise checked.problem
