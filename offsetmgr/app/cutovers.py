"""The connections of ``migrate cutover``: opens both clusters, and plans and applies one group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.translation import open_translations
from offsetmgr.app.ui import Ui
from offsetmgr.core.advice import Argument, Invocation
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.cutover_options import CutoverOptions
from offsetmgr.core.errors import Conflict, GroupActive, JournalError, PlanError, UsageError
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.offset_store import AheadPolicy
from offsetmgr.core.selection import GroupSelection, literal_pattern
from offsetmgr.groups.describe import LockWaitingCluster
from offsetmgr.groups.scan import choose_groups, require_known
from offsetmgr.migration.bounce_checkpoint import exclusive
from offsetmgr.migration.cutover import Cutover, CutoverActions, Side
from offsetmgr.migration.cutover_gates import CutoverReport, way_back_text
from offsetmgr.migration.journaled_writer import Report
from offsetmgr.migration.plan import GroupPlan, PlanFile, PlanOptions

if TYPE_CHECKING:
    from offsetmgr.kafka.cluster import KafkaCluster


class PlanSteps(NamedTuple):
    """The steps of the plan of one group: `offsetmgr.app.migrate.plan`, ``apply`` and ``rollback``, for the servers of
    the cutover."""

    plan: Callable[[Path, PlanOptions, TranslationRules], PlanFile]
    apply: Callable[[Path], Report]
    undo: Callable[[Path], Report]


class _QuietUi(Ui):
    """Agrees to the steps of a group, which the user has confirmed together, and shows only their warnings."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui

    def note(self, text: str, *, warning: bool = False, repeated: bool = False) -> None:
        if warning:
            self._ui.note(text, warning=True, repeated=repeated)


class CutoverRun:
    """A call of ``migrate cutover``."""

    def __init__(
        self, connections: Connections, pair: SourceAndTarget, path: Path, options: CutoverOptions, steps: PlanSteps
    ) -> None:
        """Raises `UsageError` if a store is not a Kafka cluster."""
        self._connections, self._pair, self._path = connections, pair, path
        self._options, self._steps = options, steps
        for store in (pair.source, pair.target):
            if store.identity().kind != "kafka":
                raise UsageError(
                    store.uri, "is not a Kafka cluster, and a cutover needs two", "as in kafka://HOST:9092"
                )
        if pair.source.log_origin().name == pair.target.log_origin().name:
            raise UsageError(pair.target.uri, "is the cluster of the source", "name another cluster")
        if options.undo and options.back_of:
            raise UsageError("an undo and a way back", "are both given", "give one of them")

    def run(self, selection: GroupSelection, arguments: dict[str, Argument], *, execute: bool) -> CutoverReport:
        """Returns where everything stands. ``arguments`` are those of a further call."""
        ui, pair = self._connections.ui, self._pair
        sides = [
            Side(store, self._waiting(one))
            for store, one in zip((pair.source, pair.target), pair.clusters(), strict=True)
        ]
        lock = exclusive(self._path.with_suffix(".lock"), "cutover") if execute else nullcontext()
        with lock, ui.stop("the next run continues") as stop:
            actions = CutoverActions(self._plan, self._apply, self._undo, self._translations, ui.confirm, ui.note, stop)
            run = Cutover((sides[0], sides[1]), self._path, actions, self._options, execute=execute)
            self._rules, self._renames = run.options.rules, run.options.renames
            run.names = self._selected(selection, run)
            ui.note(f"{pair.source.uri} -> {pair.target.uri}: {way_back_text(run.state.way_back)}")
            standings = run.undo() if self._options.undo else run.run()
        named = {"from": pair.source.uri, "to": pair.target.uri, **arguments, "state": str(self._path)}
        back = str(self._path.with_name(f"{self._path.stem}-back{self._path.suffix}"))
        swapped = {"from": pair.target.uri, "to": pair.source.uri, "back_of": str(self._path), "state": back}
        commands = {
            "continue": Invocation("migrate cutover", (), {**named, "execute": True}),
            "undo": Invocation("migrate cutover", (), {**named, "undo": True, "execute": True}),
            "back": Invocation("migrate cutover", (), {**named, **swapped, "execute": True}),
        }
        return CutoverReport(standings, run.state.way_back, commands)

    def _waiting(self, cluster: KafkaCluster) -> KafkaCluster:
        """Returns the cluster; a description of groups waits for the group lock of a killed run."""
        waiting: object = LockWaitingCluster(cluster, SystemClock(), self._connections.waits)
        return waiting  # type: ignore[return-value]

    def _selected(self, selection: GroupSelection, run: Cutover) -> list[str]:
        """Returns the selected groups of the source, and those of earlier runs. Raises `GroupNotFound`."""
        source, known = self._pair.source, run.state.groups
        names = choose_groups(source, selection)
        names = sorted({*names, *(name for name in known if selection.matches(name))})
        found = {one.name for one in source.scan(names) if one.offsets or one.errors or one.error}
        require_known([source], [name for name in names if name not in found and name not in known])
        return [name for name in names if name in found or name in known]

    def _translations(self, back: bool):  # type: ignore[no-untyped-def]
        return open_translations(self._connections, self._pair, self._rules._replace(back=back))

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        ui = self._connections.ui
        self._connections.ui = _QuietUi(ui)
        try:
            yield
        finally:
            self._connections.ui = ui

    def _plan(self, group: str, path: Path, back: bool, rewind: bool) -> GroupPlan:
        ahead = AheadPolicy.REWIND if rewind else AheadPolicy.REFUSE
        groups = GroupSelection([literal_pattern(group)])
        options = PlanOptions(ahead, groups=groups, rename=dict(self._renames), onto_existing=True)
        with self._quiet():
            return next(iter(self._steps.plan(path, options, self._rules._replace(back=back)).groups()))

    def _apply(self, path: Path) -> str:
        return self._problem(self._steps.apply, path)

    def _undo(self, path: Path) -> str:
        return self._problem(self._steps.undo, path)

    def _problem(self, step: Callable[[Path], Report], path: Path) -> str:
        """Executes a step of a plan. Returns what it did not do."""
        try:
            with self._quiet():
                report = step(path)
        except (Conflict, GroupActive, JournalError, PlanError) as error:
            return str(error)
        lines = [line.strip(" !") for line in report.lines("written")][1:4]
        return "" if report.ok else "; ".join(lines) or "not everything was written"
