"""The groups of a runbook command: by ``--group`` and ``--wave``, at the servers or in the plan of ``--plan``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.migrate_options import WaveOption
from offsetmgr.cli.migrate_output import SHOWN
from offsetmgr.cli.options import ExcludeGroup, GroupsOption
from offsetmgr.cli.render import note
from offsetmgr.cli.runbook_options import PhaseName, Plan, Restart
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.plurals import list_of
from offsetmgr.core.selection import GroupSelection, is_pattern, literal_pattern
from offsetmgr.migration.fleet import GroupState, group_statuses, select_groups
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import append_to_journal, open_plan
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.migration.group_observer import GroupView
    from offsetmgr.migration.journal import JournalRecord


class PlanOfGroups(NamedTuple):
    """The plan of ``--plan`` with the state of its journal. ``names`` maps the name of a group in ZooKeeper to its name
    in the plan."""

    plan: PlanFile
    state: MigrationState
    names: dict[str, str]

    @classmethod
    def open(cls, path: Path | None) -> PlanOfGroups | None:
        if path is None:
            return None
        plan, state = open_plan(path)
        to_zookeeper = plan.header.target.kind == "zookeeper"
        names = {group.target_group if to_zookeeper else group.group: group.group for group in plan.groups()}
        return cls(plan, state, names)

    def select(self, patterns: Iterable[str], waves: Iterable[int]) -> list[str]:
        """Returns the names in ZooKeeper of the groups that a pattern or a wave selects. A pattern selects names in the
        plan. It may also be the name in ZooKeeper of a group that the plan renames."""
        of_zookeeper = {planned: name for name, planned in self.names.items()}
        patterns = [
            pattern if pattern in of_zookeeper or pattern not in self.names else literal_pattern(self.names[pattern])
            for pattern in patterns
        ]
        chosen = select_groups(self.plan, GroupSelection(list(patterns) or None), waves) or frozenset()
        return sorted(of_zookeeper[planned] for planned in chosen)

    def select_one(self, pattern: str) -> str:
        """Returns the name in ZooKeeper of the only group that a pattern selects. Raises `UsageError` if it selects
        several."""
        first, *others = self.select([pattern], ())
        if others:
            raise UsageError(f"--group {pattern}", f"matches {len(others) + 1} groups of the plan", "name one group")
        return first

    def closed(self, groups: Iterable[str], to: PhaseName) -> dict[str, GroupState]:
        """Returns the groups, by their names in ZooKeeper, that a bounce to ``to`` leaves out of a wave or a glob, with
        their states. Members of rolled-back groups are restarted only into the phase of the plan's source."""
        left = {GroupState.FINALIZED, GroupState.NOT_PLANNED}
        if to.value != self.plan.header.source.kind:
            left |= {GroupState.ROLLED_BACK, GroupState.ROLLED_BACK_IN_PART}
        planned = {self.names[group]: group for group in groups}
        found = group_statuses(self.plan, self.state, frozenset(planned))
        ended = {one.group for one in found if self.state.group_finalized_at(one.group) is not None}
        found = [replace(one, state=GroupState.FINALIZED) if one.group in ended else one for one in found]
        return {planned[one.group]: one.state for one in found if one.state in left}

    def not_applied(self, groups: Iterable[str]) -> list[str]:
        """Returns those of the groups, by their names in ZooKeeper, whose offsets apply has not written yet."""
        planned = {self.names[group]: group for group in groups}
        found = self.plan.groups_of(frozenset(planned))
        return sorted(planned[group.group] for group in found if not self.state.is_applied(group))

    def recorded_phase(self, group: str) -> CommitMode | None:
        """Returns the last phase that the journal records for a group, by its name in ZooKeeper."""
        found = self.state.phases.get(self.names[group])
        return found.phase if found is not None else None

    def source_phase(self) -> CommitMode | None:
        """Returns the phase in which the groups began; None if the plan is not between ZooKeeper and Kafka."""
        return next((mode for mode in CommitMode if mode.value == self.plan.header.source.kind), None)

    def way_back(self, connect: ConnectFlags, restart: Restart, group: str) -> str:
        """Returns the command line of the bounce to dual towards the plan's source, of a group in ZooKeeper."""
        end = CommitMode.ZOOKEEPER if self.source_phase() is CommitMode.KAFKA else CommitMode.KAFKA
        named = ("--plan", self.plan.path, "--group", literal_pattern(self.names[group]))
        command = command_line("runbook", "bounce", *named, "--to-phase", "dual", "--from-phase", end.value)
        servers = connect.given_options if connect.flags.zookeeper or connect.flags.store else connect.followup_options
        return f"{command} {restart.options(group)[0]}{servers} --execute"

    def record(self, records: Iterable[JournalRecord]) -> None:
        """Appends records to the plan's journal. If this fails, prints a warning, because the bounce itself is done."""
        try:
            append_to_journal(self.plan, records)
        except OffsetMgrError as error:
            hint = f" ({error.hint})" if error.hint else ""
            note(f"warning: the plan's journal does not record this step: {error}{hint}")


def view_of(connect: ConnectFlags, planned: PlanOfGroups | None) -> GroupView:
    """Returns the view of the groups: at the servers of the plan, or at those that the connection options name."""
    if planned is None or connect.flags.zookeeper or connect.flags.store:
        return connect.group_view()
    connection = connect.connection(None)
    sides = SourceAndTarget.of_plan(connect, planned.plan.header, connection, connection)
    return sides.old_consumer_view(planned.plan.header)


class RunbookGroups(NamedTuple):
    """The options that select groups for a runbook or a bounce."""

    group: GroupsOption = None
    wave: WaveOption = None
    exclude_group: ExcludeGroup = None
    plan: Plan = None

    def select(self, connect: ConnectFlags, to: PhaseName) -> SelectedGroups:
        """Opens the plan and the view, and selects the groups. See `groups_of` for the errors."""
        planned = PlanOfGroups.open(self.plan)
        view = view_of(connect, planned)
        return SelectedGroups(planned, view, groups_of(view, planned, self, to))


class SelectedGroups(NamedTuple):
    """The selected groups by their names in ZooKeeper, with their view and the plan of ``--plan``."""

    planned: PlanOfGroups | None
    view: GroupView
    names: list[str]


def groups_of(
    view: GroupView,
    planned: PlanOfGroups | None,
    options: RunbookGroups,
    to: PhaseName,
) -> list[str]:
    """Returns the groups that the options select, sorted. The groups of a wave or of a glob are left out if they
    have no live member in ZooKeeper or if `PlanOfGroups.closed` has them.

    Raises `UsageError` if no group is named or ``--wave`` has no plan, and `GroupNotFound` if a pattern matches none.
    """
    patterns, waves, excluded, _ = options
    if not patterns and not waves:
        of_plan = "; --wave N, or --group '*' for all groups of the plan" if planned is not None else ""
        raise UsageError("--group", "no group is named", f"as in --group NAME (repeatable, globs){of_plan}")
    if waves and planned is None:
        raise UsageError("--wave", "the waves are in a plan", "add --plan PLAN")
    named = sorted({name for name in patterns or () if not is_pattern(name)})
    globs = [name for name in patterns or () if is_pattern(name)]
    if planned is not None:
        named = planned.select(named, ())
        wide = planned.select(globs, waves or ())
    else:
        wide = GroupSelection(globs).within(view.zookeeper.groups(), view.zookeeper.uri) if globs else []
    chosen = GroupSelection(exclude=excluded or ()).within({*named, *wide}, view.zookeeper.uri)
    named = [name for name in named if name in chosen]
    return sorted({*named, *_with_members(view, planned, sorted(set(chosen) - set(named)), to)})


def _with_members(view: GroupView, planned: PlanOfGroups | None, groups: list[str], to: PhaseName) -> list[str]:
    closed = planned.closed(groups, to) if planned else {}
    alive = [name for name in groups if name not in closed and view.registry.members(name, view.cluster.topics).members]
    if left := len(groups) - len(alive):
        note(
            f"left out {left} of {len(groups)} groups: finalized, rolled back, not planned, or without a live member in"
            " ZooKeeper"
        )
    others = [name for name in groups if closed.get(name, GroupState.FINALIZED) is not GroupState.FINALIZED]
    if others:
        named = list_of((f"{name} ({closed[name].value})" for name in others), SHOWN)
        note(f"left out by the plan: {named}; name a group with --group to restart its members")
    return alive
