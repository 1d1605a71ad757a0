"""The options of the runbook commands, their groups, and the tests of restart commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.plan_text import SHOWN
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.options import ExcludeGroup, GroupsOption, WaveOption, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.selection import GroupSelection, is_pattern, literal_pattern
from offsetmgr.migration.bounce_plan import BounceSpec
from offsetmgr.migration.command_test import CommandTest, run_command_tests
from offsetmgr.migration.fleet import select_groups
from offsetmgr.migration.group_observer import GroupView
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import append_to_journal, open_plan
from offsetmgr.migration.progress import MigrationState, Stage

if TYPE_CHECKING:
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.group_observer import GroupView
    from offsetmgr.migration.journal import JournalRecord
    from offsetmgr.migration.observation import Observation
    from offsetmgr.migration.rollout import Rollout


Baseline = Annotated[
    Path | None,
    opt(
        "--baseline", "FILE", "The runbook JSON that was written before the bounce; it lists the members at that time."
    ),
]
Poll = Annotated[float, opt("--poll", "SECONDS", "Polling interval.", min=0.05)]
Quiet = Annotated[
    float,
    opt("--quiet", "SECONDS", "Time without a change after which a partition counts as idle.", min=0),
]
AcceptIdle = Annotated[
    bool,
    flag("--accept-idle", "Accept partitions without traffic if the offsets show that nothing is lost."),
]
AcceptSpare = Annotated[
    bool,
    flag(
        "--accept-spare",
        "Accept new members that own no partition, although there is no evidence of where they commit.",
    ),
]

Plan = Annotated[
    Path | None,
    opt(
        "--plan",
        "PLAN",
        "A migration plan: names the servers, selects groups, and its journal records each group's phase.",
    ),
]


Command = Annotated[
    str | None,
    opt(
        "--command",
        "TEMPLATE",
        "Shell command that restarts one member; {host} {member} {group} {phase} {settings} are replaced.",
    ),
]
TestCommand = Annotated[
    str | None,
    opt(
        "--test-command",
        "TEMPLATE",
        "Shell command that tests the restart command of a member and changes nothing, such as 'ssh {host} true'.",
    ),
]
Kubernetes = Annotated[
    str | None,
    opt(
        "--kubernetes",
        "WORKLOAD",
        "In place of --command: restart deployment/NAME or statefulset/NAME with kubectl; {group} is replaced.",
    ),
]
Namespace = Annotated[str | None, opt("--namespace", "NAME", "The namespace of the workload.")]
KubeContext = Annotated[str | None, opt("--kube-context", "NAME", "The context of kubectl.")]
Configure = Annotated[
    str | None,
    opt(
        "--configure",
        "TEMPLATE",
        "Command that changes the settings of the workload before its rollout; {settings} {phase} {group} are "
        "replaced. Default: kubectl set env, which sets OFFSETS_STORAGE and DUAL_COMMIT_ENABLED.",
    ),
]


Hosts = Annotated[
    list[str] | None,
    opt("--host", "MEMBER=HOST", "The host of a member with a configured id; repeatable."),
]


def baselines_of(view: GroupView, path: Path | None) -> Callable[[str], Observation | None]:
    """Reads a baseline file. Returns a function that returns the baseline of a group in it, or None if ``path`` is
    None. The function raises `OtherCluster` if the baseline belongs to other servers, and `NoBaseline`.

    Raises any error from `BaselineFile`."""
    from offsetmgr.migration.baseline_file import BaselineFile

    if path is None:
        return lambda _group: None
    file = BaselineFile(path)

    def baseline_of(group: str) -> Observation:
        found = file.of(group)
        view.require_stores(f"baseline {path}", found)
        return found

    return baseline_of


class Restart(NamedTuple):
    """The commands that restart members, and that test the restart."""

    command: str | None
    test_command: str | None
    rollout: Rollout | None
    timeout_s: float = 600
    hosts: str = ""
    """The options ``--host`` as text; each begins with a space."""

    @property
    def how(self) -> str:
        """The way of the restart, for the prompt."""
        return "one at a time" if self.rollout is None else f"by a rollout of {self.rollout.workload}"

    def options(self, group: str) -> tuple[str, str]:
        """Returns the options as text for the commands that are printed for the user: of the restart, of its test."""
        if (rollout := self.rollout) is None:
            restart, test = _option("--command", self.command), _option("--test-command", self.test_command)
            return restart + self.hosts * bool(restart), test + self.hosts * bool(test)
        rollout = rollout.of_group(group)
        named = (
            ("--kubernetes", rollout.workload),
            ("--namespace", rollout.namespace),
            ("--kube-context", rollout.context),
            ("--configure", rollout.configure),
        )
        restart = " ".join(_option(*one) for one in named if one[1])
        return restart, _option("--test-command", self.test_command or rollout.test())


def _option(name: str, value: str | None) -> str:
    return f"{name} {shlex.quote(value)}" if value else ""


class RestartFlags(NamedTuple):
    """The options that restart members, or test the restart."""

    command: Command = None
    test_command: TestCommand = None
    kubernetes: Kubernetes = None
    namespace: Namespace = None
    kube_context: KubeContext = None
    configure: Configure = None

    def restart(self, hosts: list[str] | None = None, timeout_s: float = 600) -> Restart:
        """Returns the commands. Raises `UsageError` if the options contradict each other.

        ``hosts`` are the values of ``--host``.
        """
        from offsetmgr.migration.rollout import Rollout

        if self.command and self.kubernetes:
            why = "--kubernetes restarts all members at once, and --command one member"
            raise UsageError("--command and --kubernetes", why, "leave out one of both")
        where = self.namespace, self.kube_context
        if self.kubernetes is None and (self.configure or any(where)):
            why = "--namespace, --kube-context and --configure belong to --kubernetes"
            raise UsageError("no workload", why, "add --kubernetes deployment/NAME")
        rollout = Rollout(self.kubernetes, *where, self.configure, timeout_s) if self.kubernetes else None
        named = "".join(f" {_option('--host', f'{member}={host}')}" for member, host in hosts_of(hosts).items())
        return Restart(self.command, self.test_command, rollout, timeout_s, named)


class EvidenceFlags(NamedTuple):
    """The options that decide which evidence passes a gate."""

    quiet: Quiet = 10
    accept_idle: AcceptIdle = False
    accept_spare: AcceptSpare = False

    def thresholds(self) -> EvidenceThresholds:
        from offsetmgr.migration.evidence import EvidenceThresholds

        return EvidenceThresholds(self.accept_idle, self.accept_spare, quiet_ms=int(self.quiet * 1000))


def hosts_of(pairs: list[str] | None) -> dict[str, str]:
    """Returns the hosts of ``--host`` by member."""
    hosts: dict[str, str] = {}
    for pair in pairs or []:
        member, equals, name = pair.partition("=")
        if not (equals and member and name):
            raise UsageError(f"--host {pair}", "is not MEMBER=HOST")
        hosts[member] = name
    return hosts


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

    def select(self, patterns: Iterable[str], waves: Iterable[int], excluded: Iterable[str] = ()) -> list[str]:
        """Returns the names in ZooKeeper of the groups that a pattern or a wave selects, without the excluded ones. A
        pattern selects names in the plan. It may also be the name in ZooKeeper of a group that the plan renames."""
        of_zookeeper = {planned: name for name, planned in self.names.items()}

        def planned(patterns: Iterable[str]) -> list[str]:
            return [
                one if one in of_zookeeper or one not in self.names else literal_pattern(self.names[one])
                for one in patterns
            ]

        selection = GroupSelection(planned(patterns) or None, exclude=planned(excluded))
        return sorted(of_zookeeper[name] for name in select_groups(self.plan, selection, waves) or frozenset())

    def select_one(self, pattern: str) -> str:
        """Returns the name in ZooKeeper of the only group that a pattern selects. Raises `UsageError` if it selects
        several."""
        first, *others = self.select([pattern], ())
        if others:
            raise UsageError(f"--group {pattern}", f"matches {len(others) + 1} groups of the plan", "name one group")
        return first

    def closed(self, groups: Iterable[str], to: CommitMode) -> dict[str, Stage]:
        """Returns the groups, by their names in ZooKeeper, that a bounce to ``to`` leaves out of a wave or a glob, with
        their states. Members of rolled-back groups are restarted only into the phase of the plan's source."""
        left = {Stage.FINALIZED, Stage.NOT_PLANNED}
        if to.value != self.plan.header.source.kind:
            left |= {Stage.ROLLED_BACK, Stage.ROLLED_BACK_IN_PART}
        planned = {self.names[group]: group for group in groups}
        found = ((one.group, self.state.stage_of(one)) for one in self.plan.groups_of(frozenset(planned)))
        return {planned[name]: stage for name, stage in found if stage in left}

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
            hint = f" ({for_command_line(error.hint)})" if error.hint else ""
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

    def select(self, connect: ConnectFlags, to: CommitMode) -> SelectedGroups:
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
    to: CommitMode,
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
    if excluded:
        known, where = {*named, *view.zookeeper.groups()}, view.zookeeper.uri
        left = planned.select((), (), excluded) if planned else GroupSelection(exclude=excluded).within(known, where)
        named, wide = ([name for name in names if name in left] for names in (named, wide))
        if not named and not wide:
            raise GroupNotFound("groups", "every selected group is excluded")
    return sorted({*named, *_with_members(view, planned, sorted(set(wide) - set(named)), to)})


def _with_members(view: GroupView, planned: PlanOfGroups | None, groups: list[str], to: CommitMode) -> list[str]:
    closed = planned.closed(groups, to) if planned else {}
    alive = [name for name in groups if name not in closed and view.registry.members(name, view.cluster.topics).members]
    if left := len(groups) - len(alive):
        note(
            f"left out {left} of {len(groups)} groups: finalized, rolled back, not planned, or without a live member in"
            " ZooKeeper"
        )
    others = [name for name in groups if closed.get(name, Stage.FINALIZED) is not Stage.FINALIZED]
    if others:
        named = list_of((f"{name} ({closed[name].value})" for name in others), SHOWN)
        note(f"left out by the plan: {named}; name a group with --group to restart its members")
    return alive


_COLUMNS = ("group", "member", "host", "status", "seconds", "command")


def show_command_tests(
    view: GroupView, specs: Iterable[BounceSpec], template: str, log: Path, output: OutputFormat
) -> None:
    """Runs the test command for each member of each group and prints the results. Raises `Exit` with code 1 if a test
    failed."""
    found: list[CommandTest] = []
    for spec in specs:
        for one in run_command_tests(view, spec, template, log):
            found.append(one)
    rows = [(t.group, t.member, t.host, t.status, round(t.duration_s, 1), t.command) for t in found]
    if output is OutputFormat.JSON:
        print(json.dumps([dict(zip(_COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        write_rows([Column(name, right=name == "seconds") for name in _COLUMNS], rows, output)
    failed = sum(t.status != "ok" for t in found)
    note(f"{count_of(len(found), 'member')} tested, {failed} failed; nothing was restarted")
    if failed:
        note(f"the output of the commands is in {log}")
        raise typer.Exit(FAILED)
