"""``offsetmgr runbook``: writes, checks and executes runbooks for rolling bounces of groups of old consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.app.migrate import ALL, PlanSelection
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.commit_mode import CommitMode, Phase
from offsetmgr.core.errors import FileFailure, GateRefused, OffsetMgrError, os_error_as
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import accept_names
from offsetmgr.groups.execute import EditOrigin
from offsetmgr.migration.bounce import BounceRun as BounceRun
from offsetmgr.migration.bounce import (
    Bounces,
    PlannedGroups,
    groups_to_bounce,
    journal_record,
    phase_record,
)
from offsetmgr.migration.bounce import GroupBounce as GroupBounce
from offsetmgr.migration.bounce_checkpoint import OPERATION, default_state_file, state_stem, unfinished_texts
from offsetmgr.migration.bounce_plan import BounceOptions as BounceOptions
from offsetmgr.migration.bounce_plan import BounceResult as BounceResult
from offsetmgr.migration.bounce_plan import BounceSpec, GateClosed, run_command_tests
from offsetmgr.migration.evidence import EvidenceThresholds as EvidenceThresholds
from offsetmgr.migration.evidence import PhaseReport as PhaseReport
from offsetmgr.migration.journaled_writer import append_to_journal
from offsetmgr.migration.observation import GroupView, ignored_wait
from offsetmgr.migration.observation import ObservationWindow as ObservationWindow
from offsetmgr.migration.restart_command import NO_RESTART, InvalidWorkload, options_text
from offsetmgr.migration.restart_command import Restart as Restart
from offsetmgr.migration.runbook import (
    SHOWN,
    BaselineFile,
    NoBaseline,
    check_phase,
    file_content,
    new_files,
    runbook_parts,
    runbook_title,
    write_runbook,
)
from offsetmgr.migration.runbook_steps import Runbook, RunbookArguments

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.app.ui import Ui
    from offsetmgr.core.document import DocumentPart
    from offsetmgr.migration.observation import Observation
    from offsetmgr.migration.progress import JournalRecord

_NOTHING: Final = "no selected group has a live member in ZooKeeper, so there is nothing to restart"


class _Groups:
    """The groups of old consumers of a runbook, at the servers of a plan or at those of the settings."""

    def __init__(self, connections: Connections, plan: str | Path | None) -> None:
        self.connections, self.ui = connections, connections.ui
        self.plan = PlannedGroups.open(plan)
        given = connections.given
        self.names_servers = bool(given.get("zookeeper") or given.get("store"))
        addresses = ("zookeeper", "bootstrap_server", "store")
        self.login_options = {name: value for name, value in given.items() if name not in addresses}
        """The connection options that name no servers."""
        self.login = Invocation("", (), self.login_options).options()
        """The same as text."""
        if self.plan is None or self.names_servers:
            self.view = connections.group_view()
        else:
            header = self.plan.file.header
            stores = SourceAndTarget.of_plan(connections, header)
            self.view = GroupView.of_plan(header, stores.source, stores.target, stores.cluster)

    def addresses(self) -> dict[str, str | None]:
        """Returns the arguments that name the servers."""
        from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

        view, connection = self.view, self.connections.resolved.connection
        old = zookeeper_of(view.zookeeper.uri, connection)
        return {"zookeeper": old or "", "bootstrap_server": bootstrap_of(view.kafka.uri, connection)}

    def window(self, window: ObservationWindow) -> ObservationWindow:
        """Returns the window with the ``waiting`` of its caller, else with that of the connections."""
        is_given = window.waiting is not ignored_wait
        return window if is_given else replace(window, waiting=self.connections.waits.for_commits)

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

    def located(self, report: PhaseReport) -> PhaseReport:
        """Returns the report with the location of its group and the next step there. The plan is evidence, too."""
        from offsetmgr.migration.group_locator import GroupLocator
        from offsetmgr.migration.location import NextStep

        locator, found = GroupLocator.of_view(self.view), report.seen
        if self.plan is not None:
            try:
                locator.add_plan(self.plan.file.path)
            except OffsetMgrError as renewed:  # `_record` reports it if the check passed
                locator.unread_plans += [] if report.passed else [renewed]
        (location,) = locator.locate([report.group], seen={} if found is None else {report.group: found})
        self.connections.warn_of_unread(locator.unread_plans)
        step, arguments = location.next, self.connections.given
        is_resumed = step.call is not None and step.call.verb == "runbook bounce"
        if not report.passed and location.phase is Phase.of(report.phase) and not is_resumed:
            step = NextStep(None, f"make the check pass first: {report.missing}", is_open=True)
        if (call := step.call) is not None:
            has_servers = call.positional or call.named.get("plan") or call.named.get("from")
            is_incomplete = call.verb.startswith("groups") or not has_servers
            if self.plan is not None and not self.names_servers and is_incomplete:
                arguments = {**self.addresses(), **self.login_options}
            step = step._replace(call=call._replace(named={**call.named, **arguments}))
        return replace(report, location=location, next=step)

    def select(self, selection: PlanSelection, to: CommitMode) -> list[str]:
        """See `groups_to_bounce`."""
        return groups_to_bounce(self.view, self.plan, selection.groups, selection.waves, to, self.ui.note)


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
    restart: Restart = NO_RESTART,
) -> WrittenRunbooks:
    """Writes the steps that lead each of the groups to the phase ``to``, into new ``files`` (JSON with the baseline,
    HTML or Markdown). Each group is watched for at most ``window`` for its phase, unless ``start`` names it. ``plan``
    names the servers and selects groups.

    A group whose phase is unknown is named, and does not hold up the others. Raises `UsageError` for values that
    contradict each other, `FileFailure`, `GroupNotFound`, and `GateRefused` if the phase of the only group is unknown.
    """
    restart.check()
    files = new_files(list(files))
    name = next((str(f) for f in files if f.suffix == ".json"), "runbook.json")
    groups = _Groups(connections, plan)
    view, names, ui = groups.view, groups.select(selection, to), connections.ui
    servers = options_text(**groups.addresses()) + groups.login
    path = str(plan) if plan is not None else None
    by_plan = path is not None and not groups.names_servers

    watched = groups.window(window or ObservationWindow(60))

    def make(group: str) -> Runbook:
        restart_options, test_options = restart.options(group)
        arguments = RunbookArguments(
            options=f"{options_text(plan=path)}{groups.login}" if by_plan else servers,
            servers=servers,
            followups=groups.login,
            zookeeper=view.zookeeper.uri,
            kafka=view.kafka.uri,
            restart=restart_options,
            test=test_options,
            rollout=restart.of_group(group) if restart.kubernetes else None,
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


def _write_files(found: WrittenRunbooks, files: Sequence[Path], baseline: str, ui: Ui) -> None:
    for file in files:
        content, hint = file_content(file, found.books), "name another file, in a directory that can be written"
        with os_error_as(FileFailure, f"-o {file}", hint), file.open("x", encoding="utf-8") as out:
            out.write(content)
        ui.note(f"wrote {file}")
    if not files:
        text = f"the steps need the baseline {baseline}, which was not written; to write it, add -o {baseline}"
        ui.note(text, warning=True)
    for book in found.books if files else ():
        for warning in book.warnings:
            text = warning.advice(SHOWN)
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
    phase that passed. The report has the location of the group and the next step, too. Raises `GroupNotFound`,
    `OtherCluster`, `NoBaseline`, `Unreachable`, `TimedOut`."""
    groups = _Groups(connections, plan)
    if groups.plan is not None:
        group = groups.plan.select_one(group)
    known, watched = groups.baselines(baseline)(group), groups.window(window or ObservationWindow())
    report = check_phase(groups.view, group, phase, watched, rules or EvidenceThresholds(), known)
    if groups.plan is not None and report.passed:
        _record(groups.plan, connections.ui, [phase_record(groups.plan.names[group], report)])
    return groups.located(report)


_DEFAULTS: Final = BounceOptions()


def bounce(
    connections: Connections,
    to: CommitMode,
    selection: PlanSelection = ALL,
    *,
    plan: str | Path | None = None,
    restart: Restart = NO_RESTART,
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
    file = options.state or Path(f"{state_stem(plan, patterns, to)}.json")
    with _progress_on_failure(ui, file if execute else None):
        groups = _Groups(connections, plan)
        names = groups.select(selection, to)
    if groups.plan is not None and (early := groups.plan.unapplied(names, to)):
        ui.note(early, warning=True)
    if not names:
        ui.note(_NOTHING)
        return BounceRun([], [])
    restart.check(names, is_bounce=execute or not restart.test_command)
    spec = _specs(groups, to, restart, options)
    several = len(names) > 1 or bool(selection.waves)
    specs = [_prepared(spec, name) for name in names] if several else [spec(names[0])]
    baselines = {one.group: one.baseline for one in specs if isinstance(one, BounceSpec)}
    state = options.state or default_state_file(
        state_stem(plan, names, to), baselines, groups.view.members, ui.note, several=several
    )
    if restart.test_command and not execute:
        log = state.with_suffix(".log")
        tests = [test for name in names for test in run_command_tests(groups.view, spec(name), log)]
        return BounceRun(names, [], tests, log)
    if execute:
        ui.confirm(restart.question(names, to))
    found: list[GroupBounce] = []
    interrupt = ui.stop("after this observation or restart; the same command line resumes")
    with _progress_on_failure(ui, state if execute else None, names), interrupt as stop:
        origin = EditOrigin(OPERATION, reason, groups.login_options) if execute else None
        for one in Bounces(groups.view, state, several, ui.note, stop, origin).run(specs):
            found.append(one)
            _report(one, groups.plan if execute else None, ui, several=several)
        if len(names) == 1 and found and found[0].error is not None:
            raise found[0].error
    run = BounceRun(names, found)
    is_over = (run.ok and not run.stopped) or not execute
    return run if is_over else run._replace(unfinished=unfinished_texts(state, names))


def _specs(groups: _Groups, to: CommitMode, restart: Restart, options: BounceOptions) -> Callable[[str], BounceSpec]:
    """Returns a function that returns the parameters of a group's bounce."""
    plan, baseline_of = groups.plan, groups.baselines(options.baseline)
    start_baseline_of = groups.baselines(options.start_baseline)
    servers = Invocation("", (), groups.connections.given).options() if groups.names_servers else groups.login
    options = options._replace(window=groups.window(options.window))

    def spec(name: str) -> BounceSpec:
        baselines = baseline_of(name), start_baseline_of(name)
        found = BounceSpec(name, to, restart.of_group(name), options, *baselines)
        if plan is None:
            return found
        way_back, recorded = plan.way_back(restart, name, servers), plan.state.phases.get(plan.names[name])
        return replace(found, recorded=recorded and recorded.phase, source=plan.source_phase, way_back=way_back)

    return spec


@contextmanager
def _progress_on_failure(ui: Ui, path: Path | None, names: Sequence[str] | None = None) -> Iterator[None]:
    """If the block fails, tells the user how far the bounces in the state file are. Without ``names``, only after an
    outage."""
    try:
        yield
    except OffsetMgrError as error:
        if path is not None and (error.retriable or names is not None):
            for text in unfinished_texts(path, names, outage=error.retriable):
                ui.note(text)
        raise


def _prepared(make: Callable[[str], BounceSpec], group: str) -> BounceSpec | GroupBounce:
    """Returns the parameters of the bounce, or its error if a file has no baseline of the group, or if Kubernetes
    allows no workload of its name."""
    try:
        return make(group)
    except (NoBaseline, InvalidWorkload) as error:
        return GroupBounce(group, error=error)


def _record(plan: PlannedGroups, ui: Ui, records: Iterable[JournalRecord]) -> None:
    """Appends records to the plan's journal. If this fails, warns the user, because the step itself is done."""
    try:
        append_to_journal(plan.file, records)
    except OffsetMgrError as error:
        hint = Advice(" ({})", error.hint) if error.hint else ""
        ui.note(Advice("the plan's journal does not record this step: {}{}", error.text, hint), warning=True)


def _report(one: GroupBounce, plan: PlannedGroups | None, ui: Ui, *, several: bool) -> None:
    """Records the bounce in the journal of the plan, if there is one, and tells the user its error."""
    if plan is not None and (record := journal_record(plan.names[one.group], one)):
        _record(plan, ui, [record])
    if isinstance(one.error, GateClosed):
        for line in one.error.report.lines():
            ui.note(line)
    if one.error is not None and several:
        ui.note(_refusal(one.group, Advice("{}: {}", one.error.what, one.error.why), one.error.hint))


accept_names(globals(), PlanSelection=PlanSelection.of)
