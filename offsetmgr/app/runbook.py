"""``offsetmgr runbook``: writes, checks and executes runbooks for rolling bounces of groups of old consumers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.app.migrate import ALL, PlanSelection
from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import (
    FileFailure,
    GateRefused,
    GroupNotFound,
    OffsetMgrError,
    UsageError,
    os_error_as,
)
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import GroupSelection, is_pattern, literal_pattern
from offsetmgr.groups.execute import EditOrigin
from offsetmgr.groups.operation_log import own_command_line
from offsetmgr.migration.baseline_file import BaselineFile, NoBaseline
from offsetmgr.migration.bounce_checkpoint import BounceState, belongs_to_earlier, is_unchanged, load_all
from offsetmgr.migration.bounce_plan import BounceOutcome as BounceOutcome
from offsetmgr.migration.bounce_plan import BounceResult as BounceResult
from offsetmgr.migration.bounce_plan import BounceSpec
from offsetmgr.migration.command_test import CommandTest as CommandTest
from offsetmgr.migration.command_test import run_command_tests
from offsetmgr.migration.evidence import EvidenceThresholds as EvidenceThresholds
from offsetmgr.migration.evidence import PhaseReport as PhaseReport
from offsetmgr.migration.fleet_bounce import GroupBounce as GroupBounce
from offsetmgr.migration.fleet_bounce import bounce_groups, journal_record, phase_record
from offsetmgr.migration.journaled_writer import append_to_journal, open_plan
from offsetmgr.migration.observation import ObservationWindow as ObservationWindow
from offsetmgr.migration.plan import select_groups
from offsetmgr.migration.precheck import GateClosed
from offsetmgr.migration.progress import Stage
from offsetmgr.migration.restart_command import KILL_AFTER_S, InvalidWorkload, Rollout
from offsetmgr.migration.runbook import Runbook, check_phase, runbook_parts, runbook_title, to_json, write_runbook
from offsetmgr.migration.runbook_steps import RunbookArguments

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.app.ui import Ui
    from offsetmgr.core.document import DocumentPart
    from offsetmgr.migration.observation import GroupView, Observation
    from offsetmgr.migration.plan import PlanFile
    from offsetmgr.migration.progress import JournalRecord, MigrationState

_SUFFIXES: Final = (".json", ".html", ".md")
_NOTHING: Final = "no selected group has a live member in ZooKeeper, so there is nothing to restart"


class Restart(NamedTuple):
    """How members are restarted: one at a time by ``command``, or all at once by a rollout of the workload
    ``kubernetes``, which ``configure`` changes before. ``test_command`` tests the restart of a member and changes
    nothing. ``hosts`` has the hosts of members with a configured id, and ``timeout_s`` limits the run time of a
    command, in seconds."""

    command: str | None = None
    test_command: str | None = None
    kubernetes: str | None = None
    namespace: str | None = None
    kube_context: str | None = None
    configure: str | None = None
    hosts: Mapping[str, str] = {}
    timeout_s: float = 600

    def question(self, groups: Sequence[str], to: CommitMode) -> str:
        """Returns the question before the restarts."""
        which = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups)} groups"
        how = f"by a rollout of {self.kubernetes}" if self.kubernetes else "one at a time"
        return f"restart each member of {which} into phase {to.value}, {how}?"

    def check(self, groups: Sequence[str] = (), *, is_bounce: bool = False) -> None:
        """Raises `UsageError` if the values contradict each other, if one workload is named for several groups, or if
        there is no way to restart the members of a bounce."""
        if self.command and self.kubernetes:
            why = Advice("{kubernetes} restarts all members at once, and {command} one member")
            raise UsageError(Advice("{command} and {kubernetes}"), why, "leave out one of both")
        if self.kubernetes is None and (self.configure or self.namespace or self.kube_context):
            what = Advice("{namespace}, {kube_context} and {configure} belong to {kubernetes}")
            raise UsageError("no workload", what, Advice("add {kubernetes} deployment/NAME"))
        if self.kubernetes is not None and len(groups) > 1 and "{group}" not in self.kubernetes:
            several = f"it names one workload for {len(groups)} groups"
            hint = Advice("use {} in its name, or name one group", "{group}")
            raise UsageError(Advice("{kubernetes} {}", self.kubernetes), several, hint)

        if is_bounce and not (self.command or self.kubernetes):
            hint = Advice("add {command} TEMPLATE, or {kubernetes} WORKLOAD")
            raise UsageError("bounce", "no restart command is given", hint)

    def rollout(self, group: str) -> Rollout | None:
        """Returns the rollout of a group's workload; None if a command restarts the members. Raises any error from
        `Rollout.of_group`."""
        if self.kubernetes is None:
            return None
        own = Rollout(self.kubernetes, self.namespace, self.kube_context, self.configure, self.timeout_s)
        return own.of_group(group)

    def options(self, group: str) -> tuple[str, str]:
        """Returns the options as text for the commands of a runbook: of the restart, and of its test."""
        hosts = tuple(f"{member}={host}" for member, host in self.hosts.items())
        if (rollout := self.rollout(group)) is None:
            return _options(command=self.command, host=hosts), _options(test_command=self.test_command, host=hosts)
        named = {"kubernetes": rollout.workload, "namespace": rollout.namespace, "kube_context": rollout.context}
        restart = _options(**named, configure=rollout.configure)
        return restart, _options(test_command=self.test_command or rollout.test())


_NO_RESTART: Final = Restart()


def _options(**named: Argument) -> str:
    """Returns options as text; an empty text if the first one has no value."""
    return Invocation("", (), named).options()[1:] if next(iter(named.values())) else ""


class _Plan(NamedTuple):
    """A plan with the state of its journal. ``names`` maps the name of a group in ZooKeeper to its name in the plan."""

    file: PlanFile
    state: MigrationState
    names: dict[str, str]

    @classmethod
    def open(cls, path: str | Path | None) -> _Plan | None:
        if path is None:
            return None
        plan, state = open_plan(Path(path))
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
        return sorted(of_zookeeper[name] for name in select_groups(self.file, selection, waves) or frozenset())

    def select_one(self, pattern: str) -> str:
        """Returns the name in ZooKeeper of the only group that a pattern selects."""
        first, *others = self.select([pattern], ())
        if others:
            why = f"matches {len(others) + 1} groups of the plan"
            raise UsageError(Advice("{group} {}", pattern), why, "name one group")
        return first

    def closed(self, groups: Iterable[str], to: CommitMode) -> dict[str, Stage]:
        """Returns the groups, by their names in ZooKeeper, that a bounce to ``to`` leaves out of a wave or a glob, with
        their stages. Members of rolled-back groups are restarted only into the phase of the plan's source."""
        left = {Stage.FINALIZED, Stage.NOT_PLANNED}
        if to.value != self.file.header.source.kind:
            left |= {Stage.ROLLED_BACK, Stage.ROLLED_BACK_IN_PART}
        planned = {self.names[group]: group for group in groups}
        found = ((one.group, self.state.stage_of(one)) for one in self.file.groups_of(frozenset(planned)))
        return {planned[name]: stage for name, stage in found if stage in left}

    def warn_of_unapplied(self, groups: Iterable[str], to: CommitMode, ui: Ui) -> None:
        """Names the groups whose offsets are not applied, unless they go back."""
        planned = {self.names[group]: group for group in groups}
        found = self.file.groups_of(frozenset(planned)) if to.value != self.file.header.source.kind else ()
        if early := sorted(planned[group.group] for group in found if not self.state.is_applied(group)):
            text = f"{count_of(len(early), 'group')} not applied, see `migrate apply`: {list_of(early, SHOWN)}"
            ui.note(text, warning=True)

    def recorded_phase(self, group: str) -> CommitMode | None:
        """Returns the last phase that the journal records for a group, by its name in ZooKeeper."""
        found = self.state.phases.get(self.names[group])
        return found.phase if found is not None else None

    @property
    def source_phase(self) -> CommitMode | None:
        """The phase in which the groups began; None if the plan is not between ZooKeeper and Kafka."""
        return next((mode for mode in CommitMode if mode.value == self.file.header.source.kind), None)

    def way_back(self, restart: Restart, group: str, servers: str) -> str:
        """Returns the command line of the bounce to dual towards the plan's source, of a group in ZooKeeper."""
        end = CommitMode.ZOOKEEPER if self.source_phase is CommitMode.KAFKA else CommitMode.KAFKA
        named = {"plan": str(self.file.path), "group": literal_pattern(self.names[group])}
        call = Invocation("runbook bounce", (), {**named, "to_phase": "dual", "from_phase": end.value})
        return f"{call.command_line()} {restart.options(group)[0]}{servers} {_options(execute=True)}"

    def record(self, ui: Ui, records: Iterable[JournalRecord]) -> None:
        """Appends records to the plan's journal. If this fails, warns the user, because the step itself is done."""
        try:
            append_to_journal(self.file, records)
        except OffsetMgrError as error:
            hint = Advice(" ({})", error.hint) if error.hint else ""
            ui.note(Advice("the plan's journal does not record this step: {}{}", error.text, hint), warning=True)


class _Groups:
    """The groups of old consumers of a runbook, at the servers of a plan or at those of the settings."""

    def __init__(self, connections: Connections, plan: str | Path | None) -> None:
        self.connections, self.ui = connections, connections.ui
        self.plan = _Plan.open(plan)
        given = connections.given
        self.names_servers = bool(given.get("zookeeper") or given.get("store"))
        addresses = ("zookeeper", "bootstrap_server", "store")
        self.login_options = {name: value for name, value in given.items() if name not in addresses}
        """The connection options that name no servers."""
        self.login = Invocation("", (), self.login_options).options()
        """The same as text."""
        self.view = self._view()

    def _view(self) -> GroupView:
        if self.plan is None or self.names_servers:
            return self.connections.group_view()
        header, connection = self.plan.file.header, self.connections.resolved.connection
        return SourceAndTarget.of_plan(self.connections, header, connection, connection).old_consumer_view(header)

    def window(self, window: ObservationWindow) -> ObservationWindow:
        return replace(window, waiting=self.connections.waits.for_commits)

    def baselines(self, path: Path | None) -> Callable[[str], Observation | None]:
        """Reads a baseline file. Returns a function that returns the baseline of a group in it, or None without a
        file. The function raises `OtherCluster` if the baseline belongs to other servers, and `NoBaseline`."""
        if path is None:
            return lambda _group: None
        file = BaselineFile(path)

        def baseline_of(group: str) -> Observation:
            found = file.of(group)
            self.view.require_stores(f"baseline {path}", found)
            return found

        return baseline_of

    def select(self, selection: PlanSelection, to: CommitMode) -> list[str]:
        """Returns the selected groups, sorted. The groups of a wave or of a glob are left out if they have no live
        member in ZooKeeper or if the plan has closed them."""
        patterns, excluded, waves = selection.groups.patterns, selection.groups.excluded, selection.waves
        view, plan = self.view, self.plan
        if not patterns and not waves:
            hint = "as in {group} NAME (repeatable, globs)"
            hint += "; {wave} N, or {group} '*' for all groups of the plan" if plan is not None else ""
            raise UsageError(Advice("{group}"), "no group is named", Advice(hint))
        if waves and plan is None:
            raise UsageError(Advice("{wave}"), "the waves are in a plan", Advice("add {plan} PLAN"))
        named = sorted({name for name in patterns or () if not is_pattern(name)})
        globs = [name for name in patterns or () if is_pattern(name)]
        if plan is not None:
            named = plan.select(named, ())
            wide = plan.select(globs, waves)
        else:
            wide = GroupSelection(globs).within(view.zookeeper.groups(), view.zookeeper.uri) if globs else []
        if excluded:
            known, where = {*named, *view.zookeeper.groups()}, view.zookeeper.uri
            left = plan.select((), (), excluded) if plan else GroupSelection(exclude=excluded).within(known, where)
            named, wide = ([name for name in names if name in left] for names in (named, wide))
            if not named and not wide:
                raise GroupNotFound("groups", "every selected group is excluded")
        return sorted({*named, *self._with_members(sorted(set(wide) - set(named)), to)})

    def _with_members(self, groups: list[str], to: CommitMode) -> list[str]:
        view, closed = self.view, self.plan.closed(groups, to) if self.plan else {}
        known = view.cluster.topics
        alive = [name for name in groups if name not in closed and view.registry.members(name, known).members]
        if left := len(groups) - len(alive):
            kinds = "finalized, rolled back, not planned, or without a live member in ZooKeeper"
            self.ui.note(f"left out {left} of {len(groups)} groups: {kinds}")
        others = [name for name in groups if closed.get(name, Stage.FINALIZED) is not Stage.FINALIZED]
        if others:
            named = list_of((f"{name} ({closed[name]})" for name in others), SHOWN)
            self.ui.note(Advice("left out by the plan: {}; name a group with {group} to restart its members", named))
        return alive


class WrittenRunbooks(NamedTuple):
    """The runbooks that were written, and the groups that have none."""

    books: list[Runbook]
    failed: list[str]

    def page(self) -> tuple[str, list[DocumentPart]]:
        """Returns the title and the parts of the page with all runbooks."""
        return runbook_title(self.books), runbook_parts(self.books)


def write(
    connections: Connections,
    to: CommitMode,
    selection: PlanSelection = ALL,
    *,
    plan: str | Path | None = None,
    start: CommitMode | None = None,
    files: Sequence[Path] = (),
    window: ObservationWindow | None = None,
    restart: Restart = _NO_RESTART,
) -> WrittenRunbooks:
    """Writes the steps that lead each of the groups to the phase ``to``, into new ``files`` (JSON with the baseline,
    HTML or Markdown). Each group is watched for at most ``window`` for its phase, unless ``start`` names it. ``plan``
    names the servers and selects groups.

    A group whose phase is unknown is named, and does not hold up the others. Raises `UsageError` for values that
    contradict each other, `FileFailure`, `GroupNotFound`, and `GateRefused` if the phase of the only group is unknown.
    """
    from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

    restart.check()
    files = _new_files(list(files))
    name = next((str(f) for f in files if f.suffix == ".json"), "runbook.json")
    groups = _Groups(connections, plan)
    view, names, ui = groups.view, groups.select(selection, to), connections.ui
    connection = connections.resolved.connection
    address, bootstrap = zookeeper_of(view.zookeeper.uri, connection), bootstrap_of(view.kafka.uri, connection)
    servers = _options(zookeeper=address or "", bootstrap_server=bootstrap) + groups.login
    path = str(plan) if plan is not None else None
    by_plan = path is not None and not groups.names_servers

    watched = groups.window(window or ObservationWindow(60))

    def make(group: str) -> Runbook:
        restart_options, test_options = restart.options(group)
        arguments = RunbookArguments(
            options=f"{_options(plan=path)}{groups.login}" if by_plan else servers,
            servers=servers,
            followups=groups.login,
            zookeeper=view.zookeeper.uri,
            kafka=view.kafka.uri,
            restart=restart_options,
            test=test_options,
            rollout=restart.rollout(group),
            baseline=name,
            plan=path,
            retention_ms=view.cluster.offsets_retention_ms(),
        )
        if len(names) > 1:
            ui.note(f"group {group}: watching it for its phase")
        return write_runbook(view, group, to, start=start, window=watched, arguments=arguments)

    found = _books_of(names, make, ui)
    if found.books:
        _write_files(found, files, name, ui)
    elif not found.failed:
        ui.note(_NOTHING)
    if found.failed:
        ui.note(f"no runbook for {count_of(len(found.failed), 'group')}: {', '.join(found.failed)}")
    return found


def _books_of(names: Sequence[str], make: Callable[[str], Runbook], ui: Ui) -> WrittenRunbooks:
    found = WrittenRunbooks([], [])
    for each in names:
        try:
            found.books.append(make(each))
        except (GateRefused, InvalidWorkload) as error:
            if len(names) == 1:
                raise
            prefix = (error.what, ": ") if isinstance(error, InvalidWorkload) else ("", "")
            ui.note(_refusal(each, Advice("{}{}{}", *prefix, error.why), error.hint))
            found.failed.append(each)
    return found


def _refusal(group: str, why: object, hint: object) -> Advice:
    return Advice("  ! group {}: {}" + (" ({})" if hint else ""), *((group, why, hint) if hint else (group, why)))


def _new_files(files: list[Path]) -> list[Path]:
    """Returns the files, with a baseline if they have none. Raises `UsageError` or `FileFailure` if one of them cannot
    be created."""
    if files and not any(file.suffix == ".json" for file in files):
        files = [files[0].with_suffix(".json"), *files]
    for file in files:
        if file.suffix not in _SUFFIXES:
            raise UsageError(f"-o {file}", "the name ends neither in .json nor in .html nor in .md")
        if file.exists():
            why = "exists already, and a baseline must not be overwritten"
            raise UsageError(f"-o {file}", why, "name another file")
        if not file.parent.is_dir():
            raise FileFailure(f"-o {file}", f"{file.parent} is no directory")
    return files


def _write_files(found: WrittenRunbooks, files: Sequence[Path], baseline: str, ui: Ui) -> None:
    from offsetmgr.core.document import to_html, to_markdown

    title, parts = runbook_title(found.books), runbook_parts(found.books)
    for file in files:
        if file.suffix == ".json":
            written = json.dumps(to_json(found.books), indent=2) + "\n"
        else:
            written = (to_html if file.suffix == ".html" else to_markdown)(title, parts)
        hint = "name another file, in a directory that can be written"
        with os_error_as(FileFailure, f"-o {file}", hint), file.open("x", encoding="utf-8") as out:
            out.write(written)
        ui.note(f"wrote {file}")
    if not files:
        text = f"the steps need the baseline {baseline}, which was not written; to write it, add -o {baseline}"
        ui.note(text, warning=True)
    for book in found.books if files else ():
        for warning in book.warnings:
            text = warning.shortened
            ui.note(Advice("group {}: {}", book.group, text) if len(found.books) > 1 else text, warning=True)


def check(
    connections: Connections,
    group: str,
    phase: CommitMode,
    *,
    plan: str | Path | None = None,
    baseline: Path | None = None,
    rules: EvidenceThresholds | None = None,
    window: ObservationWindow | None = None,
) -> PhaseReport:
    """Checks by evidence that every member of a group is in a phase. Watches commits for at most ``window``, and stops
    as soon as the result is certain. ``baseline`` has the members before a bounce. The journal of ``plan`` records a
    phase that passed. Raises `GroupNotFound`, `OtherCluster`, `NoBaseline`, `Unreachable`, `TimedOut`."""
    groups = _Groups(connections, plan)
    if groups.plan is not None:
        group = groups.plan.select_one(group)
    known, watched = groups.baselines(baseline)(group), groups.window(window or ObservationWindow())
    report = check_phase(groups.view, group, phase, baseline=known, rules=rules, window=watched)
    if groups.plan is not None and report.passed:
        groups.plan.record(connections.ui, [phase_record(groups.plan.names[group], report)])
    return report


class BounceOptions(NamedTuple):
    """How the bounces work: the present phase of the groups (``start``), the files with the members before this bounce
    and before the one before it, the file that saves the progress, and the limits of the gates. A restarted member must
    be back after ``restart_timeout_s`` seconds."""

    start: CommitMode | None = None
    baseline: Path | None = None
    start_baseline: Path | None = None
    state: Path | None = None
    rules: EvidenceThresholds = EvidenceThresholds()
    window: ObservationWindow = ObservationWindow()
    restart_timeout_s: float = 120


_DEFAULTS: Final = BounceOptions()


class BounceRun(NamedTuple):
    """The bounces of the selected ``groups``, or the tests of their restart command, whose output is in ``log``.
    ``unfinished`` are texts about bounces that can be resumed."""

    groups: list[str]
    found: list[GroupBounce]
    tests: Sequence[CommandTest] = ()
    log: Path | None = None
    unfinished: Sequence[str] = ()

    @property
    def stopped(self) -> str:
        """The reason for which the run was stopped before its end; empty if it was not."""
        if not self.tests and len(self.found) == len(self.groups) and not any(one.is_stopped for one in self.found):
            return ""
        return next((one.result.why for one in self.found if one.is_stopped and one.result), "stopped on request")

    @property
    def ok(self) -> bool:
        """Whether every bounce was executed or planned, or every test succeeded."""
        return all(one.ok for one in self.found) and all(test.status == "ok" for test in self.tests)


def bounce(
    connections: Connections,
    to: CommitMode,
    selection: PlanSelection = ALL,
    *,
    plan: str | Path | None = None,
    restart: Restart = _NO_RESTART,
    options: BounceOptions = _DEFAULTS,
    execute: bool = False,
    reason: str = "",
) -> BounceRun:
    """Restarts the members of the groups one at a time into the phase ``to``, with a gate after each. With a workload,
    one rollout restarts all members, and the gate follows it. Without ``execute``, nothing is restarted: with a test
    command, the access to each member is tested. Several groups follow one another and share one state file; a group
    that stops does not hold up the others, and the same call resumes.

    Raises `UsageError` for values that contradict each other, `GroupNotFound`, the error of the only group, and
    `Unreachable` or `TimedOut` if a server does not respond.
    """
    restart.check()
    ui, patterns = connections.ui, list(selection.groups.patterns or ())
    file = options.state or Path(f"{_stem(plan, patterns, to)}.json")
    with _progress_on_failure(ui, file if execute else None):
        groups = _Groups(connections, plan)
        names = groups.select(selection, to)
    if groups.plan is not None:
        groups.plan.warn_of_unapplied(names, to, ui)
    if not names:
        ui.note(_NOTHING)
        return BounceRun([], [])
    restart.check(names, is_bounce=execute or not restart.test_command)
    spec = _specs(groups, to, restart, options)
    several = len(names) > 1 or bool(selection.waves)
    specs = [_prepared(spec, name) for name in names] if several else [spec(names[0])]
    state = options.state or _default_state(groups, specs, plan, to, several)
    if restart.test_command and not execute:
        log = state.with_suffix(".log")
        tests = [
            test for name in names for test in run_command_tests(groups.view, spec(name), restart.test_command, log)
        ]
        return BounceRun(names, [], tests, log)
    if execute:
        ui.confirm(restart.question(names, to))
    found: list[GroupBounce] = []
    interrupt = ui.stop("after this observation or restart; the same command line resumes")
    with _progress_on_failure(ui, state if execute else None, names), interrupt as stop:
        origin = EditOrigin("runbook bounce", reason, groups.login_options)
        for one in bounce_groups(
            groups.view, specs, state, execute=execute, several=several, progress=ui.note, stop=stop, origin=origin
        ):
            found.append(one)
            _report(one, groups.plan if execute else None, ui, several=several)
        if len(names) == 1 and found and found[0].error is not None:
            raise found[0].error
    run = BounceRun(names, found)
    unfinished = [] if (run.ok and not run.stopped) or not execute else _unfinished(state, names)
    return run._replace(unfinished=unfinished)


def _specs(groups: _Groups, to: CommitMode, restart: Restart, options: BounceOptions) -> Callable[[str], BounceSpec]:
    """Returns a function that returns the parameters of a group's bounce."""
    plan, baseline_of = groups.plan, groups.baselines(options.baseline)
    start_baseline_of = groups.baselines(options.start_baseline)
    servers = Invocation("", (), groups.connections.given).options() if groups.names_servers else groups.login

    def spec(name: str) -> BounceSpec:
        return BounceSpec(
            name,
            to,
            restart.command or "",
            start=options.start,
            baseline=baseline_of(name),
            start_baseline=start_baseline_of(name),
            hosts=restart.hosts,
            rules=options.rules,
            window=groups.window(options.window),
            restart_timeout_s=options.restart_timeout_s,
            command_timeout_s=restart.timeout_s + (KILL_AFTER_S if restart.kubernetes else 0),
            rollout=restart.rollout(name),
            recorded=plan.recorded_phase(name) if plan else None,
            source=plan.source_phase if plan else None,
            way_back=plan.way_back(restart, name, servers) if plan else "",
        )

    return spec


def _unfinished(path: Path, names: Sequence[str] | None, *, outage: bool = False) -> list[str]:
    """Returns how far the open bounces in a state file are, and the command line that resumes them. Without ``names``,
    the groups are not known yet."""
    saved = [state for name, state in load_all(path).items() if names is None or name in names]
    texts = [state.progress for state in saved if state.is_open]
    if outage and not saved and names is not None:
        texts.append("no bounce has begun, so no member was restarted")
    if (outage and names is not None) or any(state.is_open for state in saved):
        texts.append(f"resume: {own_command_line()}")
    return texts


@contextmanager
def _progress_on_failure(ui: Ui, path: Path | None, names: Sequence[str] | None = None) -> Iterator[None]:
    """If the block fails, tells the user how far the bounces in the state file are. Without ``names``, only after an
    outage."""
    try:
        yield
    except OffsetMgrError as error:
        if path is not None and (error.retriable or names is not None):
            for text in _unfinished(path, names, outage=error.retriable):
                ui.note(text)
        raise


def _prepared(make: Callable[[str], BounceSpec], group: str) -> BounceSpec | GroupBounce:
    """Returns the parameters of the bounce, or its error if a file has no baseline of the group, or if Kubernetes
    allows no workload of its name."""
    try:
        return make(group)
    except (NoBaseline, InvalidWorkload) as error:
        return GroupBounce(group, error=error)


def _report(one: GroupBounce, plan: _Plan | None, ui: Ui, *, several: bool) -> None:
    """Records the bounce in the journal of the plan, if there is one, and tells the user its error."""
    if plan is not None and (record := journal_record(plan.names[one.group], one)):
        plan.record(ui, [record])
    if isinstance(one.error, GateClosed):
        for line in one.error.report.lines():
            ui.note(line)
    if one.error is not None and several:
        ui.note(_refusal(one.group, Advice("{}: {}", one.error.what, one.error.why), one.error.hint))


def _default_state(
    groups: _Groups,
    specs: Sequence[BounceSpec | GroupBounce],
    plan: str | Path | None,
    to: CommitMode,
    several: bool,
) -> Path:
    """Returns the name of the state file: after the plan, else after the group if there is only one. The name gets a
    number if this is a new bounce: if a bounce in the file has another baseline, or if all bounces are finished and a
    group has restarted since. With one group, a finished bounce is enough."""
    valid = [spec for spec in specs if isinstance(spec, BounceSpec)]
    stem = _stem(plan, [spec.group for spec in specs], to)
    for number in count(2):
        path = Path(f"{stem}.json" if number == 2 else f"{stem}-{number - 1}.json")
        saved = load_all(path)
        found = [(spec, saved[spec.group]) for spec in valid if spec.group in saved]
        if any(belongs_to_earlier(state, spec.baseline) for spec, state in found):
            groups.ui.note(f"the bounce in {path} has another baseline, so this is a new one")
        elif len(found) == len(valid) and _needs_new_file(groups.view, [state for _, state in found], several):
            groups.ui.note(f"the bounce in {path} is finished, so this is a new one")
        else:
            return path
    raise AssertionError


def _stem(plan: str | Path | None, groups: Sequence[str], to: CommitMode) -> str:
    """Returns the name of the state file without its number and suffix."""
    label = Path(plan).stem if plan is not None else groups[0] if len(groups) == 1 else "groups"
    return f"bounce-{re.sub(r'[^A-Za-z0-9._-]', '_', label)}-{to.value}"


def _needs_new_file(view: GroupView, states: Sequence[BounceState], several: bool) -> bool:
    if any(state.finished_ms is None for state in states):
        return False
    known = view.cluster.topics
    return not several or not all(
        is_unchanged(state, view.registry.members(state.group, known).members) for state in states
    )
