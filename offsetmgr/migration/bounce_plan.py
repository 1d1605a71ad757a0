"""The plan and the result of a rolling bounce, and the test of its restart command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from offsetmgr.core.advice import Advice, for_command_line
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.migration.apply import behind, read_writers
from offsetmgr.migration.bounce_checkpoint import (
    BounceState,
    OffsetCopy,
    RestartStep,
    resume,
)
from offsetmgr.migration.evidence import EvidenceThresholds, PhaseReport
from offsetmgr.migration.observation import GroupView, Observation, ObservationWindow
from offsetmgr.migration.precheck import BounceStart, find_start
from offsetmgr.migration.restart_command import (
    CommandResult,
    Rollout,
    check_template,
    fill_template,
    run_in_shell,
)


@dataclass(frozen=True, slots=True)
class BounceSpec:
    """The parameters of a bounce. ``start`` is the phase in which the bounce starts. If it is None, the phase is
    inferred from the group's commits.

    ``baseline`` has the members to restart; None means the members that are registered now. ``start_baseline`` is the
    baseline of the previous bounce; the gate before this bounce compares the members with ``start_baseline``. ``hosts``
    maps member ids to hosts, for members whose id does not contain the host. ``window`` limits the time for which each
    gate is watched. ``restart_timeout_s`` limits the time in which a restarted member must register again.
    ``command_timeout_s`` limits the run time of the command. With ``rollout``, one command restarts all members, and
    ``command`` is not used. ``recorded`` is the last phase in the journal of the plan, if there is one. ``source`` is
    the phase in which the groups of the plan began. If it is set, a bounce to dual from the other end needs ``start``,
    and ``way_back`` is the command line with it.
    """

    group: str
    to: CommitMode
    command: str = ""
    start: CommitMode | None = None
    baseline: Observation | None = None
    start_baseline: Observation | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    rules: EvidenceThresholds = field(default_factory=EvidenceThresholds)
    window: ObservationWindow = field(default_factory=ObservationWindow)
    restart_timeout_s: float = 120.0
    command_timeout_s: float = 600.0
    rollout: Rollout | None = None
    recorded: CommitMode | None = None
    source: CommitMode | None = None
    way_back: str = ""

    def check_command(self) -> None:
        """Raises `UsageError` if the template of the restart command does not name the member."""
        if self.rollout is None:
            check_template(self.command)

    def host_of(self, member: str, host: str | None) -> str | None:
        """Returns the host of a member: from ``hosts``, else ``host``."""
        return self.hosts.get(member, host or "") or None

    def command_of(self, step: RestartStep) -> str:
        """Returns the command of a step. Raises any error from `fill_template`."""
        if self.rollout is not None:
            return self.rollout.command(self.group, self.to)
        host = self.host_of(step.member, step.host)
        return fill_template(self.command, group=self.group, member=step.member, host=host, phase=self.to)


class BounceOutcome(Enum):
    PLANNED = "planned"
    """Dry run: nothing was executed."""
    DONE = "done"
    STOPPED = "stopped"
    """Stopped on request; the same call resumes the bounce."""
    FAILED = "failed"
    """A command failed or a gate stayed closed. The same call resumes the bounce at this command or gate."""


@dataclass(frozen=True, slots=True)
class BounceResult:
    """The result of a bounce. ``report`` is the last gate's evidence; ``why`` and ``hint`` are for the operator."""

    outcome: BounceOutcome
    group: str
    change: CommitModeChange
    steps: tuple[RestartStep, ...]
    copies: tuple[OffsetCopy, ...] = ()
    report: PhaseReport | None = None
    why: str = ""
    hint: str = ""

    @property
    def is_planned(self) -> bool:
        """Whether nothing was executed."""
        return self.outcome is BounceOutcome.PLANNED

    def lines(self) -> Iterator[str]:
        """Yields the lines about the gate, the copies and the outcome."""
        yield from self.report.lines() if self.report is not None else ()
        for copy in self.copies:
            before = "no offset" if copy.before is None else copy.before
            yield f"copy to ZooKeeper: {copy.topic}-{copy.partition} {before} -> {copy.after}: {copy.outcome}"
        why = f": {self.why}" if self.why else ""
        yield f"bounce {self.change} of group {self.group}: {self.outcome.value}{why}"
        if self.hint:
            yield Advice("hint: {}", self.hint)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as plain JSON values."""
        return {
            "outcome": self.outcome.value,
            "group": self.group,
            "from_phase": self.change.start.value,
            "to_phase": self.change.to.value,
            "steps": [step.to_json() for step in self.steps],
            "copies": [asdict(copy) for copy in self.copies],
            "report": None if self.report is None else self.report.to_json(),
            "why": self.why,
            "hint": for_command_line(self.hint),
        }


def plan_bounce(view: GroupView, spec: BounceSpec, state_path: Path) -> BounceResult:
    """Returns what `bounce` would do now: its commands, and the offsets that it would copy first.

    The function checks the gate before the first step, and writes nothing. If the bounce is already in progress, the
    result is the saved state of the bounce. Raises `GateRefused` if the bounce must not begin, and `UsageError` if the
    template is invalid.
    """
    spec.check_command()
    state = resume(state_path, spec.group, spec.to, spec.baseline)
    copies: tuple[OffsetCopy, ...] = ()
    report = None
    if state is not None:
        view.require_stores(f"state file {state_path}", state.baseline)
    if state is None or state.opened_ms is None:
        start = find_start(view, spec)
        state, report = _new_state(view, spec, start), start.report
        if spec.to is CommitMode.ZOOKEEPER:
            copies = tuple(
                OffsetCopy(tp.topic, tp.partition, None, c.after.offset)
                for tp, c in sorted(behind(start.history, read_writers(view, start.history)).items())
                if c.after is not None
            )
    for step in state.steps:
        step.command = step.command or spec.command_of(step)
    return BounceResult(BounceOutcome.PLANNED, spec.group, state.change, tuple(state.steps), copies, report)


def _new_state(view: GroupView, spec: BounceSpec, start: BounceStart) -> BounceState:
    """Returns a new state with one step for each live member of the baseline, or one step for a workload with all of
    them. A live member that is not in the baseline gets no step, because it has already been restarted."""
    baseline = replace(spec.baseline or start.observation, stores=view.store_ids())
    live = start.observation.members
    members = [live[name] for name in sorted(live) if name in baseline.members]
    if spec.rollout is not None:
        names = [m.id for m in members]
        steps = [RestartStep(spec.rollout.workload, None, 0, workload_members=names)] if names else []
    else:
        steps = [RestartStep(m.id, spec.host_of(m.id, m.host), m.czxid) for m in members]
    return BounceState(spec.group, start.change, baseline, steps)


@dataclass(frozen=True, slots=True)
class CommandTest:
    """The test of one member: the command, its result and its run time."""

    group: str
    member: str
    host: str | None
    command: str
    result: CommandResult
    duration_s: float

    @property
    def seconds(self) -> float:
        """The run time in seconds, rounded to tenths."""
        return round(self.duration_s, 1)

    @property
    def status(self) -> str:
        """``ok``, or the reason for the failure."""
        if self.result.timed_out:
            return "failed (timeout)"
        return f"failed (exit code {self.result.exit_code})" if self.result.exit_code else "ok"


def run_command_tests(view: GroupView, spec: BounceSpec, template: str, log: Path) -> Iterator[CommandTest]:
    """Runs the template for each live member of the group, or of the baseline, and yields each result. Members with the
    same command share one run. If the specification has a restart command, it is filled in too, so that an invalid one
    is found.

    Raises `GroupNotFound` if no member is alive, and any error from `fill_template`.
    """
    live = view.members(spec.group)
    members = [m for _, m in sorted(live.items()) if spec.baseline is None or m.id in spec.baseline.members]
    if not members:
        raise GroupNotFound(f"group {spec.group}", "no live member of it is registered in ZooKeeper")
    done: dict[str, tuple[CommandResult, float]] = {}
    for member in members:
        host = spec.host_of(member.id, member.host)
        command = fill_template(template, group=spec.group, member=member.id, host=host, phase=spec.to)
        if spec.command:
            fill_template(spec.command, group=spec.group, member=member.id, host=host, phase=spec.to)
        if command not in done:
            began = view.clock.monotonic()
            result = run_in_shell(command, log, spec.command_timeout_s)
            done[command] = (result, view.clock.monotonic() - began)
        yield CommandTest(spec.group, member.id, host, command, *done[command])
