"""Options that the commands of ``offsetmgr runbook`` share, and the selection of their groups."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.plan_execution import shortened
from offsetmgr.cli.render import note
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.groups.selection import GroupSelection, is_pattern, literal_pattern
from offsetmgr.migration.fleet import GroupState, group_statuses, select_groups
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import append_to_journal, open_plan
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.migration.group_observer import GroupView
    from offsetmgr.migration.journal import JournalRecord
    from offsetmgr.migration.observation import Observation
    from offsetmgr.migration.rollout import Rollout
    from offsetmgr.migration.runbook_commands import RunbookArguments

Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="The runbook JSON that was written before the bounce; it lists the members at that time.",
        show_default=False,
    ),
]
Poll = Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Polling interval.")]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet", metavar="SECONDS", min=0, help="Time without a change after which a partition counts as idle."
    ),
]
AcceptIdle = Annotated[
    bool,
    typer.Option("--accept-idle", help="Accept partitions without traffic if the offsets show that nothing is lost."),
]
AcceptSpare = Annotated[
    bool,
    typer.Option(
        "--accept-spare",
        help="Accept new members that own no partition, although there is no evidence of where they commit.",
    ),
]

Plan = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="A migration plan: names the servers, selects groups, and its journal records each group's phase.",
        show_default=False,
    ),
]


Command = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="TEMPLATE",
        help="Shell command that restarts one member; {host} {member} {group} {phase} {settings} are replaced.",
        show_default=False,
    ),
]
TestCommand = Annotated[
    str | None,
    typer.Option(
        "--test-command",
        metavar="TEMPLATE",
        help="Shell command that tests the restart command of a member and changes nothing, such as 'ssh {host} true'.",
        show_default=False,
    ),
]
Kubernetes = Annotated[
    str | None,
    typer.Option(
        "--kubernetes",
        metavar="WORKLOAD",
        help="In place of --command: restart deployment/NAME or statefulset/NAME with kubectl; {group} is replaced.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="The namespace of the workload.", show_default=False)
]
KubeContext = Annotated[
    str | None, typer.Option("--kube-context", metavar="NAME", help="The context of kubectl.", show_default=False)
]
Configure = Annotated[
    str | None,
    typer.Option(
        "--configure",
        metavar="TEMPLATE",
        help="Command that changes the settings of the workload before its rollout; {settings} {phase} {group} are "
        "replaced. Default: kubectl set env, which sets OFFSETS_STORAGE and DUAL_COMMIT_ENABLED.",
        show_default=False,
    ),
]


Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="MEMBER=HOST", help="The host of a member with a configured id; repeatable."),
]


class PhaseName(StrEnum):
    """The values of options that name a phase of a rolling bounce."""

    ZOOKEEPER = "zookeeper"
    DUAL = "dual"
    KAFKA = "kafka"


def runbook_arguments(
    connect: ConnectFlags,
    planned: PlanOfGroups | None,
    view: GroupView,
    baseline: str,
    restart: RestartFlags,
    group: str,
) -> RunbookArguments:
    """Returns the arguments of the commands that the runbook of a group contains."""
    from offsetmgr.migration.runbook_commands import RunbookArguments
    from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

    address = zookeeper_of(view.zookeeper.uri, connect.resolved.connection) or ""
    bootstrap = bootstrap_of(view.kafka.uri, connect.resolved.connection) or ""
    followups = connect.followup_options
    restart_options, test_options = restart.options(group)
    servers = f"--zookeeper {shlex.quote(address)} --bootstrap-server {shlex.quote(bootstrap)}{followups}"
    by_plan = planned is not None and not (connect.flags.zookeeper or connect.flags.store)
    plan = str(planned.plan.path) if planned is not None else None
    return RunbookArguments(
        options=f"--plan {shlex.quote(plan)}{followups}" if by_plan and plan else servers,
        servers=servers,
        followups=followups,
        zookeeper=view.zookeeper.uri,
        kafka=view.kafka.uri,
        restart=restart_options,
        test=test_options,
        rollout=restart.rollout.of_group(group) if restart.rollout else None,
        baseline=baseline,
        plan=plan,
    )


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


class RestartFlags(NamedTuple):
    """The options that restart members, or test the restart."""

    command: str | None
    test_command: str | None
    rollout: Rollout | None
    timeout_s: float = 600
    hosts: str = ""
    """The options ``--host`` as text; each begins with a space."""

    @classmethod
    def of(  # the options of a command line
        cls,
        command: str | None,
        test_command: str | None,
        kubernetes: str | None,
        where: tuple[str | None, str | None],
        configure: str | None,
        hosts: list[str] | None = None,
        timeout_s: float = 600,
    ) -> RestartFlags:
        """Returns the options; ``where`` are the namespace and the context of `kubectl`. Raises `UsageError` if they
        contradict each other."""
        from offsetmgr.migration.rollout import Rollout

        if command and kubernetes:
            why = "--kubernetes restarts all members at once, and --command one member"
            raise UsageError("--command and --kubernetes", why, "leave out one of both")
        if kubernetes is None and (configure or any(where)):
            why = "--namespace, --kube-context and --configure belong to --kubernetes"
            raise UsageError("no workload", why, "add --kubernetes deployment/NAME")
        rollout = Rollout(kubernetes, *where, configure, timeout_s) if kubernetes else None
        named = "".join(f" {_option('--host', f'{member}={host}')}" for member, host in hosts_of(hosts).items())
        return cls(command, test_command, rollout, timeout_s, named)

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
        chosen = select_groups(self.plan, patterns, waves) or frozenset()
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

    def way_back(self, connect: ConnectFlags, restart: RestartFlags, group: str) -> str:
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


def groups_of(
    view: GroupView,
    planned: PlanOfGroups | None,
    patterns: list[str] | None,
    waves: list[int] | None,
    to: PhaseName,
) -> list[str]:
    """Returns the groups of ``--group`` and ``--wave``, sorted. The groups of a wave or of a glob are left out if they
    have no live member in ZooKeeper or if `PlanOfGroups.closed` has them.

    Raises `UsageError` if no group is named or ``--wave`` has no plan, and `GroupNotFound` if a pattern matches none.
    """
    if not patterns and not waves:
        raise UsageError("--group", "no group is named", "as in --group NAME (repeatable, globs)")
    if waves and planned is None:
        raise UsageError("--wave", "the waves are in a plan", "add --plan PLAN")
    named = sorted({name for name in patterns or () if not is_pattern(name)})
    globs = [name for name in patterns or () if is_pattern(name)]
    if planned is not None:
        named = planned.select(named, ())
        wide = planned.select(globs, waves or ())
    else:
        wide = []
        known = set(view.zookeeper.groups()) if globs else set()
        for pattern in globs:
            selection = GroupSelection.parse([pattern], known)
            matched = [group for group in known if selection.matches(group)]
            if not matched:
                raise GroupNotFound(f"group {pattern}", f"matches no group in {view.zookeeper.uri}")
            wide += matched
    return sorted({*named, *_with_members(view, planned, sorted(set(wide) - set(named)), to)})


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
        named = shortened([f"{name} ({closed[name].value})" for name in others])
        note(f"left out by the plan: {named}; name a group with --group to restart its members")
    return alive


def hosts_of(pairs: list[str] | None) -> dict[str, str]:
    """Returns the hosts of ``--host`` by member."""
    hosts: dict[str, str] = {}
    for pair in pairs or []:
        member, equals, name = pair.partition("=")
        if not (equals and member and name):
            raise UsageError(f"--host {pair}", "is not MEMBER=HOST")
        hosts[member] = name
    return hosts
