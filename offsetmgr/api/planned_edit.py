"""`PlannedEdit`: an edit that a program looks at before it executes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import EditStatus, OffsetStore
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.groups.edit_plan import Counts, EditPlan, GroupEditPlan
from offsetmgr.groups.saved_edit import execute_saved


@dataclass(slots=True)
class EditReport:
    """The result of an executed edit.

    ``written`` and ``unchanged`` count partitions. ``rejected`` counts the partitions that the plan had already
    rejected. ``failed`` maps each group to its partitions whose write failed, with the error of each.
    ``before_images`` are the files with which `OffsetAdmin.plan_undo` undoes the edit; empty if nothing was to be
    written.
    """

    before_images: tuple[Path, ...] = ()
    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    failed: dict[str, dict[TopicPartition, OffsetMgrError]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every planned change was made or was already in the store."""
        return not self.rejected and not self.failed


class PlannedEdit:
    """The changes that one method of `OffsetAdmin` planned. A plan changes nothing until `execute`.

    Iterate over the plan for its groups: each `GroupEditPlan` has a ``group``, its ``changes`` and a ``problem``. Each
    change has a ``partition``, ``before``, ``after``, a ``note`` and a ``problem``. The plan is valid until the
    `OffsetAdmin` is closed.
    """

    def __init__(self, operation: str, store: OffsetStore, plan: EditPlan) -> None:
        self._operation = operation
        self._store = store
        self._plan = plan
        self._executed = False

    def __iter__(self) -> Iterator[GroupEditPlan]:
        return iter(self._plan)

    def __repr__(self) -> str:
        return f"<PlannedEdit {self._operation}: {self.counts}>"

    @property
    def counts(self) -> Counts:
        """How many ``groups`` change, and how many partitions are ``writes``, are ``unchanged`` or have a problem."""
        return self._plan.counts

    @property
    def problems(self) -> Mapping[str, OffsetMgrError]:
        """The groups with a rejected change, each with the first reason."""
        found: dict[str, OffsetMgrError] = {}
        for group in self._plan:
            reasons = [group.problem, *(change.problem for change in group.changes)]
            if (reason := next((one for one in reasons if one is not None), None)) is not None:
                found[group.group] = reason
        return found

    def execute(
        self, before_images: Path | str | None = None, *, on_durable: Callable[[Path], None] = lambda _path: None
    ) -> EditReport:
        """Writes the changes that have no problem, each on the condition that the store still holds the value that the
        plan read.

        ``before_images`` is the path of a new file that receives the previous offsets before the first write; without
        it, the method creates one in the state directory (``XDG_STATE_HOME``). ``on_durable`` is called with each
        such path before the first write. A failed change is not raised: it is in ``EditReport.failed``.

        Raises `UsageError` if the plan was executed before or the file exists, and `OffsetMgrError` if the file cannot
        be written or the whole store is unreachable.
        """
        if self._executed:
            raise UsageError(self._operation, "the plan was executed already", "plan the edit again")
        self._executed = True
        report = EditReport(unchanged=self.counts.unchanged, rejected=self.counts.problems)
        if not self.counts.writes:
            return report
        path = Path(before_images) if before_images is not None else default_image_path(self._operation)
        saved = execute_saved(self._store, self._plan, path, on_durable)
        report.before_images = tuple(image.path for image in saved.images)
        for result in saved.results:
            for tp, outcome in result.outcomes.items():
                if outcome.error is not None:
                    report.failed.setdefault(result.group, {})[tp] = outcome.error
                elif outcome.status is EditStatus.WRITTEN:
                    report.written += 1
                else:
                    report.unchanged += 1
        return report
