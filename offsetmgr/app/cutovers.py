"""The connections of ``migrate cutover``: opens both clusters, and plans groups and applies the plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.translation import open_translations
from offsetmgr.app.ui import Ui, interrupted_as
from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.cutover_options import CutoverOptions
from offsetmgr.core.errors import Conflict, GroupActive, GroupNotFound, JournalError, PlanError, UsageError
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.offset_store import AheadPolicy
from offsetmgr.core.plurals import SHOWN, list_of
from offsetmgr.core.selection import GroupSelection, literal_pattern
from offsetmgr.core.topic_renames import TopicRenames
from offsetmgr.groups.scan import choose_groups, require_known
from offsetmgr.migration.cutover import Cutover, CutoverActions, Side
from offsetmgr.migration.cutover_gates import CutoverReport, way_back_text
from offsetmgr.migration.cutover_state import STATE_FILE
from offsetmgr.migration.journaled_writer import Report
from offsetmgr.migration.plan import GroupPlan, PlanFile, PlanOptions, check_renames
from offsetmgr.translation.alignment import Verdict

if TYPE_CHECKING:
    from offsetmgr.migration.rollback import RollbackPreview
    from offsetmgr.translation.translator import Translations

T = TypeVar("T")


class _QuietUi(Ui):
    """Agrees to the steps of a plan, which the user has confirmed together, and shows only their warnings and their
    progress. ``wants_stop`` is as in `Ui`."""

    def __init__(self, ui: Ui, wants_stop: Callable[[], bool]) -> None:
        self._ui, self.wants_stop = ui, wants_stop

    def progress(self, items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
        return self._ui.progress(items, what, total)

    def note(self, text: str, *, warning: bool = False, repeated: bool = False) -> None:
        if warning:
            self._ui.note(text, warning=True, repeated=repeated)


class CutoverRun:
    """A call of ``migrate cutover``. ``plan``, ``apply`` and ``undo`` are the steps of a plan, for the servers of the
    cutover."""

    def __init__(
        self,
        connections: Connections,
        pair: SourceAndTarget,
        path: Path,
        options: CutoverOptions,
        plan: Callable[[Path, PlanOptions, TranslationRules], PlanFile],
        apply: Callable[[Path, GroupSelection], Report],
        preview: Callable[[Path, GroupSelection], Iterable[RollbackPreview]],
        undo: Callable[[Path, GroupSelection], Report],
    ) -> None:
        """Raises `UsageError` if a store is not a Kafka cluster, or if options contradict each other."""
        self._connections, self._pair, self._path = connections, pair, path
        self._options, self._plan_groups, self._stop = options, plan, connections.ui.wants_stop
        self._apply, self._rollback, self._preview = partial(self._problems, apply), undo, preview
        if (silent := pair.origins()[1]) is not None:
            raise silent
        for store in (pair.source, pair.target):
            if store.identity().kind != "kafka":
                why = "is not a Kafka cluster, and a cutover needs two"
                raise UsageError(store.uri, why, "as in kafka://HOST:9092")
        if pair.source.log_origin().name == pair.target.log_origin().name:
            raise UsageError(pair.target.uri, "is the cluster of the source", "name another cluster")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"state file {path}", "its directory does not exist", "create the directory first")
        if options.undo and not path.exists():
            raise UsageError(f"state file {path}", "does not exist, so no group can be taken back", "check its name")
        if options.undo and options.back_of:
            raise UsageError(Advice("{undo=True} and {back_of}"), "are both given", "give one of them")

    def run(self, selection: GroupSelection, arguments: dict[str, Argument], *, execute: bool) -> CutoverReport:
        """Returns where everything stands. ``arguments`` are those of a further call."""
        ui, pair = self._connections.ui, self._pair
        stores = zip((pair.source, pair.target), pair.clusters(), strict=True)
        source, target = (Side(store, found, pair.waiting(found).describe_groups) for store, found in stores)
        lock = STATE_FILE.exclusive(self._path) if execute else nullcontext()
        with lock, interrupted_as("run the same command again to go on"), ui.stop("the next run continues") as stop:
            translations, self._stop = cache(self._translations), stop
            actions = CutoverActions(self._plan, self._apply, self._undo, translations, ui.confirm, ui.note, stop)
            run = Cutover((source, target), self._path, actions, self._options, execute=execute)
            self._rules, self._renames = run.options.rules, run.options.renames
            run.names = self._selected(selection, run)
            back_of = run.state.back_of
            way_back = f"the way back of {back_of}" if back_of else way_back_text(run.state.way_back)
            ui.note(Advice("{} -> {}: {}", pair.source.uri, pair.target.uri, way_back))
            standings = run.undo() if self._options.undo else run.run()
        rules, state = self._rules, str(self._path)
        named: dict[str, Argument] = {"from": pair.source.uri, "to": pair.target.uri, **arguments, "state": state}
        named |= {"accept": rules.accepts, "ignore_header": rules.ignored_headers, "max_read": rules.max_read}
        swapped: dict[str, Argument] = {"from": pair.target.uri, "to": pair.source.uri, "back_of": state}
        named["excuse"], swapped["excuse"] = self._options.excused, None  # these have not moved
        swapped["accept"] = tuple(one for one in rules.accepts if one != Verdict.MISSING)
        files = arguments.get("to_command_config"), arguments.get("from_command_config")
        swapped["from_command_config"], swapped["to_command_config"] = files
        swapped["state"] = str(self._path.with_name(f"{self._path.stem}-back{self._path.suffix}"))
        if selection.patterns:
            swapped["group"] = tuple(self._renames.get(one, one) for one in selection.patterns)
        words: dict[str, dict[str, Argument]] = {"continue": {}, "undo": {"undo": True}, "back": swapped}
        commands = {
            name: Invocation("migrate cutover", (), {**named, **own, "execute": True}) for name, own in words.items()
        }
        return CutoverReport(standings, run.state.way_back, commands)

    def _selected(self, selection: GroupSelection, run: Cutover) -> list[str]:
        """Returns the selected groups of the source, and those of earlier runs. Raises `GroupNotFound`, and
        `UsageError` for a name in an option that means nothing."""
        source, cluster, known = self._pair.source, self._pair.clusters()[0], run.state.groups
        names = choose_groups(source, selection)
        names = sorted({*names, *(name for name in known if selection.matches(name))})
        named = {*known, *(selection.patterns or ())}
        if (moved := run.moved_before()) is not None and (others := sorted(set(names).difference(named, moved))):
            names = [name for name in names if name not in others]
            text = f"the first cutover has not moved {list_of(others, SHOWN)}"
            if not names:
                raise GroupNotFound("the way back", text, "name a group that it has moved", groups=others)
            self._connections.ui.note(f"left out: {text}")
        found = {one.name for one in source.scan(names) if one.offsets or one.errors or one.error}
        require_known([source], [name for name in names if name not in found and name not in known])
        excusable = {*cluster.group_kinds(), *known, *run.state.excused}
        for argument, given, meant, possible in (
            ("{output_topic} {}", self._options.outputs, "no selected group", names),
            ("{rename} {}", self._options.renames, "no selected group", names),
            ("{excuse} {}", self._options.excused, "no group of the source", excusable),
        ):
            if others := sorted(set(given).difference(possible)):
                raise UsageError(Advice(argument, others[0]), f"{meant} has this name", "check the name")
        topics = cluster.topics()
        TopicRenames(self._options.rules.topics).require_matches(topics, topics)
        run.state.excused = sorted({*run.state.excused, *self._options.excused})
        check_renames(run.options.renames, sorted({*names, *run.state.moved()}))
        if not (chosen := [name for name in names if name in found or name in named]):
            raise GroupNotFound(f"nothing to move in {source.uri}", "no group there has offsets", "check the address")
        return chosen

    def _translations(self, back: bool) -> Translations:
        return open_translations(self._connections, self._pair, self._rules._replace(back=back))

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        ui = self._connections.ui
        self._connections.ui = _QuietUi(ui, self._stop)
        try:
            yield
        finally:
            self._connections.ui = ui

    def _plan(self, groups: Sequence[str], path: Path, back: bool, rewind: bool) -> list[GroupPlan]:
        ahead = AheadPolicy.REWIND if rewind else AheadPolicy.REFUSE
        rename = {old: new for old, new in self._renames.items() if old in groups}
        options = PlanOptions(ahead, groups=_only(groups), rename=rename, onto_existing=True)
        with self._quiet():
            return list(self._plan_groups(path, options, self._rules._replace(back=back)).groups())

    def _undo(self, path: Path, groups: Sequence[str]) -> dict[str, str]:
        """Restores all offsets of a group or none. Returns what it did not restore, by group."""
        problems: dict[str, str] = {}

        def undo(path: Path, selected: GroupSelection) -> Report:
            for one in self._preview(path, selected):
                if one.problem:
                    at = "" if one.applied is None else f"is at {one.now} and not at {one.applied}: "
                    problems.setdefault(one.group, f"{one.tp}: {at}{one.problem}")
            rest = [name for name in groups if name not in problems]
            return self._rollback(path, _only(rest)) if rest else Report()

        return self._problems(undo, path, groups) | problems

    def _problems(
        self, step: Callable[[Path, GroupSelection], Report], path: Path, groups: Sequence[str]
    ) -> dict[str, str]:
        """Executes a step of a plan for some groups. Returns what it did not do, by group."""
        try:
            with self._quiet():
                report = step(path, _only(groups))
        except (Conflict, GroupActive, JournalError, PlanError) as error:
            return dict.fromkeys(groups, str(error))
        failed = {name: one.failures() for name, one in report.failed.items()}
        return {name: "; ".join(line.strip(" !") for line in lines) for name, lines in failed.items()} | report.closed


def _only(groups: Iterable[str]) -> GroupSelection:
    return GroupSelection(map(literal_pattern, groups))
