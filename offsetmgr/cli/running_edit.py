"""``--running``: edits of groups whose consumers run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from offsetmgr.cli.confirm import EditFlags
from offsetmgr.cli.edit_command import Edit
from offsetmgr.cli.render import note
from offsetmgr.core.offset_store import GroupEditResult, OffsetStore
from offsetmgr.core.plurals import count_of
from offsetmgr.core.running_store import RunningGroup
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan
from offsetmgr.groups.running_groups import UNDO_OPTIONS, RunningChecks, RunningEdit, check_running, execute_running
from offsetmgr.groups.saved_edit import SavedEdit


class RunningEditCommand(Edit):
    """An editing command with ``--running``."""

    can_wait: ClassVar[bool] = False

    def __init__(
        self,
        operation: str,
        store: OffsetStore,
        flags: EditFlags,
        checks: RunningChecks,
        options: RunningEdit,
        *,
        undo_options: Sequence[str] = (),
        as_csv: bool = False,
    ) -> None:
        undo_options = (*undo_options, *UNDO_OPTIONS)
        super().__init__(operation, store, checks.all_members, flags, undo_options=undo_options, as_csv=as_csv)
        self._checks = checks
        self._options = options._replace(on_step=note)

    def check(self, groups: Iterable[GroupEditPlan]) -> Iterable[GroupEditPlan]:
        return check_running(self._checks, groups)

    def announce(self, proposal: EditPlan) -> None:
        super().announce(proposal)
        if any(group.members for group in self._checks.found.values()):
            for line in notice(self._checks.found, self._options.wait_s):
                note(line)

    def report(self, result: GroupEditResult) -> None:
        if result.atomic and result.how:
            note(f"group {result.group}: {result.how}")

    def start(self, proposal: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        return execute_running(self.store, proposal, path, on_durable, self._options)


def notice(groups: Mapping[str, RunningGroup], wait_s: float) -> list[str]:
    """Returns the lines of the prompt that describe the effect on the applications of these groups. ``wait_s`` is the
    time in seconds for which an edit waits until the members of a group are back."""
    lines = [
        "the consumers keep running, and their applications notice this:",
        "  - one commit fails, and the rebalance listener receives onPartitionsLost",
    ]
    for consumer_protocol in (False, True):
        chosen = {
            name: group
            for name, group in groups.items()
            if group.members and group.consumer_protocol == consumer_protocol
        }
        if not chosen:
            continue
        heartbeat_s = max(group.heartbeat_s for group in chosen.values())
        first = next(iter(chosen))
        which = f"group {first}" if len(chosen) == 1 else f"{first} and {count_of(len(chosen) - 1, 'other group')}"
        lines.append(f"  - {which}: {_pause(heartbeat_s, consumer_protocol=consumer_protocol)}")
    return [
        *lines,
        f"  - while a consumer is processing records, the other consumers wait for its next poll: up to {wait_s:g} s",
        "  - if a consumer overwrites the new offsets, the edit and its pause are repeated, at most twice",
        "  - the other partitions repeat the records that were processed but not committed",
        "  - transactions with the metadata of the group abort; transactions without it may overwrite the edit",
    ]


def _pause(heartbeat_s: float, *, consumer_protocol: bool) -> str:
    """Describes the pause. The consumers notice their removal with a heartbeat. In the consumer protocol they need up
    to two further heartbeats until they have the partitions."""
    if consumer_protocol:
        longest = f"up to {3 * heartbeat_s + 3:g} s"
        setting = f"the group's heartbeat interval is {heartbeat_s:g} s"
        return f"all partitions pause for about {heartbeat_s + 1:g} s, {longest} ({setting})"
    setting = f"with a heartbeat.interval.ms of {heartbeat_s:g} s, the default"
    return (
        f"the edited partitions pause for about {heartbeat_s + 2:g} s, the others for up to {heartbeat_s + 1:g} s"
        f" ({setting})"
    )
