"""The steps of a migration: plan, apply, renew, verify, rollback, finalize; and the mirror. The commands ``offsetmgr
migrate`` and the methods of `offsetmgr.Migration` are these functions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.translation import translating
from offsetmgr.app.ui import Interrupted as Interrupted
from offsetmgr.app.ui import Ui
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.user_directories import state_directory
from offsetmgr.core import TITLES
from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.cutover_options import CutoverOptions as CutoverOptions
from offsetmgr.core.document import time_text
from offsetmgr.core.errors import (
    FileFailure,
    GroupNotFound,
    JournalError,
    OffsetMgrError,
    TimedOut,
    Unreachable,
    UsageError,
)
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.model import KEEPS_ACTIVE_OFFSETS
from offsetmgr.core.offset_store import AheadPolicy
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import (
    ALL_GROUPS,
    ALL_TOPICS,
    GroupsArgument,
    GroupSelection,
    accept_names,
    is_pattern,
    literal_pattern,
)
from offsetmgr.migration.journaled_writer import PlanRun, journaled_writer, open_plan, open_renewed
from offsetmgr.migration.journaled_writer import Report as Report
from offsetmgr.migration.plan import (
    STILL_RUNNING,
    comparison_lines,
    count_lines,
    expiry_line,
    expiry_text,
    scope_line,
    select_groups,
    summary_of,
    write_plan,
)
from offsetmgr.migration.plan import GroupPlan as GroupPlan
from offsetmgr.migration.plan import PlanFile as PlanFile
from offsetmgr.migration.plan import PlanOptions as PlanOptions
from offsetmgr.migration.plan import PlanStep as PlanStep
from offsetmgr.migration.plan import PlanSummary as PlanSummary
from offsetmgr.migration.progress import Stage

if TYPE_CHECKING:
    from offsetmgr.app.readiness import Readiness
    from offsetmgr.core.log_origin import TranslationChoice
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.edits import OutsideLogChecks
    from offsetmgr.groups.scan import TopicMatches
    from offsetmgr.migration.apply import ApplyReport as ApplyReport
    from offsetmgr.migration.cutover_gates import CutoverReport as CutoverReport
    from offsetmgr.migration.finalize import FinalizeReport as FinalizeReport
    from offsetmgr.migration.fleet import FleetStatus as FleetStatus
    from offsetmgr.migration.journaled_writer import GroupOutcome, JournaledWriter
    from offsetmgr.migration.location import GroupStatus as GroupStatus
    from offsetmgr.migration.mirror import Mirror
    from offsetmgr.migration.mirror import MirrorState as MirrorState
    from offsetmgr.migration.mirror import MirrorStatus as MirrorStatus
    from offsetmgr.migration.mirror_images import MirrorImages
    from offsetmgr.migration.planner import Planner
    from offsetmgr.migration.planner import WrittenPlan as WrittenPlan
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.refresh import RefreshReport as RefreshReport
    from offsetmgr.migration.report import MigrationReport as MigrationReport
    from offsetmgr.migration.rollback import RollbackPreview
    from offsetmgr.migration.rollback import RollbackReport as RollbackReport
    from offsetmgr.migration.verify import VerifyResults as VerifyResults
    from offsetmgr.migration.waves import Waves
    from offsetmgr.translation.translator import Translations


T = TypeVar("T")
_PLAN_WITH: Final = "migrate plan with "
"""The command that has the options of a translation. The steps of a plan have none of them."""


class SideSettings(NamedTuple):
    """How a migration connects to its source and to its target. ``arguments`` are those of a further call for the same
    servers, for the calls that undo or continue a step."""

    source: ConnectionConfig
    target: ConnectionConfig
    arguments: Mapping[str, Argument] = MappingProxyType({})


class PlanSelection(NamedTuple):
    """The groups of a plan to which a step is limited. With ``waves``, the groups in one of these waves."""

    groups: GroupSelection = GroupSelection()
    waves: tuple[int, ...] = ()

    @classmethod
    def of(cls, groups: PlanSelection | GroupsArgument | None) -> PlanSelection:
        """Returns ``groups`` as a selection; all groups of the plan if it is None."""
        return groups if isinstance(groups, PlanSelection) else cls(GroupSelection.of(groups))

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of a further call for the same groups."""
        groups, waves = self.groups, tuple(map(str, self.waves))
        named = {"group": groups.patterns, "wave": waves, "exclude_group": groups.excluded}
        return {name: values for name, values in named.items() if values}


ALL: Final = PlanSelection()


class StepScope(NamedTuple):
    """The plan of a step, the groups to which the step is limited, how it connects, and its reason in the operation
    log. Functions also take the path of a plan in place of it."""

    path: Path
    selection: PlanSelection = ALL
    sides: SideSettings | None = None
    reason: str = ""

    @classmethod
    def of(cls, plan: StepScope | str | Path) -> StepScope:
        """Returns ``plan`` as a scope."""
        return plan if isinstance(plan, StepScope) else cls(Path(plan))


class PlanInputs(NamedTuple):
    """The inputs of a plan in addition to the stores and the options.

    ``partition_map`` is a confirmed map for byte positions of Kafka 0.7, and ``waves`` a file with the waves and owners
    of groups. With ``selects_waves``, this file also selects the groups. ``translate`` states that the offsets of
    another Kafka cluster are valid in the target, or has the rules of a translation by the records. ``window_s`` is the
    time in seconds to watch commits if the target is ahead without other evidence.
    """

    partition_map: Path | None = None
    waves: Path | None = None
    selects_waves: bool = False
    translate: TranslationChoice | None = None
    window_s: float = 0.0

    def read_waves(self, options: PlanOptions) -> tuple[Waves | None, PlanOptions]:
        """Returns the waves, and the options. With ``selects_waves``, the waves select the groups, without those
        that the options exclude."""
        from offsetmgr.migration.waves import read_waves

        if self.waves is None:
            return None, options
        waves = read_waves(self.waves)
        if not self.selects_waves:
            return waves, options
        groups = GroupSelection(waves.patterns(), exclude=options.group_selection.excluded)
        return waves, replace(options, groups=groups)


def plan(
    connections: Connections,
    source: str,
    target: str,
    path: Path,
    options: PlanOptions,
    *,
    sides: SideSettings | None = None,
    inputs: PlanInputs | None = None,
) -> WrittenPlan:
    """Reads the stores at the URIs ``source`` and ``target``, decides which offsets a migration writes, and writes the
    plan to the new file ``path``. Nothing else is changed.

    Raises `GroupNotFound` if the groups have no offsets or a row of the waves matches no selected group,
    `UnknownTopicOrPartition` if a selected topic is in no plan, `PlanError` if the file exists, `OtherCluster`,
    `UsageError`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.groups.scan import TopicMatches
    from offsetmgr.migration.observation import ObservationWindow
    from offsetmgr.migration.partition_map import read_map
    from offsetmgr.migration.planner import WrittenPlan, no_groups_hint

    inputs = inputs or PlanInputs()
    waves, options = inputs.read_waves(options)
    stores, options = _new_sides(connections, source, target, options.for_source(source), sides)
    topics = TopicMatches(options.selection)
    options = replace(options, topics=topics)
    confirmed = None if inputs.partition_map is None else read_map(inputs.partition_map)
    window = ObservationWindow(inputs.window_s, waiting=connections.waits.for_commits)
    with translating(connections, stores, inputs.translate).planner(options, inputs.translate) as base:
        planner = replace(base, partition_map=confirmed, window=window)
        with connections.refusing("migrate plan", stores.source.uri):
            names = planner.selected_groups()
        if not names:  # the address is wrong, and the comparison of clusters would mislead
            why = "it has no groups"
            raise GroupNotFound(f"nothing to plan in {stores.source.uri}", why, no_groups_hint(stores.source))
        header = planner.header()
        if waves is not None:
            waves.require_all(names, options.group_selection)
        planned = _with_planned_topics(planner.plan(names), topics, f"{stores.source.uri} and {stores.target.uri}")
        planned = planned if waves is None else waves.assigned(planned)
        shown = connections.ui.progress(planned, "groups planned", len(names))
        summary, _ = write_plan(path, header, shown, planner.complete)
        connections.warn_of_lost(path)
    if not summary.actions and not summary.failed_groups:
        path.unlink()
        patterns = options.group_selection.patterns
        where = f"groups {', '.join(patterns)}" if patterns else count_of(len(names), "group")
        why = f"no offset is committed in the {where} there"
        why += f" for topic {', '.join(topics.texts)}" if topics.texts else ""
        hint = "check the names, and the chroot of a zookeeper:// URI"
        raise GroupNotFound(f"nothing to plan in {stores.source.uri}", why, hint)
    return WrittenPlan(PlanFile(path), set(planner.tails) == {True})


def draft_partition_map(
    connections: Connections,
    source: str,
    target: str,
    path: Path,
    options: PlanOptions,
    *,
    sides: SideSettings | None = None,
    inputs: PlanInputs | None = None,
) -> list[OffsetMgrError]:
    """Writes a draft of a partition map for the byte positions of Kafka 0.7 in ``source`` to the new file ``path``. Of
    ``inputs``, only the waves concern the draft. Returns the errors of the groups and partitions that could not be
    read."""
    from offsetmgr.migration.partition_map import MapDraft
    from offsetmgr.migration.planner import Planner

    _, options = (inputs or PlanInputs()).read_waves(options)
    stores, options = _new_sides(connections, source, target, options.for_source(source), sides)
    cluster = stores.cluster()
    names = Planner(stores.source, stores.target, options, SystemClock(), cluster).selected_groups()
    draft, failed = MapDraft(), list[OffsetMgrError]()
    for found in connections.ui.progress(stores.source.scan(names), "reading", len(names)):
        failed += [one for one in (found.error, *found.errors.values()) if one is not None]
        draft.add(found, [tp for tp in found.offsets if options.selects(tp)])
    counts = None if cluster is None else cluster.topics(draft.topics())
    data = draft.encode(stores.source.uri, counts)
    replace_file(path, lambda out: out.write(data), overwrite=False)  # an operator may have edited the file
    return failed


def _new_sides(
    connections: Connections, source: str, target: str, options: PlanOptions, sides: SideSettings | None
) -> tuple[SourceAndTarget, PlanOptions]:
    """Returns the stores, and the options for the source. A pattern that equals the name of a group in the source
    selects only that group.

    Raises `UsageError` if a selected topic cannot exist in one of the stores.
    """
    source, target = connections.uri_of(source, "source:from"), connections.uri_of(target, "target:to")
    stores = SourceAndTarget(connections, source, target, sides and sides[:2])
    options.selection.within(stores.source.capabilities.partitions, stores.target.capabilities.partitions)
    selection = options.group_selection
    has_globs = any(map(is_pattern, (*(selection.patterns or ()), *selection.excluded)))
    return stores, options.literal_first(stores.source.groups()) if has_globs else options


def _with_planned_topics(plans: Iterable[GroupPlan], topics: TopicMatches, where: str) -> Iterator[GroupPlan]:
    """Yields the plans, which are made with ``topics``. After the last plan, raises `UnknownTopicOrPartition` if a
    selected topic is in none of the plans."""
    for group in plans:
        topics.incomplete |= bool(group.error)
        yield group
    topics.require_all(where)


class _Step:
    """A plan with its journal, its stores, and the groups to which a step is limited."""

    def __init__(self, connections: Connections, scope: StepScope, *, newest: bool = False) -> None:
        """With ``newest``, a plan that was renewed stands for the newest one."""
        connections.require_open()
        path, selection, sides, _ = scope
        self.connections, self.ui, self.arguments = connections, connections.ui, sides.arguments if sides else {}
        self.plan, self.state = open_renewed(path) if newest else open_plan(path)
        if (new := self.plan.path) != path:
            every = "with every group that was applied with either plan"
            self.ui.note(f"{path} was renewed: this command works on {new}, {every}")
        self.only, self.waves = select_groups(*selection, self.plan), selection.waves
        header = self.plan.header
        stores = SourceAndTarget.of_plan(connections, header, sides and sides[:2])
        self.stores = translating(connections, stores, header.translate, _PLAN_WITH)

    def announce(self) -> PlanSummary:
        """Notes the cluster, the stores, and the number of groups and partitions. Returns the counts of the groups."""
        counts = summary_of(self.plan, self.only)
        self.ui.note(scope_line(self.plan, counts, self.waves))
        return counts

    @contextmanager
    def writer(
        self, run: PlanRun, store: OffsetStore, report: Report
    ) -> Iterator[tuple[JournaledWriter, MigrationState]]:
        """Like `journaled_writer`; the user can stop it, and sees progress. If an error ends the run, notes how much
        was written before. Before the first write, Ctrl-C interrupts the run at once."""
        groups = self.plan.summary.groups if run.only is None else len(run.only)
        try:
            with (
                self.ui.stop("groups under way are finished", lambda: report.begun) as stop,
                _counter(self.ui, f"{run.name}: groups", groups) as count,
                journaled_writer(
                    self.plan,
                    run._replace(stop=stop, progress=count, on_lock_wait=self.connections.waits),
                    store,
                    report,
                ) as opened,
            ):
                yield opened
        except OffsetMgrError:
            if report.started:
                self.ui.note(
                    f"the offsets of up to {count_of(report.started, 'group')} had been changed when the error"
                    f" occurred ({report.written:,} are confirmed); the next run checks them"
                )
            raise
        except KeyboardInterrupt:
            if report.begun:
                raise
            raise Interrupted("this run wrote nothing; run the same command again") from None

    def warn_of_running(self, groups: Iterable[str]) -> None:
        """Warns of the groups that still run in the source, if that is another cluster."""
        for group, members in islice(self.stores.running(groups).items(), SHOWN):
            text = f"group {group} still runs in the source ({'; '.join(members)}): {STILL_RUNNING}"
            self.ui.note(text, warning=True)

    def tell(self, lines: Iterable[str]) -> None:
        """Notes the lines."""
        for line in lines:
            self.ui.note(line)


@contextmanager
def _counter(ui: Ui, what: str, total: int) -> Iterator[Callable[[GroupOutcome], None]]:
    """Yields a function that shows one more completed group."""
    shown = iter(ui.progress(repeat(None), what, total))
    try:
        yield lambda _outcome: next(shown)
    finally:
        if isinstance(shown, Generator):
            shown.close()


def apply(
    connections: Connections,
    scope: StepScope,
    *,
    wait_empty_s: float = 0.0,
    accept_stale: bool = False,
    if_unchanged: bool = False,
) -> ApplyReport:
    """Writes the offsets of a plan, or continues an interrupted run. A target offset that has changed since the plan is
    not overwritten.

    If the plan is older than a day or translates between clusters, or with ``if_unchanged``, the function first
    compares the source, and raises `PlanError` if a group has moved on.
    ``accept_stale`` writes the old offsets, and excludes ``if_unchanged``. ``wait_empty_s`` is the time in seconds
    to wait until groups with members are empty. Raises `PlanError` if a store is not the planned one,
    `JournalError` if the plan was rolled back or finalized, or another process executes it, `Unreachable`,
    `TimedOut`.
    """
    from offsetmgr.migration.apply import ApplyReport, check_endpoint, require_comparison
    from offsetmgr.migration.apply import apply as write
    from offsetmgr.migration.renewal import is_waiting, reject_stale, unplanned_groups

    if accept_stale and if_unchanged:
        raise UsageError(Advice("{if_unchanged} and {accept_stale}"), "are both given", "only one of them")
    step = _Step(connections, scope)
    plan, state, header = step.plan, step.state, step.plan.header
    check_endpoint("target", header.target, step.stores.target)
    require_comparison(plan)
    planned = step.announce()
    step.tell(count_lines(planned))
    if header.retention_ms is not None and planned.writes:
        step.ui.note(expiry_line(header, SystemClock().now_ms(), step.stores.clock_difference()))
    logs = step.stores.logs()
    if header.cluster_id is not None and logs is None:
        text = "log ranges are not checked again; to check them, add the {bootstrap_server} that the plan was made with"
        step.ui.note(Advice(text))
    if state.apply.opened and not state.is_rolled_back:
        step.ui.note(f"an earlier run completed {count_of(len(state.apply.done), 'group')}; this one continues")
    step.warn_of_running(group.name for group in plan.groups_of(step.only) if is_waiting(group, state))
    if not accept_stale:
        named = {"output": "FILE", **scope.selection.arguments, **step.arguments}
        renew_again = Invocation("migrate renew", (str(plan.path),), named)
        stale = "" if if_unchanged else "; or write the old offsets with {accept_stale}"
        hint = Advice("plan them again: {}" + stale, renew_again)
        always = if_unchanged or plan.header.rules is not None
        reject_stale(plan, state, step.stores.source, step.only, hint, always=always)
    if if_unchanged and step.only is None and (new := unplanned_groups(plan, step.stores.source)):
        text = f"the selection of the plan matches {count_of(len(new), 'more group')} now: {list_of(new, 3)}"
        step.ui.note(text, warning=True)
    if planned.writes:
        step.ui.confirm(f"write {count_of(planned.writes, 'offset')} to {header.target.uri}?")
    report = ApplyReport(planned=planned, resumed=bool(state.apply.written))
    run = PlanRun("apply", step.only, scope.reason, step.arguments, wait_empty_s=wait_empty_s)
    with step.writer(run, step.stores.target, report) as (writer, state):
        report.operation = writer.identity["operation"]
        write(plan, state, writer, logs)
    return report


def refresh(connections: Connections, scope: StepScope) -> RefreshReport:
    """Commits the present Kafka offsets of the plan's groups again, so that they do not expire.

    Raises `UsageError` for a target whose offsets do not expire, and the errors of `apply`.
    """
    from offsetmgr.migration.apply import check_endpoint, require_comparison
    from offsetmgr.migration.refresh import renew_retention

    step = _Step(connections, scope._replace(selection=ALL))
    header, target = step.plan.header, step.stores.target
    check_endpoint("target", header.target, target)
    require_comparison(step.plan)
    step.announce()
    step.ui.confirm(f"commit the present offsets of the plan's groups in {header.target.uri} again?")
    with (
        step.stores.legacy_members() as members,
        step.writer(PlanRun("refresh", reason=scope.reason), target, Report()) as (writer, state),
    ):
        report = renew_retention(step.plan, state, writer, members)
    if header.retention_ms is not None:
        report.expires = expiry_text(header, SystemClock().now_ms(), step.stores.clock_difference())
    return report


def renew(
    connections: Connections, scope: StepScope, new_path: Path, *, if_ahead: AheadPolicy | None = None
) -> WrittenPlan | None:
    """Plans the groups again that apply has not begun, with their present offsets, and writes the plan to the new file
    ``new_path``, with a copy of the journal. It replaces the plan.

    Returns None if an earlier call had written ``new_path`` and was killed, so that only its end was missing. Raises
    the errors of `offsetmgr.migration.renewal.renew`.
    """
    from offsetmgr.migration.renewal import finish_renewal
    from offsetmgr.migration.renewal import renew as plan_again

    if finish_renewal(PlanFile(scope.path), new_path):
        return None
    step = _Step(connections, scope)
    header = step.plan.header
    options = replace(header.options, if_ahead=if_ahead or header.options.if_ahead)
    with step.stores.planner(options, header.translate) as planner:
        connections.warn_of_lost(new_path)
        return plan_again(step.plan, planner, new_path, step.only)


def verify(connections: Connections, scope: StepScope) -> VerifyResults:
    """Reads both stores again, and compares every partition with the plan. Changes nothing. Groups of the source that
    are not in the plan are compared too, unless a selection limits the groups.

    Raises `PlanError` if a store is not the planned one, `Unreachable`, `TimedOut`, also during the iteration.
    """
    from offsetmgr.migration.verify import VerifyResults

    step = _Step(connections, scope)
    verifier = step.stores.verifier(step.plan, step.state)
    verifier.only, verifier.summary.is_translated = step.only, step.stores.translates
    step.announce()
    results = step.ui.progress(verifier.results(), "partitions verified")
    return VerifyResults(results, verifier.summary, is_rolled_back=step.state.is_rolled_back)


def rollback(
    connections: Connections,
    scope: StepScope,
    *,
    run: str | None = None,
    allow_rewind: bool = False,
    wait_empty_s: float = 0.0,
) -> RollbackReport:
    """Restores the offsets that apply overwrote, and deletes those that it created; with ``run``, only those of the run
    of apply with this id in the operation log. An offset that has changed since is rejected unless ``allow_rewind``.
    Afterwards compares the offsets that the journal does not record as written with their before-images, because the
    journal may be truncated.

    If the plan was renewed, the function works on the new plan, which has the before-images of both. ``wait_empty_s``
    is as in `apply`. Raises `JournalError` if nothing was applied, `GateRefused` if the migration was finalized (see
    `plan_reverse`), `UsageError` if the run wrote nothing, `PlanError`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.migration.rollback import Rollback, RollbackReport

    step = _undo_step(connections, scope, run)
    plan, target, ui, only = step.plan, step.stores.target, step.ui, step.only
    report = RollbackReport(planned=plan.summary.groups, plan=plan.path, target=target.uri, whole=only is None)
    step.announce()
    changed_groups = step.state.apply.written if only is None else step.state.apply.written & only
    if changed_groups and step.state.finalized_at is None:
        ui.note(
            f"restores {target.uri} to what it held before "
            + (f"the run {run} of migrate apply" if run else f"{plan.path} was applied")
        )
        step.tell(f"warning {one.text}" for one in target.weaknesses() if one.subject == KEEPS_ACTIVE_OFFSETS)
        changed = Advice("overwritten ({})", Advice("{force}")) if allow_rewind else "refused"
        ui.note(Advice("partitions whose offset has changed since are {}", changed))
        checks = _log_checks(step)
        checks.count(Rollback(plan, step.state, target, only, step.state.run(run)).restored_offsets())
        for text in checks.warnings():
            connections.warn(text)
        ui.confirm(f"roll back {count_of(len(changed_groups), 'group')}?")
    undo = PlanRun("undo", only, scope.reason, undoes_run=run or "", wait_empty_s=wait_empty_s)
    with step.writer(undo, target, report) as (writer, state):
        report.recorded = len(state.apply.intents)
        restore = Rollback(plan, state, target, only, state.run(run), allow_rewind)
        try:
            restore.execute(writer)
        except JournalError:  # the journal records no writes; the comparison with the target shows whether that is true
            restore.compare(report, ui.progress)
            step.tell(report.comparison())
            raise
    try:
        restore.compare(report, ui.progress)
    except BaseException:
        ui.note(report.uncompared())
        raise
    return report


class RollbackPlan(NamedTuple):
    """The effect that `rollback` would have: ``partitions`` with the problem of each, and with a note if the offset to
    restore is outside its log. ``warnings`` are those of `rollback`."""

    partitions: list[RollbackPreview]
    warnings: list[str]


def preview_rollback(
    connections: Connections, scope: StepScope, *, run: str | None = None, allow_rewind: bool = False
) -> RollbackPlan:
    """Returns what `rollback` would do with the same arguments. Changes nothing. Raises the errors of `rollback`."""
    from offsetmgr.migration.rollback import Rollback

    step = _undo_step(connections, scope, run)
    step.announce()
    one_run = step.state.run(run)
    found = list(Rollback(step.plan, step.state, step.stores.target, step.only, one_run, allow_rewind).preview())
    checks = _log_checks(step)
    checks.count((one.tp, one.before) for one in found if one.before is not None and not one.problem)
    warnings = list(checks.warnings())
    partitions = [one if one.before is None else one._replace(note=checks.note(one.tp, one.before)) for one in found]
    return RollbackPlan(partitions, warnings)


def _undo_step(connections: Connections, scope: StepScope, run: str | None) -> _Step:
    """Returns the newest plan of a migration with the groups to roll back: those of the selection that the run of apply
    has changed; all groups of the selection without a run."""
    step = _Step(connections, scope, newest=True)
    if (one_run := step.state.run(run)) is None:
        return step
    changed = frozenset(one_run.written)
    option = Advice("{run} {}", run)
    if not changed:
        raise UsageError(option, "this run of `migrate apply` wrote nothing, so there is nothing to undo")
    chosen = changed if step.only is None else changed & step.only
    if not chosen:
        why = "this run has changed none of these groups"
        raise UsageError(option, why, Advice("leave out {group} and {wave}"))
    step.only = chosen
    return step


def _log_checks(step: _Step) -> OutsideLogChecks:
    """Returns the checks of the offsets that a rollback restores. They have the log ranges if brokers are known."""
    from offsetmgr.groups.edits import OutsideLogChecks

    return OutsideLogChecks(lambda tps: {} if (logs := step.stores.logs()) is None else logs.log_ranges(tps))


def plan_reverse(
    connections: Connections,
    scope: StepScope,
    new_path: Path,
    *,
    allow_rewind: bool = False,
    if_ahead: AheadPolicy | None = None,
) -> WrittenPlan:
    """Plans the way back after the groups have consumed from the target: writes a plan to the new file ``new_path``
    that copies the target's present offsets to the source.

    The sides are those of the plan. ``allow_rewind`` also copies offsets that were rewound in the target.
    ``if_ahead`` is the caller's word for offsets that are ahead in the source. Raises `PlanError` if the file exists,
    `OtherCluster`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.migration.planner import WrittenPlan
    from offsetmgr.migration.rollback import ReversePlanner, reverse_choice, reverse_options

    step = _Step(connections, scope, newest=True)
    options = reverse_options(step.plan, step.only, if_ahead)
    translate = reverse_choice(step.plan)
    stores = translating(connections, step.stores.reversed(), translate, _PLAN_WITH)
    with stores.planner(options, translate) as base:
        reverse = ReversePlanner(step.plan, step.state, base, allow_rewind, step.only)
        header = base.header()
        steps = connections.ui.progress(reverse.steps(), "groups planned", len(reverse.groups))
        write_plan(new_path, header, steps, base.complete)
    connections.warn_of_lost(new_path)
    return WrittenPlan(PlanFile(new_path))


class FinalizeRules(NamedTuple):
    """The evidence that `finalize` accepts, and whether it deletes. ``window_s`` is the longest time in seconds for
    which it watches live members.

    ``accept_idle`` accepts partitions without traffic if no message can be lost, ``accept_refused`` those that the plan
    refused. ``delete_source`` also deletes the copied offsets from the source; the journal keeps them.
    ``accept_unseen`` also does this for groups that may have offsets in the source that the login may not see.
    """

    window_s: float = 60.0
    accept_idle: bool = False
    accept_refused: bool = False
    accept_unseen: bool = False
    delete_source: bool = False


def finalize(connections: Connections, scope: StepScope, *, rules: FinalizeRules | None = None) -> FinalizeReport:
    """Verifies again, checks for members that commit to the source alone, and records the end in the journal.

    A selection of groups is finalized group by group: ``blocked`` of the report has the reason of each group that does
    not pass. The whole plan passes or fails, unless single groups were finalized or rolled back before. Raises
    `GateRefused` if a check of the whole plan fails, `JournalError` if the plan was rolled back or not applied
    completely, `PlanError`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.finalize import Finalization
    from offsetmgr.migration.observation import ObservationWindow
    from offsetmgr.migration.verify import Status

    rules, deletion = rules or FinalizeRules(), Report()
    step = _Step(connections, scope)
    plan, state = step.plan, step.state
    verifier = step.stores.verifier(plan, state)
    if step.only is None and (state.finalized or state.undo.done or state.undo.written) and not state.is_rolled_back:
        step.only = frozenset(group.name for group in plan.groups() if not state.is_group_rolled_back(group.name))
    verifier.only = step.only
    counts = step.announce()
    if rules.delete_source:
        copied = count_of(sum(n for action, n in counts.actions.items() if action != "target-only"), "offset")
        step.ui.confirm(f"after the checks, remove up to {copied} from {plan.header.source.uri}?")
    elif state.finalized_at is None:
        groups = count_of(counts.groups, "group")
        step.ui.confirm(f"after the checks, record in the journal that the migration of {groups} has ended?")
    window = ObservationWindow(rules.window_s, waiting=connections.waits.for_commits)
    thresholds = EvidenceThresholds(accept_idle=rules.accept_idle)
    gate = step.stores.member_gate(plan, rules.delete_source, thresholds, window)
    accept = (Status.REFUSED,) if rules.accept_refused else ()
    with step.writer(PlanRun("delete", step.only, scope.reason), verifier.source, deletion) as (writer, state):
        remover = writer if rules.delete_source else None
        work = Finalization(verifier, state, writer.journal, gate, remover, accept, rules.accept_unseen)
        report = work.run()
        writer.incomplete = bool(report.blocked or report.kept)
    _warn_of_finalized(step, state, {gate.group for gate in report.gates if gate.live})
    return report


def _warn_of_finalized(step: _Step, state: MigrationState, live: set[str]) -> None:
    """Warns of the groups whose members left the last phase after they had been finalized, and of the expiry of the
    copied offsets of groups without consumers. ``live`` are the groups with members in the target."""
    from offsetmgr.migration.location import group_statuses
    from offsetmgr.migration.progress import expiry_texts

    plan, warn = step.plan, step.connections.warn
    for group in plan.groups_of(step.only):
        later = state.phase_after_end(group.name, plan.header.end)
        if later is not None and later.phase is not None:
            went_back = f"{later.phase.value} on {time_text(later.at)}"
            warn(f"group {group.name}: its members went back to phase {went_back}, after it was finalized")
    known = (one for one in group_statuses(plan, state, step.only) if one.name not in live)
    copied = {one.target_group: one.expires_ms for one in known if one.expires_ms is not None}
    if copied and (cluster := step.stores.cluster()) is not None:
        described = cluster.describe_groups(list(copied))
        idle = (at for name, at in copied.items() if not getattr(described.get(name), "members", ()))
        for text in expiry_texts(str(plan.path), idle, SystemClock().now_ms(), step.arguments, watched=True):
            warn(text)


class MirrorSettings(NamedTuple):
    """How a mirror works. With ``once``, it ends as soon as nothing is left to copy.

    ``interval_ms`` is the polling interval of a source without watches, and of each source if ``translate`` is
    `TranslationRules` (default: 1,000, and 10,000 with them). Before the first copy to a Kafka group, the mirror
    watches for ``settle_ms`` whether other clients commit to it. ``window_s`` limits the time for which a mirror with
    ``once`` watches live old consumers, or waits for records that the target lacks, in seconds;
    ``trust_zookeeper_only`` states that the old consumers commit only to ZooKeeper. ``translate`` is as in
    `PlanInputs`, or the rules of a translation by the records. ``before_image`` is the new file for the previous
    offsets (default: a file in the state directory). ``on_status`` is called with the state after each round.
    """

    once: bool = False
    interval_ms: int | None = None
    settle_ms: int = 2000
    window_s: float = 150.0
    trust_zookeeper_only: bool = False
    translate: TranslationChoice | None = None
    before_image: Path | None = None
    on_status: Callable[[MirrorStatus], None] = lambda _status: None


def mirror(
    connections: Connections,
    source: str,
    target: str,
    options: PlanOptions,
    *,
    sides: SideSettings | None = None,
    settings: MirrorSettings | None = None,
    reason: str = "",
) -> Mirror:
    """Copies new offsets from the store at the URI ``source`` to the one at ``target``, forward only, until the user
    stops it. Returns the mirror with its groups. ``sides.arguments`` are those of an edit of the target.

    Raises `GroupNotFound` and `UnknownTopicOrPartition` if the options select nothing, `UsageError` if one store has
    byte positions of Kafka 0.7 and the other one has offsets, `OtherCluster`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.app.translation import open_translations
    from offsetmgr.groups.before_images import default_image_path
    from offsetmgr.groups.execute import EditOrigin
    from offsetmgr.migration.mirror import Mirror, require_equal_layouts
    from offsetmgr.migration.mirror_images import MirrorImages
    from offsetmgr.migration.planner import Planner

    settings = settings or MirrorSettings()
    if options.if_ahead is AheadPolicy.REWIND:
        what, hint = Advice("{if_ahead=rewind}"), Advice("use: {}", Invocation("migrate plan"))
        raise UsageError(what, "a mirror only moves offsets forward", hint)
    stores, options = _new_sides(connections, source, target, options, sides)
    require_equal_layouts(stores.source, stores.target)
    rules = settings.translate if isinstance(settings.translate, TranslationRules) else None
    interval_ms = settings.interval_ms or (1_000 if rules is None else 10_000)
    translations = None if rules is None else open_translations(connections, stores, rules, again=True)
    ui, clock = connections.ui, SystemClock()
    planner = Planner(stores.source, stores.target, options, clock, translate=settings.translate)
    with connections.refusing("migrate mirror", stores.source.uri):
        names, refresh_s = _announce_mirror(ui, stores, planner, once=settings.once)
    ui.confirm(f"copy to {stores.target.uri}{'' if settings.once else ' until stopped'}?")
    path = settings.before_image or default_image_path("migrate mirror")
    images = MirrorImages(stores.source, stores.target, options, path, planner.crossing)
    images.on_durable = lambda path: ui.note(f"before-images: {path}")
    with (
        ui.stop("the mirror ends after this round") as stop,
        stores.changes(options) as (notifier, legacy_groups),
    ):
        running = Mirror(
            *(stores.source, stores.target, options, notifier, clock, stop, settings.on_status),
            10.0 if legacy_groups is not None and rules is None and not settings.once else interval_ms / 1000,
            settings.settle_ms / 1000,
            None if settings.trust_zookeeper_only or rules is not None else legacy_groups,
            settings.window_s,
            refresh_s,
            planner.crossing,
            images.prepare,
        )
        running.on_ended = lambda one: connections.warn(Advice("group {} is {}: {}", one.group, one.state, one.detail))
        if translations is not None:
            _translate_rounds(running, translations, images, ui)
        with images.recorded(running, names, EditOrigin("migrate mirror", reason, sides.arguments if sides else {})):
            running.run(once=settings.once)
    return running


def _translate_rounds(running: Mirror, translations: Translations, images: MirrorImages, ui: Ui) -> None:
    """Makes a mirror translate the offsets, in each of its rounds."""
    from offsetmgr.migration.mirror import SilentSource
    from offsetmgr.migration.translated_offsets import OffsetTranslator, OwnOffsets

    own = OwnOffsets(running.source, running.target, running.clock)
    running.translator = OffsetTranslator(translations, running.options, running.clock, own)
    running.notifier, running.on_new = SilentSource(running.clock), images.save_translated
    images.save_translated(())
    ui.note(f"reads both logs every {running.idle_s:g} s, from their ends back to the positions that moved")


def _announce_mirror(ui: Ui, stores: SourceAndTarget, planner: Planner, *, once: bool) -> tuple[list[str], float]:
    """Notes what a mirror copies. Returns the groups, and the interval in seconds at which the mirror commits its
    offsets again. Raises `OtherCluster`, and an error if a selected topic matches no offset of the groups."""
    header, names = planner.header(), planner.selected_groups()
    _require_topics(stores.source, planner.options, names)
    moved = f"{stores.source.uri} -> {stores.target.uri}"
    ui.note(f"mirrors {count_of(len(names), 'group')}, forward only: {moved}{'' if once else '; Ctrl-C ends it'}")
    for line in comparison_lines(header):
        ui.note(line)
    if (retention_ms := stores.retention_ms()) is None:
        return names, 3600.0
    refresh_s = retention_ms / 4000
    ui.note(
        f"expiry  the mirror commits its offsets again every {refresh_s / 60:,g} min; after it ends, offsets that no"
        f" consumer commits expire within {retention_ms / 60_000:,g} min (offsets.retention.minutes)"
    )
    return names, refresh_s


def _require_topics(source: OffsetStore, options: PlanOptions, names: list[str]) -> None:
    """Raises an error if a topic of ``options`` matches no offset of the groups."""
    from offsetmgr.groups.scan import TopicMatches

    if not options.selection.everything:
        topics = TopicMatches(options.selection.within(source.capabilities.partitions))
        for found in source.scan(names):
            topics.incomplete |= (found.error or found.hidden) is not None
            for tp in (*found.offsets, *found.errors):
                topics.matches(tp)
        topics.require_all(source.uri)


def readiness(
    connections: Connections,
    source: str,
    target: str,
    selection: GroupSelection = ALL_GROUPS,
    topics: TopicSelection = ALL_TOPICS,
    *,
    rules: TranslationRules | None = None,
    rename: Mapping[str, str] = MappingProxyType({}),
    sides: SideSettings | None = None,
) -> Readiness:
    """Checks the consequences for groups if the source were lost now, with the offsets that they have in the target.
    The arguments are those of `offsetmgr.app.offsets.diff_translated`. A complete check is saved in the state
    directory. If a cluster does not respond, returns the saved one, with the error as ``silent``; without one, raises
    the error, with the reason as its hint (`Unreachable`, `TimedOut`). Raises the errors of `diff_translated`."""
    from offsetmgr.app.offsets import diff_translated
    from offsetmgr.app.readiness import chosen_by, found_in_target
    from offsetmgr.translation.readiness import LastReadiness, Readiness

    uris = connections.uri_of(source, "source:from"), connections.uri_of(target, "target:to")
    configs, began_ms = sides and sides[:2], SystemClock().now_ms()
    rules = (rules or TranslationRules())._replace(lost=True)
    arguments = chosen_by(selection, topics, rules, rename)
    last = LastReadiness(state_directory() / "readiness", uris, arguments)
    stores = SourceAndTarget(connections, *uris, configs)
    origins, silent = stores.origins()
    if silent is not None:
        return last.instead(silent, origins)
    clusters = {side: origin.name for side, origin in origins.items()}
    checked = Readiness(*uris, began_ms, clusters, arguments)
    failure: OffsetMgrError | None = None
    try:
        found = diff_translated(connections, *uris, selection, topics, rules=rules, rename=rename, sides=configs)
        living, foreign = found_in_target(stores, rename, found)
        checked = checked.of(found.of_groups, found.lacking, found.errors, living, foreign)
    except (Unreachable, TimedOut) as error:
        failure = error
    if not checked.is_complete:
        origins, silent = stores.origins()
        if (lost := silent or failure) is not None:
            return last.instead(lost, origins)
        connections.warn("not saved as the last known state, because not everything could be read")
        return checked
    try:
        last.save(checked)
    except FileFailure as error:
        connections.warn(f"not saved as the last known state: {error}")
    return checked


def status(connections: Connections, scope: StepScope, *, window_s: float | None = None) -> FleetStatus:
    """Returns the state of the selected groups of a plan, with their obstacles and next steps. It comes from the plan,
    its journal, and the state files of bounces that are not finished. With ``window_s``, the servers are asked too, and
    live members are watched for at most this time in seconds.

    Raises `GroupNotFound` and `UsageError` for groups and waves that the plan does not have, `PlanError`,
    `JournalError`, `Unreachable` and `TimedOut`.
    """
    from offsetmgr.groups.operation_log import OperationLog
    from offsetmgr.migration.bounce_checkpoint import open_bounces
    from offsetmgr.migration.fleet import FleetStatus
    from offsetmgr.migration.location import group_statuses
    from offsetmgr.migration.observation import ObservationWindow

    step, live = _Step(connections, scope), None
    file, state, only = step.plan, step.state, step.only
    if window_s is not None:
        connections.ui.note(f"asking the servers, and watching live members for up to {window_s:g} s")
        window = ObservationWindow(window_s, waiting=connections.waits.for_commits)
        live = step.stores.fleet_view(file, state, window).observe(only)
    bounces = open_bounces(file.groups_of(only), file.header, OperationLog().operations())
    found = group_statuses(file, state, only, live, bounces)
    return FleetStatus(file, state, scope_line(file, summary_of(file, only)), found, live is not None)


def report(
    connections: Connections,
    plans: Iterable[str | Path] = (),
    selection: PlanSelection = ALL,
    *,
    window_s: float | None = None,
) -> MigrationReport:
    """Locates the selected groups of the plans, or of the configured stores without plans, as
    `offsetmgr.app.groups.where` does. Returns their locations, their risks and their next steps. If the settings name
    no store, the stores are those of the first plan. If no store responds, the plans and their journals are the report.

    Raises `GroupNotFound` and `UsageError` for groups and waves that no plan has, `PlanError`, `JournalError` and the
    errors of `where`.
    """
    from offsetmgr.app.groups import where
    from offsetmgr.migration.report import MigrationReport, ReportedGroup

    opened = [open_plan(Path(path)) for path in plans]
    only = select_groups(*selection, *(file for file, _ in opened)) if opened else None
    names = [
        literal_pattern(one.target_group if state.stage_of(one) is Stage.FINALIZED else one.name)
        for file, state in opened
        for one in file.groups_of(only)
    ]
    if not opened and selection.waves:
        raise UsageError(Advice("{wave} {}", selection.waves[0]), "waves are those of a plan", "name the plan too")
    groups, paths = GroupSelection(names) if opened else selection.groups, [file.path for file, _ in opened]
    clock, found, servers = SystemClock(), list[ReportedGroup](), dict[str, Any]()
    used: AbstractContextManager[Connections] = nullcontext(connections)
    if opened and connections.resolved.store is None:
        header, names_of = opened[0][0].header, {"zookeeper": "zookeeper", "kafka": "bootstrap_server"}
        sides = {names_of[one.kind]: one.uri for one in (header.source, header.target) if one.kind in names_of}
        servers = {name: uri.partition("//")[2].partition("?")[0] for name, uri in sides.items()}
        used = Connections(connections.resolved._replace(store=header.target.uri, **servers), connections.ui)
    began = clock.now_ms()
    with used as known:
        located = where(known, groups, window_s=window_s, plans=paths)
        locator = located.locator
        for one in located:
            plan = one.sample.plan
            name, of_group = (one.name, paths) if plan is None else (plan.group, [plan.path])
            # A plan may have no step for a group.
            recorded = filter(None, (locator.recorded(str(path)).get(name) for path in of_group))
            found.append(ReportedGroup.of(one, next(recorded, None)))
        clusters = {
            one.store.uri: f"not read: {one.error}" if one.error else f"cluster {one.store.log_origin().cluster_id}"
            for one in locator.stores
        }
    for kind in {"zookeeper", "kafka"}.difference(one.name for one in locator.stores):
        clusters[TITLES[kind]] = "not read, because the settings do not name it"
    files = {plan.path for one in found if (plan := one.location.sample.plan)}
    planned = {path: {name: of.wave for name, of in locator.recorded(path).items()} for path in files}
    errors = (*located.unlisted, *located.missing, *locator.unread_plans)
    watched = (
        f"watched for up to {window_s:g} s"
        if locator.watched
        else "not watched, which takes a window, and ZooKeeper and Kafka that respond"
    )
    return MigrationReport(began, clock.now_ms(), clusters, found, errors, planned, servers, watched)


def cutover(
    connections: Connections,
    source: str,
    target: str,
    selection: GroupSelection,
    *,
    state: Path,
    execute: bool = False,
    options: CutoverOptions | None = None,
    sides: SideSettings | None = None,
) -> CutoverReport:
    """Moves groups, and then the producers of their topics, from the Kafka cluster at ``source`` to that at ``target``.
    The operator stops and starts consumers, producers and the replicator; the function checks a gate before each step,
    and writes the offsets. It returns where each group and each topic stands, who holds it up, and what to do next. The
    same call continues. The progress is in the file ``state``. Without ``execute``, nothing is changed.

    Raises `UsageError` if the arguments contradict the state, `OtherCluster`, `GateRefused` if there is no way back,
    `GroupNotFound`, `JournalError`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.app.cutovers import CutoverRun

    source, target = connections.uri_of(source, "source:from"), connections.uri_of(target, "target:to")
    pair = SourceAndTarget(connections, source, target, sides and sides[:2])
    arguments = {**PlanSelection(selection).arguments, **(sides.arguments if sides else {})}
    reason = (options := options or CutoverOptions()).reason

    def plan_groups(path: Path, planned: PlanOptions, rules: TranslationRules) -> PlanFile:
        return plan(connections, source, target, path, planned, sides=sides, inputs=PlanInputs(translate=rules)).file

    def on_plan(step: Callable[[Connections, StepScope], T]) -> Callable[[Path, GroupSelection], T]:
        return lambda path, groups: step(connections, StepScope(path, PlanSelection(groups), sides, reason))

    preview = on_plan(lambda of, scope: preview_rollback(of, scope).partitions)
    steps = plan_groups, on_plan(apply), preview, on_plan(rollback if execute else lambda *_: Report())
    return CutoverRun(connections, pair, state, options, *steps).run(selection, arguments, execute=execute)


accept_names(globals(), GroupSelection=GroupSelection.of, PlanSelection=PlanSelection.of, StepScope=StepScope.of)
