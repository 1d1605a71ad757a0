"""The steps of a migration: plan, apply, renew, verify, rollback, finalize; and the mirror. The commands ``offsetmgr
migrate`` and the methods of `offsetmgr.Migration` are these functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from offsetmgr.app import plan_text
from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.app.ui import Interrupted as Interrupted
from offsetmgr.app.ui import Ui
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, JournalError, OffsetMgrError, UsageError
from offsetmgr.core.model import DELETES_OFFSETS, KEEPS_ACTIVE_OFFSETS
from offsetmgr.core.offset_store import AheadPolicy
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import GroupSelection, is_pattern
from offsetmgr.migration.journaled_writer import PlanRun, journaled_writer, open_plan, open_renewed
from offsetmgr.migration.journaled_writer import Report as Report
from offsetmgr.migration.plan import GroupPlan as GroupPlan
from offsetmgr.migration.plan import GroupScope, PlanFile, select_groups, summary_of, write_plan
from offsetmgr.migration.plan import PlanOptions as PlanOptions
from offsetmgr.migration.plan import PlanSummary as PlanSummary

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.model import LogRange, TopicPartition
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.edits import OutsideLogChecks
    from offsetmgr.groups.operation_log import OperationStart
    from offsetmgr.migration.finalize import FinalizeReport as FinalizeReport
    from offsetmgr.migration.finalize import GroupGate as GroupGate
    from offsetmgr.migration.fleet import FleetStatus as FleetStatus
    from offsetmgr.migration.fleet_bounce import OpenBounce
    from offsetmgr.migration.journaled_writer import GroupOutcome as GroupOutcome
    from offsetmgr.migration.journaled_writer import JournaledWriter
    from offsetmgr.migration.location import GroupStatus as GroupStatus
    from offsetmgr.migration.mirror import Mirror
    from offsetmgr.migration.mirror import MirrorState as MirrorState
    from offsetmgr.migration.mirror import MirrorStatus as MirrorStatus
    from offsetmgr.migration.planner import Planner
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.refresh import RefreshReport as RefreshReport
    from offsetmgr.migration.renewal import RenewedPlan as RenewedPlan
    from offsetmgr.migration.rollback import RollbackDifference, RollbackPreview
    from offsetmgr.migration.verify import PartitionResult
    from offsetmgr.migration.verify import VerifySummary as VerifySummary

MAX_DIFFERENCES: Final = 1000
"""The number of differences that a `RollbackReport` lists."""
_R = TypeVar("_R", bound=Report)


class SideSettings(NamedTuple):
    """How a migration connects to its source and to its target. ``arguments`` are those of a further call for the same
    servers, for the calls that undo or continue a step."""

    source: ConnectionConfig
    target: ConnectionConfig
    arguments: Mapping[str, Argument] = MappingProxyType({})

    @property
    def options(self) -> tuple[str, ...]:
        """The words of ``arguments`` in a command line."""
        return Invocation("", (), self.arguments).words()[1:]


class PlanSelection(NamedTuple):
    """The groups of a plan to which a step is limited. With ``waves``, the groups in one of these waves."""

    groups: GroupSelection = GroupSelection()
    waves: tuple[int, ...] = ()

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of a further call for the same groups."""
        groups, waves = self.groups, tuple(map(str, self.waves))
        named = {"group": groups.patterns, "wave": waves, "exclude_group": groups.excluded}
        return {name: values for name, values in named.items() if values}

    @property
    def options(self) -> tuple[str, ...]:
        """The words of ``arguments`` in a command line."""
        return Invocation("", (), self.arguments).words()[1:]


ALL: Final = PlanSelection()


class PlanInputs(NamedTuple):
    """The inputs of a plan in addition to the stores and the options.

    ``partition_map`` is a confirmed map for byte positions of Kafka 0.7, and ``waves`` a file with the waves and owners
    of groups. With ``selects_waves``, this file also selects the groups. ``translate`` states that the offsets of
    another Kafka cluster are valid in the target. ``window_s`` is the time in seconds to watch commits if the target is
    ahead without other evidence.
    """

    partition_map: Path | None = None
    waves: Path | None = None
    selects_waves: bool = False
    translate: OffsetTranslation | None = None
    window_s: float = 0.0


class WrittenPlan(NamedTuple):
    """A plan that was written to a file. ``one_behind`` tells whether the source is exactly one behind its log's end in
    every planned partition."""

    file: PlanFile
    one_behind: bool = False


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
    from offsetmgr.migration.observation import ObservationWindow
    from offsetmgr.migration.partition_map import read_map
    from offsetmgr.migration.planner import no_groups_hint
    from offsetmgr.migration.waves import with_waves

    inputs = inputs or PlanInputs()
    waves, options = with_waves(options, inputs.waves, selects=inputs.selects_waves)
    stores, options = _new_sides(connections, source, target, options.for_source(source), sides)
    confirmed = None if inputs.partition_map is None else read_map(inputs.partition_map)
    window = ObservationWindow(inputs.window_s, waiting=connections.waits.for_commits)
    with stores.planner(options, partition_map=confirmed, translate=inputs.translate, window=window) as planner:
        names = planner.selected_groups()
        if not names:  # the address is wrong, and the comparison of clusters would mislead
            why = "it has no groups"
            raise GroupNotFound(f"nothing to plan in {stores.source.uri}", why, no_groups_hint(stores.source))
        header = planner.header()
        if waves is not None:
            waves.require_all(names, options.group_selection)
        planned = _with_planned_topics(planner.plan(names), options, f"{stores.source.uri} and {stores.target.uri}")
        planned = planned if waves is None else waves.assigned(planned)
        shown = connections.ui.progress(planned, "groups planned", len(names))
        summary, _ = write_plan(path, header, shown, planner.target.topic_ids)
    if not summary.actions and not summary.failed_groups:
        path.unlink()
        patterns = options.group_selection.patterns
        where = f"groups {', '.join(patterns)}" if patterns else count_of(len(names), "group")
        why = f"no offset is committed in the {where} there"
        why += f" for topic {', '.join(options.topics)}" if options.topics else ""
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
    from offsetmgr.migration.partition_map import MapDraft, write_draft
    from offsetmgr.migration.planner import Planner
    from offsetmgr.migration.waves import with_waves

    inputs = inputs or PlanInputs()
    _, options = with_waves(options, inputs.waves, selects=inputs.selects_waves)
    stores, options = _new_sides(connections, source, target, options.for_source(source), sides)
    cluster = stores.cluster()
    names = Planner(stores.source, stores.target, options, SystemClock(), cluster).selected_groups()
    draft, failed = MapDraft(), list[OffsetMgrError]()
    for found in connections.ui.progress(stores.source.scan(names), "reading", len(names)):
        failed += [one for one in (found.error, *found.errors.values()) if one is not None]
        draft.add(found, [tp for tp in found.offsets if options.selects(tp)])
    counts = None if cluster is None else cluster.topics(draft.topics())
    write_draft(path, draft.encode(stores.source.uri, counts))
    return failed


def _new_sides(
    connections: Connections, source: str, target: str, options: PlanOptions, sides: SideSettings | None
) -> tuple[SourceAndTarget, PlanOptions]:
    """Returns the stores, and the options for the source. A pattern that equals the name of a group in the source
    selects only that group.

    Raises `UsageError` if a selected topic cannot exist in one of the stores.
    """
    connections.require_open()
    own = connections.resolved.connection
    stores = SourceAndTarget(connections, source, target, *(sides or (own, own))[:2])
    options.selection.within(stores.source.capabilities.partitions, stores.target.capabilities.partitions)
    selection = options.group_selection
    has_globs = any(map(is_pattern, (*(selection.patterns or ()), *selection.excluded)))
    return stores, options.literal_first(stores.source.groups()) if has_globs else options


def _with_planned_topics(plans: Iterable[GroupPlan], options: PlanOptions, where: str) -> Iterator[GroupPlan]:
    """Yields the plans. After the last plan, raises `UnknownTopicOrPartition` if a selected topic is in none of the
    plans."""
    from offsetmgr.groups.scan import TopicMatches

    topic_matches = TopicMatches(options.selection)
    for group in plans:
        topic_matches.record((step.source_tp for step in group.steps), incomplete=bool(group.error))
        yield group
    topic_matches.require_all(where)


class _Step:
    """A plan with its journal, its stores, and the groups to which a step is limited."""

    def __init__(
        self,
        connections: Connections,
        path: Path,
        selection: PlanSelection,
        sides: SideSettings | None,
        opener: Callable[[Path], tuple[PlanFile, MigrationState]] = open_plan,
    ) -> None:
        connections.require_open()
        own = connections.resolved.connection
        self.connections, self.ui, self.sides = connections, connections.ui, sides or SideSettings(own, own)
        self.plan, self.state = opener(path)
        self.only = select_groups(self.plan, *selection)
        self.stores = SourceAndTarget.of_plan(connections, self.plan.header, *self.sides[:2])

    @property
    def counts(self) -> PlanSummary:
        """The counts of the selected groups."""
        return summary_of(self.plan, self.only)

    @contextmanager
    def writer(
        self, run: PlanRun, store: OffsetStore, wait_empty_s: float = 0.0
    ) -> Iterator[tuple[JournaledWriter, MigrationState]]:
        """Like `journaled_writer`; the user can stop it, and sees progress. If an error ends the run, notes how much
        was written before. Before the first write, Ctrl-C interrupts the run at once."""
        writers: list[JournaledWriter] = []

        def has_begun() -> bool:
            return any(writer.report.begun for writer in writers)

        groups = self.plan.summary.groups if run.only is None else len(run.only)
        try:
            with (
                self.ui.stop("groups under way are finished", has_begun) as stop,
                _counter(self.ui, f"{run.name}: groups", groups) as count,
                journaled_writer(
                    self.plan,
                    run,
                    store,
                    stop=stop,
                    progress=count,
                    wait_empty_s=wait_empty_s,
                    on_lock_wait=self.connections.waits,
                ) as (writer, state),
            ):
                writers.append(writer)
                yield writer, state
        except OffsetMgrError:
            for report in (writer.report for writer in writers if writer.report.started):
                self.ui.note(
                    f"the offsets of up to {count_of(report.started, 'group')} had been changed when the error"
                    f" occurred ({report.written:,} are confirmed); the next run checks them"
                )
            raise
        except KeyboardInterrupt:
            if has_begun():
                raise
            raise Interrupted("this run wrote nothing; run the same command again") from None

    def tell(self, lines: Iterable[str]) -> None:
        """Notes the lines."""
        for line in lines:
            self.ui.note(line)


@contextmanager
def _counter(ui: Ui, what: str, total: int) -> Iterator[Callable[[GroupOutcome], None]]:
    """Yields a function that shows one more completed group."""

    def ticks() -> Iterator[None]:
        while True:
            yield None

    shown = iter(ui.progress(ticks(), what, total))
    try:
        yield lambda _outcome: next(shown)
    finally:
        if isinstance(shown, Generator):
            shown.close()


@dataclass(slots=True)
class ApplyReport(Report):
    """The result of `apply`: a `Report`, and the counts of the ``planned`` groups. ``operation`` is the id of this run
    in the operation log. ``resumed`` is True if an earlier run had written offsets."""

    planned: PlanSummary = field(default_factory=PlanSummary)
    operation: str = ""
    resumed: bool = False


def apply(
    connections: Connections,
    path: Path,
    selection: PlanSelection = ALL,
    *,
    sides: SideSettings | None = None,
    reason: str = "",
    wait_empty_s: float = 0.0,
    accept_stale: bool = False,
) -> ApplyReport:
    """Writes the offsets of a plan, or continues an interrupted run. A target offset that has changed since the plan is
    not overwritten.

    If the plan is older than a day, the function first compares the source, and raises `PlanError` if a group has moved
    on. ``accept_stale`` writes the old offsets. ``wait_empty_s`` is the time in seconds to wait until groups with
    members are empty. Raises `PlanError` if a store is not the planned one, `JournalError` if the plan was rolled back
    or finalized, or another process executes it, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.migration.apply import apply as write
    from offsetmgr.migration.apply import check_endpoint, require_comparison
    from offsetmgr.migration.renewal import reject_stale

    step = _Step(connections, path, selection, sides)
    plan, state, header = step.plan, step.state, step.plan.header
    check_endpoint("target", header.target, step.stores.target)
    require_comparison(plan)
    planned = step.counts
    step.ui.note(plan_text.scope_line(plan, planned, selection.waves))
    step.tell(plan_text.count_lines(planned))
    if header.retention_ms is not None and planned.writes:
        step.ui.note(plan_text.expiry_line(header, SystemClock().now_ms(), step.stores.clock_difference()))
    logs = step.stores.logs()
    if header.cluster_id is not None and logs is None:
        add = "to check them, add the {bootstrap_server} that the plan was made with"
        step.ui.note(Advice(f"log ranges are not checked again; {add}"))
    if state.apply.opened and not state.is_rolled_back:
        step.ui.note(f"an earlier run completed {count_of(len(state.apply.done), 'group')}; this one continues")
    if not accept_stale:
        reject_stale(plan, state, step.stores.source, step.only, _renewal_hint(step, selection))
    if planned.writes:
        step.ui.confirm(f"write {count_of(planned.writes, 'offset')} to {header.target.uri}?")
    resumed = bool(state.apply.written)
    with step.writer(PlanRun("apply", step.only, reason, step.sides.arguments), step.stores.target, wait_empty_s) as (
        writer,
        state,
    ):
        report = write(plan, state, writer, lambda: logs)
    return _extended(ApplyReport, report, planned=planned, operation=writer.identity["operation"], resumed=resumed)


def _extended(report_type: type[_R], report: Report, **more: Any) -> _R:
    """Returns the report with further fields."""
    return report_type(**{one.name: getattr(report, one.name) for one in fields(Report)}, **more)


def refresh(
    connections: Connections, path: Path, *, sides: SideSettings | None = None, reason: str = ""
) -> tuple[RefreshReport, str]:
    """Commits the present Kafka offsets of the plan's groups again, so that they do not expire. Returns the report, and
    the new expiry as a text; "" if it is unknown.

    Raises `UsageError` for a target whose offsets do not expire, and the errors of `apply`.
    """
    from offsetmgr.migration.apply import check_endpoint, require_comparison
    from offsetmgr.migration.refresh import renew_retention

    step = _Step(connections, path, ALL, sides)
    header, target = step.plan.header, step.stores.target
    check_endpoint("target", header.target, target)
    require_comparison(step.plan)
    step.ui.confirm(f"commit the present offsets of the plan's groups in {header.target.uri} again?")
    with (
        step.stores.legacy_members() as members,
        step.writer(PlanRun("refresh", reason=reason), target) as (writer, state),
    ):
        report = renew_retention(step.plan, state, target, writer.journal, members, writer.stop, writer.on_lock_wait)
    if header.retention_ms is None:
        return report, ""
    return report, plan_text.expiry_text(header, SystemClock().now_ms(), step.stores.clock_difference())


def _renewal_hint(step: _Step, selection: PlanSelection) -> str:
    """Returns the hint for a plan whose source has changed."""
    named = {"output": "FILE", **selection.arguments, **step.sides.arguments}
    renew_again = Invocation("migrate renew", (str(step.plan.path),), named)
    return Advice("plan them again: {}; or write the old offsets with {accept_stale}", renew_again)


def renew(
    connections: Connections,
    path: Path,
    new_path: Path,
    selection: PlanSelection = ALL,
    *,
    sides: SideSettings | None = None,
    if_ahead: AheadPolicy | None = None,
) -> RenewedPlan | None:
    """Plans the groups again that apply has not begun, with their present offsets, and writes the plan to the new file
    ``new_path``, with a copy of the journal. It replaces the plan ``path``.

    Returns None if an earlier call had written ``new_path`` and was killed, so that only its end was missing. Raises
    the errors of `offsetmgr.migration.renewal.renew`.
    """
    from offsetmgr.migration.renewal import finish_renewal
    from offsetmgr.migration.renewal import renew as plan_again

    if finish_renewal(PlanFile(path), new_path):
        return None
    step = _Step(connections, path, selection, sides)
    header = step.plan.header
    options = replace(header.options, if_ahead=if_ahead or header.options.if_ahead)
    with step.stores.planner(options, translate=header.translate) as planner:
        return plan_again(step.plan, planner, new_path, step.only)


class VerifyResults(Iterator["PartitionResult"]):
    """Compares every partition with a plan: iterate over it for the results. ``summary`` has their counts; it reads the
    results first that the caller has not read. ``is_rolled_back`` tells whether the plan was rolled back. If an error
    ends the results, further calls raise it again."""

    def __init__(self, results: Iterable[PartitionResult], summary: VerifySummary, *, is_rolled_back: bool) -> None:
        self._results, self._summary = iter(results), summary
        self._error: BaseException | None = None
        self.is_rolled_back = is_rolled_back

    def __next__(self) -> PartitionResult:
        if self._error is not None:
            raise self._error
        try:
            return next(self._results)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    @property
    def summary(self) -> VerifySummary:
        """The numbers of results by status. ``summary.ok`` is True only if every partition passed."""
        for _ in self:
            pass
        return self._summary


def verify(
    connections: Connections, path: Path, selection: PlanSelection = ALL, *, sides: SideSettings | None = None
) -> VerifyResults:
    """Reads both stores again, and compares every partition with the plan. Changes nothing. Groups of the source that
    are not in the plan are compared too, unless ``selection`` limits the groups.

    Raises `PlanError` if a store is not the planned one, `Unreachable`, `TimedOut`, also during the iteration.
    """
    step = _Step(connections, path, selection, sides)
    verifier = step.stores.verifier(step.plan, step.state)
    verifier.only = step.only
    results = step.ui.progress(verifier.results(), "partitions verified")
    return VerifyResults(results, verifier.summary, is_rolled_back=step.state.is_rolled_back)


@dataclass(slots=True)
class RollbackReport(Report):
    """The result of a rollback: a `Report`, and the partitions that it left alone although they do not hold their
    before-image.

    ``differing`` counts the planned partitions whose write the journal does not record, and whose offset is not the
    before-image. If there are any, the journal may be truncated, or another client has committed. ``differences`` has
    the first of them. ``compared`` counts the groups with such partitions, ``recorded`` the groups of the plan that the
    journal records as started, and ``planned`` the groups of the plan. ``created`` counts the offsets that apply had
    created. ``empty_groups`` had no offset before apply, and exist without an offset now.

    >>> RollbackReport(groups=1, written=4, differing=1).ok
    False
    """

    differing: int = 0
    differences: tuple[RollbackDifference, ...] = ()
    compared: int = 0
    recorded: int = 0
    planned: int = 0
    created: int = 0
    empty_groups: tuple[str, ...] = ()
    plan: Path = Path()
    target: str = ""
    late: str = ""
    """A warning if the store ``target`` does not delete offsets at once."""

    @property
    def nothing_to_do(self) -> bool:
        """Whether earlier rollbacks had restored every group."""
        return not (self.groups or self.failed or self.interrupted or self.closed)

    @property
    def ok(self) -> bool:
        """Whether every offset that apply wrote is as it was before, and no other planned offset differs from its
        before-image."""
        return not self.failed and not self.interrupted and not self.closed and not self.differing

    def comparison(self) -> Iterator[str]:
        """Describes the differences in lines of text; yields nothing if there was nothing to compare."""
        if not self.compared:
            return
        yield f"the journal records {self.recorded:,} of the plan's {self.planned:,} groups as started"
        for found in self.differences[: plan_text.SHOWN]:
            before, now = ("no offset" if n is None else n for n in (found.before, found.now))
            why = str(found.error) if found.error else f"holds {now}, and held {before} before the plan was applied"
            yield f"  ! {found.group}{f' {found.tp}' if found.tp else ''}: {why}"
        groups = count_of(self.compared, "group")
        compared = f"compared, in {groups}, the offsets that the journal does not record as written"
        if not self.differing:
            yield f"{compared}: every offset is as it was before"
            return
        if self.differing > plan_text.SHOWN:
            yield f"  ! and {self.differing - plan_text.SHOWN:,} more"
        yield f"{compared}: {count_of(self.differing, 'offset')} differ from their before-images; they were not changed"
        yield (
            "hint: the journal may be truncated or older than the last apply; restore a complete copy and roll back"
            " again, or restore a snapshot of the target"
        )


def _late_deletion(store: OffsetStore) -> str:
    return next((found.text for found in store.weaknesses() if found.subject == DELETES_OFFSETS), "")


def rollback(
    connections: Connections,
    path: Path,
    selection: PlanSelection = ALL,
    *,
    sides: SideSettings | None = None,
    run: str | None = None,
    allow_rewind: bool = False,
    reason: str = "",
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
    from offsetmgr.migration.rollback import restored_offsets
    from offsetmgr.migration.rollback import rollback as restore

    step, only = _undo_step(connections, path, selection, sides, run)
    plan, target, ui = step.plan, step.stores.target, step.ui
    if step.state.apply.intents and step.state.finalized_at is None:
        ui.note(
            f"restores {target.uri} to what it held before "
            + (f"the run {run} of migrate apply" if run else f"{plan.path} was applied")
        )
        step.tell(f"warning {one.text}" for one in target.weaknesses() if one.subject == KEEPS_ACTIVE_OFFSETS)
        changed = Advice("overwritten ({})", Advice("{force}")) if allow_rewind else "refused"
        ui.note(Advice("partitions whose offset has changed since are {}", changed))
        checks = _log_checks(step)
        checks.count(restored_offsets(plan, step.state, only, step.state.run(run) if run else None))
        for text in checks.warnings():
            connections.warn(text)
        started = len(step.state.apply.intents.keys() & only) if only is not None else len(step.state.apply.intents)
        ui.confirm(f"roll back {count_of(started, 'group')}?")
    with step.writer(PlanRun("undo", only, reason, undoes_run=run or ""), target, wait_empty_s) as (writer, state):
        try:
            done = restore(plan, state, writer, allow_rewind=allow_rewind, run=state.run(run) if run else None)
        except JournalError:  # the journal records no writes; the comparison with the target shows whether that is true
            step.tell(_compared(step, state, only, Report()).comparison())
            raise
    try:
        return _compared(step, state, only, done)
    except BaseException:
        ui.note(plan_text.uncompared_line(done))
        raise


class RollbackPlan(NamedTuple):
    """The effect that `rollback` would have: ``partitions`` with the problem of each. ``log_note`` returns a note if an
    offset to restore is outside its log, and ``warnings`` are those of `rollback`."""

    partitions: list[RollbackPreview]
    log_note: Callable[[RollbackPreview], str]
    warnings: list[str]


def preview_rollback(
    connections: Connections,
    path: Path,
    selection: PlanSelection = ALL,
    *,
    sides: SideSettings | None = None,
    run: str | None = None,
    allow_rewind: bool = False,
) -> RollbackPlan:
    """Returns what `rollback` would do with the same arguments. Changes nothing. Raises the errors of `rollback`."""
    from offsetmgr.migration.rollback import preview

    step, only = _undo_step(connections, path, selection, sides, run)
    one_run = step.state.run(run) if run else None
    found = list(preview(step.plan, step.state, step.stores.target, only, allow_rewind=allow_rewind, run=one_run))
    checks = _log_checks(step)
    checks.count((one.tp, one.before) for one in found if one.before is not None and not one.problem)

    def log_note(one: RollbackPreview) -> str:
        return "" if one.before is None else checks.note(one.tp, one.before)

    return RollbackPlan(found, log_note, list(checks.warnings()))


def _renewed_step(connections: Connections, path: Path, selection: PlanSelection, sides: SideSettings | None) -> _Step:
    """Opens the plan. If it was renewed, notes it and opens the newest plan."""
    step = _Step(connections, path, selection, sides, open_renewed)
    if (new := step.plan.path) != path:
        step.ui.note(
            f"{path} was renewed: this command works on {new}, with every group that was applied with either plan"
        )
    return step


def _undo_step(
    connections: Connections, path: Path, selection: PlanSelection, sides: SideSettings | None, run: str | None
) -> tuple[_Step, GroupScope | None]:
    """Returns the newest plan of a migration, and the groups to roll back: those of ``selection`` that the run of apply
    has changed; all groups of the selection without a run."""
    from offsetmgr.migration.rollback import groups_of_run

    step = _renewed_step(connections, path, selection, sides)
    if run is None:
        return step, step.only
    changed = groups_of_run(step.state.run(run))
    option = Advice("{run} {}", run)
    if not changed:
        raise UsageError(option, "this run of `migrate apply` wrote nothing, so there is nothing to undo")
    chosen = changed if step.only is None else changed & step.only
    if not chosen:
        why = "this run has changed none of these groups"
        raise UsageError(option, why, Advice("leave out {group} and {wave}"))
    return step, chosen


def _log_checks(step: _Step) -> OutsideLogChecks:
    """Returns the checks of the offsets that a rollback restores. They have the log ranges if brokers are known."""
    from offsetmgr.groups.edits import OutsideLogChecks

    def log_ranges(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        logs = step.stores.logs()
        return {} if logs is None else logs.log_ranges(partitions)

    return OutsideLogChecks(log_ranges)


def _compared(step: _Step, state: MigrationState, only: GroupScope | None, done: Report) -> RollbackReport:
    """Returns the report of a rollback with the differences that it left, and what apply had created."""
    from offsetmgr.groups.edits import groups_left_without_offsets
    from offsetmgr.migration.rollback import differences, unrecorded_writes

    plan, target = step.plan, step.stores.target
    known = {"recorded": len(state.apply.intents), "planned": plan.summary.groups}
    report = _extended(RollbackReport, done, **known, plan=plan.path, target=target.uri)
    if report.interrupted:
        return report
    report.compared = sum(1 for _ in unrecorded_writes(plan, state, only))
    for found in step.ui.progress(differences(plan, state, target, only) if report.compared else (), "comparing"):
        report.differing += 1
        if report.differing <= MAX_DIFFERENCES:
            report.differences += (found,)
    if report.groups and report.ok:
        created = set()
        for group in plan.groups():
            if group.group in state.apply.intents:
                applied = state.partitions(state.apply, group.group)
                wrote = applied.written | applied.in_doubt
                report.created += sum(one.target is None and one.tp in wrote for one in group.writes())
                created |= {group.target_group} if all(one.target is None for one in group.steps) else set()
        report.empty_groups = tuple(groups_left_without_offsets(target, sorted(created)))
        report.late = _late_deletion(target)
    return report


def plan_reverse(
    connections: Connections,
    path: Path,
    new_path: Path,
    selection: PlanSelection = ALL,
    *,
    sides: SideSettings | None = None,
    allow_rewind: bool = False,
    if_ahead: AheadPolicy | None = None,
) -> WrittenPlan:
    """Plans the way back after the groups have consumed from the target: writes a plan to the new file ``new_path``
    that copies the target's present offsets to the source.

    ``sides`` are those of the plan ``path``. ``allow_rewind`` also copies offsets that were rewound in the target.
    ``if_ahead`` is the caller's word for offsets that are ahead in the source. Raises `PlanError` if the file exists,
    `OtherCluster`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.migration.rollback import ReversePlanner, reverse_options

    step = _renewed_step(connections, path, selection, sides)
    options = reverse_options(step.plan, step.only, if_ahead)
    with step.stores.reversed().planner(options, translate=step.plan.header.translate) as base:
        reverse = ReversePlanner(step.plan, step.state, base, allow_rewind, step.only)
        header = base.header()
        steps = connections.ui.progress(reverse.steps(), "groups planned", len(reverse.groups))
        write_plan(new_path, header, steps, base.target.topic_ids)
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


def finalize(
    connections: Connections,
    path: Path,
    selection: PlanSelection = ALL,
    *,
    sides: SideSettings | None = None,
    rules: FinalizeRules | None = None,
    reason: str = "",
) -> FinalizeReport:
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

    rules = rules or FinalizeRules()
    step = _Step(connections, path, selection, sides)
    plan, state = step.plan, step.state
    verifier = step.stores.verifier(plan, state)
    if step.only is None and (state.finalized or state.undo.done or state.undo.written) and not state.is_rolled_back:
        step.only = frozenset(group.group for group in plan.groups() if not state.is_group_rolled_back(group.group))
    verifier.only = step.only
    if rules.delete_source:
        copied = count_of(sum(n for action, n in step.counts.actions.items() if action != "target-only"), "offset")
        step.ui.confirm(f"after the checks, remove up to {copied} from {plan.header.source.uri}?")
    elif state.finalized_at is None:
        groups = count_of(plan.summary.groups if step.only is None else len(step.only), "group")
        step.ui.confirm(f"after the checks, record in the journal that the migration of {groups} has ended?")
    window = ObservationWindow(rules.window_s, waiting=connections.waits.for_commits)
    thresholds = EvidenceThresholds(accept_idle=rules.accept_idle)
    gate = step.stores.member_gate(plan, rules.delete_source, thresholds, window)
    accept = (Status.REFUSED,) if rules.accept_refused else ()
    with step.writer(PlanRun("delete", step.only, reason), verifier.source) as (writer, state):
        remover = writer if rules.delete_source else None
        work = Finalization(verifier, state, writer.journal, gate, remover, accept, rules.accept_unseen)
        report = work.run()
        writer.incomplete = bool(report.blocked or report.kept)
    report.late = _late_deletion(verifier.source) if report.deleted is not None else ""
    _warn_of_finalized(step, state, {gate.group for gate in report.gates if gate.live})
    return report


def _warn_of_finalized(step: _Step, state: MigrationState, live: set[str]) -> None:
    """Warns of the groups whose members left the last phase after they had been finalized, and of the expiry of the
    copied offsets of groups without consumers. ``live`` are the groups with members in the target."""
    plan, warn = step.plan, step.connections.warn
    copied: dict[str, int | None] = {}
    for group in plan.groups_of(step.only):
        later = state.phase_after_end(group.group, plan.header.end)
        if later is not None and later.phase is not None:
            went_back = f"{later.phase.value} on {plan_text.time_text(later.at)}"
            warn(f"group {group.group}: its members went back to phase {went_back}, after it was finalized")
        if not group.error and group.group not in state.phases and group.group not in live:
            copied[group.target_group] = plan.header.expiry_of(state.copied_at(group))
    if any(copied.values()) and (cluster := step.stores.cluster()) is not None:
        described = cluster.describe_groups(list(copied))
        idle = (at for name, at in copied.items() if not getattr(described.get(name), "members", ()))
        for text in plan_text.expiry_notes(plan.path, idle, step.sides.options, watched=True):
            warn(text)


class MirrorSettings(NamedTuple):
    """How a mirror works. With ``once``, it ends as soon as nothing is left to copy.

    ``interval_ms`` is the polling interval of a source without watches. Before the first copy to a Kafka group, the
    mirror watches for ``settle_ms`` whether other clients commit to it. ``window_s`` limits the time for which a mirror
    with ``once`` watches live old consumers, in seconds; ``trust_zookeeper_only`` states that they commit only to
    ZooKeeper. ``translate`` is as in `PlanInputs`. ``before_image`` is the new file for the previous offsets (default:
    a file in the state directory). ``on_status`` is called with the state after each round.
    """

    once: bool = False
    interval_ms: int = 1000
    settle_ms: int = 2000
    window_s: float = 150.0
    trust_zookeeper_only: bool = False
    translate: OffsetTranslation | None = None
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
    stops it. Returns the mirror, with its groups and their states. ``sides.options`` are those of an edit of the
    target.

    Raises `GroupNotFound` and `UnknownTopicOrPartition` if the options select nothing, `UsageError` if one store has
    byte positions of Kafka 0.7 and the other one has offsets, `OtherCluster`, `Unreachable`, `TimedOut`.
    """
    from offsetmgr.groups.before_images import default_image_path
    from offsetmgr.groups.execute import EditOrigin
    from offsetmgr.migration.mirror import Mirror, MirrorImages
    from offsetmgr.migration.planner import Planner

    settings = settings or MirrorSettings()
    if options.if_ahead is AheadPolicy.REWIND:
        what, hint = Advice("{if_ahead} rewind"), Advice("use: {}", Invocation("migrate plan"))
        raise UsageError(what, "a mirror only moves offsets forward", hint)
    stores, options = _new_sides(connections, source, target, options, sides)
    _require_equal_layouts(stores)
    ui, clock = connections.ui, SystemClock()
    planner = Planner(stores.source, stores.target, options, clock, translate=settings.translate)
    names, refresh_s = _announce_mirror(ui, stores, planner)
    ui.confirm(f"copy to {stores.target.uri} until stopped?")
    path = settings.before_image or default_image_path("migrate mirror")
    on_durable = lambda path: ui.note(f"before-images: {path}")  # noqa: E731
    images = MirrorImages(stores.source, stores.target, options, path, planner.crossing, on_durable)
    origin = EditOrigin("migrate mirror", reason, {} if sides is None else sides.arguments)
    with (
        ui.stop("the mirror ends after this round") as stop,
        stores.changes(options, settings.interval_ms) as (notifier, legacy_groups),
    ):
        running = Mirror(
            stores.source,
            stores.target,
            options,
            notifier,
            clock,
            stop,
            settings.on_status,
            settings.interval_ms / 1000 if settings.once else 10.0,
            settings.settle_ms / 1000,
            None if settings.trust_zookeeper_only else legacy_groups,
            settings.window_s,
            refresh_s,
            planner.crossing,
            images.prepare,
        )
        with _recorded(running, images.operation(names, origin)):
            running.run(once=settings.once)
    return running


@contextmanager
def _recorded(mirror: Mirror, operation: OperationStart) -> Iterator[None]:
    """Records the mirror in the operation log."""
    from offsetmgr.groups.operation_log import OperationLog

    with OperationLog().recorded(operation) as recorded:
        try:
            yield
        finally:
            recorded.written = mirror.status().copied
            recorded.failed = sum(not one.succeeded for one in mirror.groups.values())
            recorded.interrupted = mirror.interrupted


def _announce_mirror(ui: Ui, stores: SourceAndTarget, planner: Planner) -> tuple[list[str], float]:
    """Notes what a mirror copies. Returns the groups, and the interval in seconds at which the mirror commits its
    offsets again. Raises `OtherCluster`, and an error if a selected topic matches no offset of the groups."""
    header, names = planner.header(), planner.selected_groups()
    _require_topics(stores.source, planner.options, names)
    moved = f"{stores.source.uri} -> {stores.target.uri}"
    ui.note(f"mirrors {count_of(len(names), 'group')}, forward only: {moved}; Ctrl-C ends it")
    for line in plan_text.comparison_lines(header):
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

    if options.topics:
        topic_matches = TopicMatches(options.selection.within(source.capabilities.partitions))
        for found in source.scan(names):
            topic_matches.record_group(found)
        topic_matches.require_all(source.uri)


def _require_equal_layouts(stores: SourceAndTarget) -> None:
    """Raises `UsageError` if one of the two stores contains byte positions of Kafka 0.7 and the other one contains
    offsets."""
    from offsetmgr.core.offset_store import PartitionKinds

    kinds = {one.capabilities.partitions for one in (stores.source, stores.target)}
    if PartitionKinds.OF_BROKERS in kinds and len(kinds) > 1:
        raise UsageError(
            "migrate mirror",
            "one side holds byte positions of Kafka 0.7 and the other side offsets, which cannot be compared",
            Advice("a plan can translate them once: migrate plan {partition_map}"),
        )


def status(
    connections: Connections,
    plan: str | Path,
    selection: PlanSelection = ALL,
    *,
    window_s: float | None = None,
    sides: SideSettings | None = None,
) -> FleetStatus:
    """Returns the state of the selected groups of a plan, with their obstacles and next steps. It comes from the plan,
    its journal, and the state files of bounces that are not finished. With ``window_s``, the servers are asked too, and
    live members are watched for at most this time in seconds. ``sides`` are the settings of the source and the target.

    Raises `GroupNotFound` and `UsageError` for groups and waves that the plan does not have, `PlanError`,
    `JournalError`, `Unreachable` and `TimedOut`.
    """
    from offsetmgr.migration.fleet import FleetStatus
    from offsetmgr.migration.location import group_statuses
    from offsetmgr.migration.observation import ObservationWindow

    file, state = open_plan(Path(plan))
    only, live = select_groups(file, selection.groups, selection.waves), None
    if window_s is not None:
        both = connections.resolved.connection
        stores = SourceAndTarget.of_plan(connections, file.header, *(sides[:2] if sides is not None else (both, both)))
        connections.ui.note(f"asking the servers, and watching live members for up to {window_s:g} s")
        window = ObservationWindow(window_s, waiting=connections.waits.for_commits)
        live = stores.fleet_view(file, state, window).observe(only)
    found = group_statuses(file, state, only, live, _open_bounces(file, only))
    return FleetStatus(file, state, summary_of(file, only), found, live is not None)


def _open_bounces(plan: PlanFile, only: GroupScope | None) -> dict[str, OpenBounce]:
    """Returns the open bounces of the groups, by their names in the plan."""
    from offsetmgr.migration.fleet_bounce import open_bounces

    to_zookeeper = plan.header.target.kind == "zookeeper"
    names = {one.target_group if to_zookeeper else one.group: one.group for one in plan.groups_of(only)}
    return {names[name]: found for name, found in open_bounces(names, plan.header).items()}
