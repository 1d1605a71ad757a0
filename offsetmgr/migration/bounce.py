"""Executes rolling bounces, one group after the other. A bounce restarts one member at a time, checks a gate after each
restart, and checks the whole group at the end.

This module defines the order of the steps. The rules for the decisions are in `commit_mode`, `bounce_plan` and
`evidence`. A run that is killed at any point can be resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.commit_mode import AlreadyInPhase, CommitMode, CommitModeChange
from offsetmgr.core.errors import GateRefused, GroupNotFound, MalformedData, OffsetMgrError, UsageError
from offsetmgr.core.model import dropped_text, form_of
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import GroupSelection, is_pattern, literal_pattern
from offsetmgr.groups.execute import EditOrigin, caused_by
from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart, first_groups
from offsetmgr.migration.apply import behind, copy_forward, read_writers
from offsetmgr.migration.bounce_checkpoint import (
    STATE_FILE,
    BounceState,
    OffsetCopy,
    RestartStep,
    StepStatus,
    is_unchanged,
    load_all,
    save,
)
from offsetmgr.migration.bounce_plan import (
    BounceOutcome,
    BounceResult,
    BounceSpec,
    BounceStart,
    CommandTest,
    UnrequestedReturn,
    find_start,
    open_state,
    plan_bounce,
)
from offsetmgr.migration.evidence import EvidenceThresholds, PhaseReport, assess_phase
from offsetmgr.migration.journaled_writer import open_plan
from offsetmgr.migration.observation import (
    GroupHistory,
    GroupView,
    ObservationWindow,
    watch_group,
)
from offsetmgr.migration.plan import PlanFile, select_groups
from offsetmgr.migration.progress import JournalRecord, MigrationState, Stage, blocked_record
from offsetmgr.migration.restart_command import Restart, check_template, options_text, run_in_shell, still_running
from offsetmgr.migration.runbook import check_phase

# Rolling bounces of several groups, one group after the other. A group whose bounce is refused or fails does not hold
# up the others.


class GroupBounce(NamedTuple):
    """The bounce of one group. ``error`` is the reason for which the bounce did not begin. If ``result`` and ``error``
    are None, no restart was needed, and ``note`` is the reason."""

    group: str
    result: BounceResult | None = None
    error: OffsetMgrError | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bounce was executed, planned or finished earlier."""
        good = (BounceOutcome.DONE, BounceOutcome.PLANNED)
        return self.error is None and (self.result is None or self.result.outcome in good)

    @property
    def is_stopped(self) -> bool:
        """Whether the bounce was stopped on request."""
        return self.result is not None and self.result.outcome is BounceOutcome.STOPPED


@dataclass(frozen=True, slots=True)
class Bounces:
    """Rolling bounces that share the state file ``state_path``. The operation log records them as ``origin``; without
    it, they are only planned.

    With ``several``, the progress names each group, and groups whose bounce the state file shows as finished are
    skipped if they are still in the phase, or have gone on to the next one; otherwise such a bounce is an error. Groups
    that are proved to be in the phase already are skipped, too. ``stop`` is called between steps and while a gate is
    watched; once it returns True, no further bounce begins.
    """

    view: GroupView
    state_path: Path
    several: bool
    progress: Callable[[str], None]
    stop: Callable[[], bool]
    origin: EditOrigin | None

    def run(self, specs: Sequence[BounceSpec | GroupBounce]) -> Iterator[GroupBounce]:
        """Executes or resumes the bounces, and yields each result. A `GroupBounce` in ``specs`` is the result of a
        group whose parameters are invalid, and is yielded.

        A refused gate, a failed restart and a closed gate concern only their group. Any other error, such as an
        unreachable server, is raised, because it concerns all groups.
        """
        with self._recorded([spec.group for spec in specs]) as recorded:
            for spec in specs:
                if isinstance(spec, BounceSpec):
                    if spec.restart.kubernetes is None:
                        check_template(spec.restart.command or "")
                    if self.stop():
                        break
                    one = self._bounce_group(spec)
                else:
                    one = spec
                recorded.failed += not one.ok and not one.is_stopped
                recorded.interrupted = recorded.interrupted or one.is_stopped
                recorded.written += sum(copy.outcome == "written" for copy in (one.result.copies if one.result else ()))
                yield one
                if one.is_stopped:
                    break
            recorded.interrupted = recorded.interrupted or self.stop()

    def _recorded(self, names: list[str]) -> AbstractContextManager[OperationProgress]:
        """Returns the record of the bounces in the operation log; nothing is recorded if they are only planned."""
        if (origin := self.origin) is None:
            return nullcontext(OperationProgress(""))
        stores, files = (self.view.zookeeper.uri, self.view.kafka.uri), (str(self.state_path.absolute()),)
        groups = (first_groups(names), len(names))
        return OperationLog().recorded(
            OperationStart(origin.operation, stores, *groups, 0, files, reason=origin.reason)
        )

    def _bounce_group(self, spec: BounceSpec) -> GroupBounce:
        try:
            if self.several and (done := self._finished(spec)):
                return GroupBounce(spec.group, note=done)
            if self.several:
                self.progress(f"group {spec.group}")
            if self.origin is None:
                return GroupBounce(spec.group, plan_bounce(self.view, spec, self.state_path))
            with caused_by(self.origin):
                return GroupBounce(spec.group, self._execute(spec))
        except AlreadyInPhase as error:
            return _already_in_phase(self.view, spec, error) if self.several else GroupBounce(spec.group, error=error)
        except (GateRefused, GroupNotFound, MalformedData, UsageError) as error:
            return GroupBounce(spec.group, error=error)

    def _execute(self, spec: BounceSpec) -> BounceResult:
        """Executes or resumes a bounce. The output of the restart commands goes to a log file: its path is that of the
        state file with the suffix ``.log``.

        A failed command or a closed gate is reported in the result and raises no error. Raises `GateRefused` if the
        bounce must not begin, and `UsageError` if the state file belongs to another bounce.
        """
        path, log = self.state_path, self.state_path.with_suffix(".log")

        def progress(text: str) -> None:
            self.progress(f"  {text}" if self.several else text)

        with STATE_FILE.exclusive(path):
            state, found = open_state(self.view, spec, path, progress)
            run = _BounceRun(self.view, spec, state, path, log, progress, self.stop)
            if found is not None:
                run.start(found)
            return run.run_steps()

    def _finished(self, spec: BounceSpec) -> str:
        """Returns the reason for which the finished bounce of the state file needs no repetition: the members are those
        of the end of the bounce, or commit as its phase or the next phase does, or the journal of the plan records the
        next phase. Returns an empty text if the bounce is not finished.

        Raises `UsageError` if the group may have left the phase since, or if the file belongs to another cluster.
        """
        view, state_path = self.view, self.state_path
        saved = load_all(state_path).get(spec.group)
        if saved is None or saved.finished_ms is None or saved.change.to is not spec.to:
            return ""
        view.require_stores(f"state file {state_path}", saved.baseline)
        by_file = "finished by an earlier run, according to the state file"
        live = view.members(spec.group)
        if is_unchanged(saved, live):
            return by_file
        later = saved.change.next_mode
        gone_on = Advice("")
        if later:
            back = "gone on to phase {}; to take it back to {}, add {from_phase} {} and another {state}"
            gone_on = Advice(back, later.value, spec.to.value, later.value)
        if later and spec.recorded is later:
            return gone_on
        self.progress(f"group {spec.group}: restarted since the finished bounce in {state_path}; watching its commits")
        report = check_phase(view, spec.group, spec.to, spec.options.window, spec.options.rules)
        if report.passed:
            return by_file
        if later and check_phase(view, spec.group, later, spec.options.window, spec.options.rules).passed:
            return gone_on
        raise UsageError(
            f"state file {state_path}",
            f"the bounce {saved.change} of group {spec.group} in it is finished, and its members have restarted since;"
            f" they are not known to be in phase {spec.to.value}: {report.missing}",
            Advice("name another one with {state} for a new bounce"),
        )


def _already_in_phase(view: GroupView, spec: BounceSpec, error: AlreadyInPhase) -> GroupBounce:
    """Returns the result for a group that commits as the phase does: an error if some members may not."""
    report = check_phase(view, spec.group, spec.to, spec.options.window, spec.options.rules)
    if report.passed:
        return GroupBounce(spec.group, note=f"in phase {spec.to.value} already")
    why = f"the group commits as this phase does, but the evidence is incomplete: {report.missing}"
    return GroupBounce(
        spec.group, error=AlreadyInPhase(error.what, why, Advice("give the phase with {from_phase} to restart"))
    )


def journal_record(group: str, found: GroupBounce) -> JournalRecord | None:
    """Returns the record of a bounce for the journal of a plan; None if the bounce was stopped, only planned, finished
    earlier, into the phase that the group is in, or refused as a way back. ``group`` is the group's name in the
    plan."""
    error, result = found.error, found.result
    if isinstance(error, AlreadyInPhase | UnrequestedReturn):
        return None
    if error is not None:
        return blocked_record(group, for_command_line(error.what), error.why, error.hint)
    if result is None or result.outcome in (BounceOutcome.STOPPED, BounceOutcome.PLANNED):
        return None
    if result.outcome is BounceOutcome.FAILED:
        return blocked_record(group, f"bounce {result.change}", result.why, result.hint)
    assert result.report is not None  # a finished bounce has passed the gate of the whole group
    return phase_record(group, result.report)


def phase_record(group: str, report: PhaseReport) -> JournalRecord:
    """Returns the record of a phase that every member of the group has reached."""
    known = ", ".join(sorted({member.confidence.value for member in report.members}))
    why = f"{count_of(len(report.members), 'member')} committed as phase {report.phase.value} does ({known})"
    return {"kind": "group-phase", "group": group, "phase": report.phase.value, "why": why}


# The groups of a call, and the name of its state file.


class PlannedGroups(NamedTuple):
    """The groups of a plan, with the state of its journal. ``names`` maps the name of a group in ZooKeeper to its name
    in the plan."""

    file: PlanFile
    state: MigrationState
    names: dict[str, str]

    @classmethod
    def open(cls, path: str | Path | None) -> PlannedGroups | None:
        if path is None:
            return None
        plan, state = open_plan(Path(path))
        to_zookeeper = plan.header.target.kind == "zookeeper"
        names = {group.target_group if to_zookeeper else group.name: group.name for group in plan.groups()}
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
        return sorted(of_zookeeper[name] for name in select_groups(selection, waves, self.file) or frozenset())

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
        found = ((one.name, self.state.stage_of(one)) for one in self.file.groups_of(frozenset(planned)))
        return {planned[name]: stage for name, stage in found if stage in left}

    def unapplied(self, groups: Iterable[str], to: CommitMode) -> str:
        """Returns a text that names the groups whose offsets are not applied, unless they go back; empty if there are
        none."""
        planned = {self.names[group]: group for group in groups}
        found = self.file.groups_of(frozenset(planned)) if to.value != self.file.header.source.kind else ()
        early = sorted(planned[group.name] for group in found if not self.state.is_applied(group))
        named = f"{count_of(len(early), 'group')} not applied, see `migrate apply`: {list_of(early, SHOWN)}"
        return named if early else ""

    @property
    def source_phase(self) -> CommitMode | None:
        """The phase in which the groups began; None if the plan is not between ZooKeeper and Kafka."""
        return next((mode for mode in CommitMode if mode.value == self.file.header.source.kind), None)

    def way_back(self, restart: Restart, group: str, servers: str) -> str:
        """Returns the command line of the bounce to dual towards the plan's source, of a group in ZooKeeper."""
        end = CommitMode.ZOOKEEPER if self.source_phase is CommitMode.KAFKA else CommitMode.KAFKA
        named = {"plan": str(self.file.path), "group": literal_pattern(self.names[group])}
        call = Invocation("runbook bounce", (), {**named, "to_phase": "dual", "from_phase": end.value})
        return f"{call.command_line()} {restart.options(group)[0]}{servers} {options_text(execute=True)}"


def groups_to_bounce(
    view: GroupView,
    plan: PlannedGroups | None,
    selection: GroupSelection,
    waves: Sequence[int],
    to: CommitMode,
    note: Callable[[str], None],
) -> list[str]:
    """Returns the selected groups, sorted. The groups of a wave or of a glob are left out if they have no live member
    in ZooKeeper or if the plan has closed them; ``note`` gets the reason."""
    patterns, excluded = selection.patterns, selection.excluded
    if not patterns and not waves:
        hint = "as in {group} NAME (repeatable, globs)"
        hint += "; {wave} N, or {group='*'} for all groups of the plan" if plan is not None else ""
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
    unnamed = sorted(set(wide) - set(named))
    closed = plan.closed(unnamed, to) if plan else {}
    alive = [name for name in unnamed if name not in closed and view.members(name)]
    if left_out := len(unnamed) - len(alive):
        kinds = "finalized, rolled back, not planned, or without a live member in ZooKeeper"
        note(f"left out {left_out} of {len(unnamed)} groups: {kinds}")
    others = [name for name in unnamed if closed.get(name, Stage.FINALIZED) is not Stage.FINALIZED]
    if others:
        states = list_of((f"{name} ({closed[name]})" for name in others), SHOWN)
        note(Advice("left out by the plan: {}; name a group with {group} to restart its members", states))
    return sorted({*named, *alive})


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
        stopped = [one.result.why for one in self.found if one.is_stopped and one.result]
        if stopped or self.tests or len(self.found) == len(self.groups):
            return stopped[0] if stopped else ""
        return "stopped on request"

    @property
    def ok(self) -> bool:
        """Whether every bounce was executed or planned, or every test succeeded."""
        return all(one.ok for one in self.found) and all(test.status == "ok" for test in self.tests)

    def lines(self) -> Iterator[str]:
        """Yields the lines about the result, after those about each bounce."""
        if self.tests:
            failed = sum(test.status != "ok" for test in self.tests)
            yield f"{count_of(len(self.tests), 'member')} tested, {failed} failed; nothing was restarted"
            if failed:
                yield f"the output of the commands is in {self.log}"
        results = [one.result for one in self.found if one.result is not None]
        for result in results:
            yield from result.lines()
        for one in self.found:
            if one.result is None and one.error is None:
                yield Advice("group {}: {}", one.group, one.note)
        if any(result.outcome is BounceOutcome.PLANNED for result in results):
            yield Advice(
                "nothing was executed; {execute=True} runs these commands, one at a time, with a gate after each"
            )
        if len(self.found) > 1:
            undone = [one.group for one in self.found if not one.ok]
            named = f"; not done: {', '.join(undone)}" if undone else ""
            yield f"{count_of(len(self.found) - len(undone), 'group')} of {len(self.found)} done{named}"
        yield from self.unfinished


# The bounce of one group.


@dataclass(slots=True)
class _BounceRun:
    """One run of a bounce, with the objects that its steps use."""

    view: GroupView
    spec: BounceSpec
    state: BounceState
    state_path: Path
    log: Path
    progress: Callable[[str], None]
    stop: Callable[[], bool]

    def start(self, start: BounceStart) -> None:
        """Copies the offsets that must be in ZooKeeper before a change to ZooKeeper, and saves the state."""
        for step in self.state.steps:  # finds an invalid command before any restart
            self.spec.command_of(step)
        if start.change.to is CommitMode.ZOOKEEPER and self._copy(start.history):
            history = find_start(self.view, self.spec).history
            if again := behind(history, read_writers(self.view, history)):
                named = ", ".join(str(tp) for tp in sorted(again)[:3])
                find = "a client commits to Kafka alone: find it (offsetmgr runbook check {phase=dual}), then resume"
                raise GateRefused(
                    f"bounce {start.change}",
                    f"ZooKeeper is behind Kafka again on {named}, right after the copy",
                    Advice(find),
                )
        self.state.opened_ms = self.view.clock.now_ms()
        self._save()

    def _save(self) -> None:
        save(self.state, self.state_path)

    def run_steps(self) -> BounceResult:
        for number, step in enumerate(self.state.steps, 1):
            if step.status in (StepStatus.PASSED, StepStatus.MEMBER_LEFT):
                continue
            if self.stop():
                return self._stopped(f"stopped on request before step {number}")
            self.progress(f"step {number} of {len(self.state.steps)}: {step.member}")
            if failed := self._restart(step) or self._pass_gate(step):
                return failed
        return self._finish()

    def _restart(self, step: RestartStep) -> BounceResult | None:
        """Runs the step's command unless it has already succeeded. Returns None if the gate of the step can be checked
        next."""
        if step.status is StepStatus.RETURNED and not self._is_repeated(step):
            return None
        # If an earlier run was killed but its restart command still runs, the member could be restarted twice.
        deadline = self.view.clock.monotonic() + self.spec.restart.limit_s
        if step.pid is not None and still_running(step.pid):
            self.progress(f"  the command of an earlier run (process {step.pid}) is still running: waiting for it")
        while step.pid is not None and still_running(step.pid) and self.view.clock.monotonic() < deadline:
            self.view.clock.sleep(self.spec.options.window.poll_s)
        step.pid = None
        registered = self._watch_until(self.spec.options.window, lambda _history: True).latest.members
        if step.status is StepStatus.PENDING:
            if not step.present(registered):
                # A member whose session expired, but whose process still runs, registers with the same id.
                window = replace(self.spec.options.window, duration_s=self.spec.options.restart_timeout_s)
                wait = f"waiting up to {window.duration_s:g} s for it to come back"
                self.progress(f"  {step.member} is not registered: {wait}")
                registered = self._watch_until(window, lambda w: bool(step.present(w.latest.members))).latest.members
            if self.stop():
                return self._stopped(f"stopped on request before {step.member}")
            if not step.present(registered):
                step.status = StepStatus.MEMBER_LEFT
                self.progress(f"  {step.member} has left by itself; the gate at the end checks its successor")
                self._save()
                return None
            step.before = {m.id: m.czxid for m in registered.values()}
        elif not step.present(registered) and not step.workload_members:  # a rollout is repeated: it is idempotent
            self.progress(f"  its command was interrupted, but {step.member} has left: continuing with the gate")
            step.status = StepStatus.RETURNED
            self._save()
            return None
        step.command = self.spec.command_of(step)
        step.status, step.started_ms = StepStatus.RUNNING, self.view.clock.now_ms()
        self._save()
        self.progress(f"  $ {step.command}")

        def started(pid: int) -> None:
            step.pid = pid
            self._save()

        done = run_in_shell(step.command, self.log, self.spec.restart.limit_s, started)
        step.exit_code, step.pid = done.exit_code, None
        step.status = StepStatus.RETURNED if done.exit_code == 0 else StepStatus.COMMAND_FAILED
        self._save()
        if done.exit_code == 0:
            return None
        how = f"killed after {self.spec.restart.limit_s:g} s" if done.timed_out else f"exit code {done.exit_code}"
        return self._failed(
            f"the command for {step.member}: {how}",
            f"its output is in {self.log}; the same command line resumes here{self._undo()}",
        )

    def _is_repeated(self, step: RestartStep) -> bool:
        """Whether the command runs again although it has succeeded: a rollout changes nothing if the workload has the
        settings, and restores them after the way back. A rollout with ``configure`` would restart the members again."""
        restart = self.spec.restart
        return bool(step.workload_members) and restart.kubernetes is not None and restart.configure is None

    def _undo(self) -> str:
        if self.spec.restart.kubernetes is None:
            return ""
        return f"; the way back: {self.spec.restart.undo(self.spec.group, self.state.change.start)}"

    def _pass_gate(self, step: RestartStep) -> BounceResult | None:
        """Waits until the member's successor has registered, then watches the successor's commits. Returns None if the
        gate has passed."""
        if step.status is StepStatus.MEMBER_LEFT:
            return None
        spec = self.spec
        window = replace(spec.options.window, duration_s=spec.options.restart_timeout_s)
        expected = len(step.members)
        stopped = f"stopped on request; {step.member} has been restarted and its gate is not passed yet"
        history = self._watch_until(window, lambda w: len(_successors(w, step)) >= expected)
        if self.stop():
            return self._stopped(stopped)
        if len(_successors(history, step)) < expected:
            return self._failed(
                _missing_successors(history, step, spec.options.restart_timeout_s),
                f"see {self.log} and the member's own log; start it with the phase's settings, then resume"
                + self._undo(),
            )
        self.progress(f"  restarted as {', '.join(_successors(history, step))}; watching its commits")
        report, _ = self._gate(self._rules, step)
        if not report.passed:
            if self.stop():
                return self._stopped(stopped)
            return self._failed(
                f"the gate after {step.member} is closed: {report.missing}",
                "fix the named problems, then resume: the gate is checked again and the command is"
                + (" repeated, which changes nothing by itself" if self._is_repeated(step) else " not repeated"),
                report,
            )
        step.successors = [m.member for m in report.members]
        step.status, step.passed_ms = StepStatus.PASSED, report.ended_ms
        self._save()
        self.progress(f"  gate passed: {'; '.join(f'{m.confidence.value}: {m.why}' for m in report.members)}")
        return None

    @property
    def _rules(self) -> EvidenceThresholds:
        """The evidence that a gate accepts before the offsets are copied, if this bounce copies them."""
        copies_later = self.state.change == CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL)
        return replace(self.spec.options.rules, catch_up_later=copies_later)

    def _gate(self, rules: EvidenceThresholds, step: RestartStep | None = None) -> tuple[PhaseReport, GroupHistory]:
        """Watches the group until further observations cannot change the gate's result, or until the gate can no longer
        pass. With a ``step``, the gate checks only the successors of the restarted member. Returns the result and the
        observations."""

        def assess(history: GroupHistory) -> PhaseReport:
            only = None if step is None else _successors(history, step)
            return assess_phase(history, self.spec.to, baseline=self.state.baseline, rules=rules, only=only)

        def enough(history: GroupHistory) -> bool:
            report = assess(history)
            return report.final or report.cannot_pass

        history = self._watch_until(self.spec.options.window, enough)
        return assess(history), history

    def _watch_until(self, window: ObservationWindow, enough: Callable[[GroupHistory], bool]) -> GroupHistory:
        """Watches the group. Prints the error of an outage once, and tries again until the window is over."""
        shown: set[str] = set()

        def failed(error: OffsetMgrError) -> None:
            if (text := str(error)) not in shown:
                self.progress(f"  {text}; trying again for up to {window.duration_s:g} s")
                shown.add(text)

        window = replace(window, failed=failed, stop=self.stop, tolerant=True)
        return watch_group(self.view, self.spec.group, window, enough=enough)

    def _finish(self) -> BounceResult:
        spec = self.spec
        self.progress(f"gate of the whole group: are all members in phase {spec.to.value}?")
        report, history = self._gate(self._rules)
        # If the gate has passed, all members are in the dual phase. In partitions without traffic, dual members never
        # raise a ZooKeeper offset that is below Kafka's.
        if self._rules.catch_up_later and report.passed and self._copy(history):
            report, _ = self._gate(spec.options.rules)
        if not report.passed:
            if self.stop():
                why = "stopped on request before the last gate was passed"
                return self._stopped(why, report)
            return self._failed(
                f"the gate of the whole group is closed: {report.missing}",
                "fix the named problems, then resume: only the gate is checked again",
                report,
            )
        self.state.finished_ms = self.view.clock.now_ms()
        self.state.finished_members = {m.id: m.czxid for m in history.latest.members.values()}
        self._save()
        return self._result(BounceOutcome.DONE, report)

    def _copy(self, history: GroupHistory) -> list[OffsetCopy]:
        writers = read_writers(self.view, history)
        changes = behind(history, writers)
        for tp, writer in writers.items():
            if tp not in changes and tp not in history.partitions:
                self.progress(f"not copied, because it may be stale: Kafka's offset of {tp} ({writer.why})")
        if not changes:
            return []
        forms = Counter(form_of(c.after.metadata) for c in changes.values() if c.after and c.after.metadata)
        drops = f", which drops {dropped_text(forms)}" if forms else ""
        partitions = count_of(len(changes), "partition")
        self.progress(f"copying Kafka's offsets of {partitions} without traffic to ZooKeeper{drops}")

        def record(copies: list[OffsetCopy]) -> None:
            self.state.copies.extend(copies)
            self._save()

        try:
            return copy_forward(self.view.zookeeper, self.spec.group, changes, record=record)
        finally:
            self._save()

    def _result(
        self, outcome: BounceOutcome, report: PhaseReport | None = None, why: str = "", hint: str = ""
    ) -> BounceResult:
        state = self.state
        return BounceResult(
            outcome, self.spec.group, state.change, tuple(state.steps), tuple(state.copies), report, why, hint
        )

    def _stopped(self, why: str, report: PhaseReport | None = None) -> BounceResult:
        return self._result(BounceOutcome.STOPPED, report, why)

    def _failed(self, why: str, hint: str, report: PhaseReport | None = None) -> BounceResult:
        return self._result(BounceOutcome.FAILED, report, why, hint)


def _successors(history: GroupHistory, step: RestartStep) -> list[str]:
    """Returns the members that have registered since the step's command was started. The result is empty until the old
    registrations of the restarted members have disappeared."""
    members = history.latest.members
    if step.present(members):
        return []
    return sorted(m.id for m in members.values() if step.before.get(m.id) != m.czxid)


def _missing_successors(history: GroupHistory, step: RestartStep, timeout_s: float) -> str:
    """Returns the reason for which the gate of a step cannot be checked."""
    if left := step.present(history.latest.members):
        named = f" ({', '.join(left)})" if step.workload_members else ""
        return f"{step.member} is still registered {timeout_s:g} s after its command{named}"
    if step.workload_members:
        found = len(_successors(history, step))
        return f"{found} of {len(step.members)} members of {step.member} have registered within {timeout_s:g} s"
    return f"no successor of {step.member} has registered within {timeout_s:g} s"
