"""``--running``: edits of groups whose consumers run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from offsetmgr.cli.confirm import EditFlags
from offsetmgr.cli.edit_command import Edit
from offsetmgr.cli.render import note
from offsetmgr.core.offset_store import GroupEditResult, OffsetStore
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan
from offsetmgr.groups.running_groups import RunningChecks, RunningEdit, check_running, execute_running
from offsetmgr.groups.saved_edit import SavedEdit


class RunningEditCommand(Edit):
    """An editing command with ``--running``."""

    def __init__(
        self,
        operation: str,
        store: OffsetStore,
        flags: EditFlags,
        checks: RunningChecks,
        options: RunningEdit,
        *,
        followup_options: str = "",
        as_csv: bool = False,
    ) -> None:
        followups = f"{followup_options} --running --allow-rewind"
        super().__init__(operation, store, checks.all_members, flags, followup_options=followups, as_csv=as_csv)
        self._checks = checks
        self._options = options._replace(on_step=note)

    def check(self, groups: Iterable[GroupEditPlan]) -> Iterable[GroupEditPlan]:
        return check_running(self._checks, groups)

    def announce(self, proposal: EditPlan) -> None:
        super().announce(proposal)
        note(
            "the consumers keep running, and their applications notice this:\n"
            "  - one commit fails, and the rebalance listener receives onPartitionsLost\n"
            "  - all partitions of the group pause for about 4 s, at most a heartbeat interval longer\n"
            "  - the other partitions repeat the records that were processed but not committed"
        )

    def report(self, result: GroupEditResult) -> None:
        if result.atomic and result.how:
            note(f"group {result.group}: {result.how}")

    def start(self, proposal: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        return execute_running(self.store, proposal, path, on_durable, self._options)
