"""Executes a rolling bounce: restarts one member at a time, checks a gate after each restart, and checks the whole
group at the end.

This module defines the order of the steps. The rules for the decisions are in `commit_mode`, `bounce_plan` and
`evidence`. A run that is killed at any point can be resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import GateRefused, OffsetMgrError
from offsetmgr.core.model import dropped_text, form_of
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.apply import behind, copy_forward, read_writers
from offsetmgr.migration.bounce_checkpoint import (
    BounceState,
    OffsetCopy,
    RestartStep,
    StepStatus,
    exclusive,
    resume,
    save,
)
from offsetmgr.migration.bounce_plan import BounceOutcome, BounceResult, BounceSpec, BounceStart, find_start, new_state
from offsetmgr.migration.evidence import EvidenceThresholds, PhaseReport, assess_phase
from offsetmgr.migration.observation import (
    GroupHistory,
    GroupView,
    ObservationWindow,
    RegisteredMember,
    watch_group,
)
from offsetmgr.migration.restart_command import run_in_shell, still_running


def bounce(
    view: GroupView,
    spec: BounceSpec,
    state_path: Path,
    *,
    progress: Callable[[str], None],
    stop: Callable[[], bool],
) -> BounceResult:
    """Executes or resumes the bounce. ``state_path`` is the file with the progress of the bounce. The output of the
    restart commands goes to a log file: its path is ``state_path`` with the suffix ``.log``.

    ``stop`` is called between steps and while a gate is watched. A failed command or a closed gate is reported in the
    result and raises no error. Raises `GateRefused` if the bounce must not begin, and `UsageError` if the state file
    belongs to another bounce.
    """
    spec.check_command()
    log = state_path.with_suffix(".log")
    with exclusive(log):
        state = resume(state_path, spec.group, spec.to, spec.baseline)
        if state is not None:
            view.require_stores(f"state file {state_path}", state.baseline)
        found = None
        if state is None or state.opened_ms is None:
            progress(f"gate before the first step: may group {spec.group} go to {spec.to.value}?")
            found = find_start(view, spec)
            state = new_state(view, spec, found, () if state is None else state.copies)
        run = _BounceRun(view, spec, state, state_path, log, progress, stop)
        if found is not None:
            run.start(found)
        return run.run_steps()


@dataclass(slots=True)
class _BounceRun:
    """One run of `bounce`, with the objects that its steps use."""

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
        self._await_earlier_command(step)
        registered = self._watch_until(self.spec.options.window, lambda _history: True).latest.members
        if step.status is StepStatus.PENDING:
            if not step.present(registered):
                registered = self._await_return(step)
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

    def _await_return(self, step: RestartStep) -> Mapping[str, RegisteredMember]:
        """Waits until a member that has lost its registration registers again. A member whose session expired, but
        whose process still runs, registers with the same id."""
        window = replace(self.spec.options.window, duration_s=self.spec.options.restart_timeout_s)
        self.progress(f"  {step.member} is not registered: waiting up to {window.duration_s:g} s for it to come back")
        return self._watch_until(window, lambda w: bool(step.present(w.latest.members))).latest.members

    def _await_earlier_command(self, step: RestartStep) -> None:
        """If an earlier run was killed but its restart command is still running, waits until the command ends.
        Otherwise the member could be restarted twice."""
        deadline = self.view.clock.monotonic() + self.spec.restart.limit_s
        if step.pid is not None and still_running(step.pid):
            self.progress(f"  the command of an earlier run (process {step.pid}) is still running: waiting for it")
        while step.pid is not None and still_running(step.pid) and self.view.clock.monotonic() < deadline:
            self.view.clock.sleep(self.spec.options.window.poll_s)
        step.pid = None

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
        copies_later = self.state.change == CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL)
        rules = replace(spec.options.rules, catch_up_later=copies_later)
        report, _ = self._gate(rules, step)
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

        window = replace(window, failed=failed)
        return watch_group(self.view, self.spec.group, window, enough=enough, stop=self.stop, tolerant=True)

    def _finish(self) -> BounceResult:
        spec = self.spec
        self.progress(f"gate of the whole group: are all members in phase {spec.to.value}?")
        to_dual_from_kafka = self.state.change == CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL)
        rules = replace(spec.options.rules, catch_up_later=True) if to_dual_from_kafka else spec.options.rules
        report, history = self._gate(rules)
        # If the gate has passed, all members are in the dual phase. In partitions without traffic, dual members never
        # raise a ZooKeeper offset that is below Kafka's.
        if to_dual_from_kafka and report.passed and self._copy(history):
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
