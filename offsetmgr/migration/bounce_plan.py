"""A rolling bounce: its parameters and its result, the gate before its first step, its plan, and the test of its
restart command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, Confidence, Phase, PhaseEvidence, require_safe
from offsetmgr.core.errors import GateRefused, GroupNotFound, OffsetMgrError
from offsetmgr.core.model import Offset, TopicPartition
from offsetmgr.core.plurals import list_of
from offsetmgr.migration.apply import behind, read_writers
from offsetmgr.migration.bounce_checkpoint import (
    BounceState,
    OffsetCopy,
    RestartStep,
    resume,
)
from offsetmgr.migration.evidence import (
    EvidenceThresholds,
    PhaseReport,
    assess_phase,
    behaviour_of,
    infer_phase,
    jumps,
    remedy_of,
    used_and_other_store,
)
from offsetmgr.migration.observation import (
    GroupHistory,
    GroupView,
    Observation,
    ObservationWindow,
    OffsetReadResult,
    watch_group,
)
from offsetmgr.migration.restart_command import (
    Restart,
    fill_template,
    run_in_shell,
)


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


@dataclass(frozen=True, slots=True)
class BounceSpec:
    """The parameters of a bounce. ``options.start`` is the phase in which the bounce starts. If it is None, the phase
    is inferred from the group's commits.

    ``baseline`` has the members to restart; None means the members that are registered now. ``start_baseline`` is the
    baseline of the previous bounce; the gate before this bounce compares the members with ``start_baseline``. If
    ``restart`` has a workload, one command restarts all members. ``recorded`` is the last phase in the journal of the
    plan, if there is one. ``source`` is the phase in which the groups of the plan began. If it is set, a bounce to dual
    from the other end needs ``options.start``, and ``way_back`` is the command line with it.
    """

    group: str
    to: CommitMode
    restart: Restart
    options: BounceOptions
    baseline: Observation | None = None
    start_baseline: Observation | None = None
    recorded: CommitMode | None = None
    source: CommitMode | None = None
    way_back: str = ""

    def host_of(self, member: str, host: str | None) -> str | None:
        """Returns the host of a member: from the hosts of the restart, else ``host``."""
        return self.restart.hosts.get(member, host or "") or None

    def filled(self, template: str, member: str, host: str | None) -> str:
        """Returns the command of a member. Raises any error from `fill_template`."""
        return fill_template(template, group=self.group, member=member, host=host, phase=self.to)

    def command_of(self, step: RestartStep) -> str:
        """Returns the command of a step. Raises any error from `fill_template`."""
        if self.restart.kubernetes is not None:
            return self.restart.rollout(self.group, self.to)
        return self.filled(self.restart.command or "", step.member, self.host_of(step.member, step.host))


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
            "steps": [asdict(step) for step in self.steps],
            "copies": [asdict(copy) for copy in self.copies],
            "report": None if self.report is None else self.report.to_json(),
            "why": self.why,
            "hint": for_command_line(self.hint),
        }


def plan_bounce(view: GroupView, spec: BounceSpec, state_path: Path) -> BounceResult:
    """Returns what a bounce would do now: its commands, and the offsets that it would copy first.

    The function checks the gate before the first step, and writes nothing. If the bounce is already in progress, the
    result is the saved state of the bounce. Raises `GateRefused` if the bounce must not begin, and `UsageError` if the
    template is invalid.
    """
    state, start = open_state(view, spec, state_path)
    copies: tuple[OffsetCopy, ...] = ()
    if start is not None and spec.to is CommitMode.ZOOKEEPER:
        copies = tuple(
            OffsetCopy(tp.topic, tp.partition, None, c.after.offset)
            for tp, c in sorted(behind(start.history, read_writers(view, start.history)).items())
            if c.after is not None
        )
    for step in state.steps:
        step.command = step.command or spec.command_of(step)
    report = None if start is None else start.report
    return BounceResult(BounceOutcome.PLANNED, spec.group, state.change, tuple(state.steps), copies, report)


class GateClosed(GateRefused):
    """A gate stays closed because evidence is missing; ``report`` has the results."""

    def __init__(self, what: str, report: PhaseReport) -> None:
        hint = Advice("{} shows each result with its evidence", Invocation("runbook check"))
        super().__init__(what, report.missing, hint)
        self.report = report


class UnrequestedReturn(GateRefused):
    """A bounce to dual would take the group back towards the source of its plan, and the caller has not named the
    phase in which it starts."""


@dataclass(frozen=True, slots=True)
class BounceStart:
    """The phase change that a bounce makes, and the observations of the group before the bounce. If the bounce starts
    in the dual phase, ``report`` is the result of the check of this phase."""

    change: CommitModeChange
    history: GroupHistory
    report: PhaseReport | None = None


def find_start(view: GroupView, spec: BounceSpec) -> BounceStart:
    """Returns the change of a bounce, with the evidence that the change may begin.

    A change to the dual phase may begin only if no offset in the unused store is ahead, because a dual member starts
    from the larger offset and would skip messages. A change from the dual phase may begin only if every member is known
    to be dual. (ZooKeeper may be behind Kafka in partitions without traffic, because the caller copies Kafka's offsets
    of these partitions and checks again.)

    Raises `GateRefused` with the reason; `GateClosed` if the evidence is insufficient, and `UnrequestedReturn`.
    """
    group, start, to = spec.group, spec.options.start, spec.to
    if not view.members(group):
        raise GateRefused(
            f"bounce of group {group}",
            "no live member is registered in ZooKeeper, so there is no member to restart",
            Advice("check its name, and the chroot of {zookeeper}; to move an idle group, use `offsetmgr migrate`"),
        )
    if start is not None and (start is to or CommitMode.DUAL not in (start, to)):
        observation = view.observe(group)
        require_safe(start, to, zookeeper=_committed(observation.zookeeper), kafka=_committed(observation.kafka))
    if to is not CommitMode.DUAL:
        return _check_change_from_dual(view, spec)
    # A change to dual is refused only at the end of the window, because further commits may change the result.
    if start is not None:
        change = require_safe(start, CommitMode.DUAL)
        history = watch_group(view, group, spec.options.window, enough=lambda w: not jumps(change, w))
    else:
        history = watch_group(view, group, spec.options.window, enough=_can_begin)
        change = require_safe(_start_of(infer_phase(history)), CommitMode.DUAL)
    _reject_jumps(change, history)
    present = change.start
    if start is None and spec.source not in (None, present):
        raise UnrequestedReturn(
            f"bounce {change}",
            f"group {group} is in phase {present.value} already, so a bounce to dual would take it back",
            Advice("to take it back, name its phase with {from_phase}: {}", spec.way_back),
        )
    return BounceStart(change, history)


def _reject_jumps(change: CommitModeChange, history: GroupHistory) -> None:
    """Raises `GateRefused` if the unused store is ahead before a change to the dual phase, because a dual member would
    read the larger offset and skip messages."""
    if ahead := jumps(change, history):
        used, other = used_and_other_store(change)
        texts = [
            f"{tp}: {used} {'no offset' if current is None else current}, {other} {larger}"
            for tp, (current, larger) in ahead.items()
        ]
        raise GateRefused(
            f"bounce {change}",
            f"{other} is ahead of {used}, which the group uses, and a dual member reads the larger: the messages"
            f" between them would never be consumed ({list_of(texts, 3, '; ')})",
            f"if the group was rewound on purpose, delete or lower its {other} offsets first (offsetmgr offsets)",
        )


def _can_begin(history: GroupHistory) -> bool:
    """Returns whether the commits observed so far prove the current phase and show that the bounce may begin."""
    found = infer_phase(history)
    if found.confidence is not Confidence.SEEN:
        return False
    if found.phase is Phase.DUAL:  # the phase is proved only if every partition has evidence
        return all(behaviour_of(partition) is not None for partition in history.partitions.values())
    others = found.members - {CommitMode.DUAL}
    return len(others) != 1 or not jumps(CommitModeChange(next(iter(others)), CommitMode.DUAL), history)


def _start_of(found: PhaseEvidence) -> CommitMode:
    """Returns the phase from which a bounce to dual starts. Members that are already dual are ignored."""
    if (mode := found.phase.mode) is not None:
        return mode
    others = found.members - {CommitMode.DUAL}
    if len(others) == 1:
        return next(iter(others))
    raise GateRefused(
        "bounce to dual",
        f"the group's current phase is unknown: {found.why}",
        remedy_of(found)
        or Advice("use a longer {window} and a partition with traffic, or give the phase with {from_phase}"),
    )


def _check_change_from_dual(view: GroupView, spec: BounceSpec) -> BounceStart:
    to, rules = spec.to, replace(spec.options.rules, catch_up_later=True)
    change = CommitModeChange(CommitMode.DUAL, to)

    def report_of(history: GroupHistory) -> PhaseReport:
        # If an earlier bounce was reversed or lost its state file, members may already be in the target phase.
        return assess_phase(history, CommitMode.DUAL, baseline=spec.start_baseline, rules=rules, also=to)

    history = watch_group(view, spec.group, spec.options.window, enough=lambda w: report_of(w).final)
    report, found, observation = report_of(history), infer_phase(history), history.latest
    mode = found.phase.mode if found.confidence is Confidence.SEEN else None
    if mode not in (None, CommitMode.DUAL):
        require_safe(mode, to, zookeeper=_committed(observation.zookeeper), kafka=_committed(observation.kafka))
    if not report.passed:
        raise GateClosed(f"bounce {change}: the gate of phase dual is closed", report)
    return BounceStart(change, history, report)


def _committed(readings: Mapping[TopicPartition, OffsetReadResult]) -> dict[TopicPartition, Offset]:
    return {tp: found for tp, found in readings.items() if not isinstance(found, OffsetMgrError)}


def open_state(
    view: GroupView, spec: BounceSpec, path: Path, progress: Callable[[str], None] = lambda _text: None
) -> tuple[BounceState, BounceStart | None]:
    """Returns the saved state of a bounce, or a new one with the evidence that the bounce may begin. Raises the errors
    of `resume` and `find_start`, and `OtherCluster`."""
    saved = resume(path, spec.group, spec.to, spec.baseline)
    if saved is not None:
        view.require_stores(f"state file {path}", saved.baseline)
        if saved.opened_ms is not None:
            return saved, None
    progress(f"gate before the first step: may group {spec.group} go to {spec.to.value}?")
    start = find_start(view, spec)
    return _new_state(view, spec, start, saved.copies if saved is not None else ()), start


def _new_state(view: GroupView, spec: BounceSpec, start: BounceStart, copied: Iterable[OffsetCopy]) -> BounceState:
    """Returns a new state with one step for each live member of the baseline, or one step for a workload with all of
    them. A live member that is not in the baseline gets no step, because it has already been restarted. ``copied`` are
    the offsets that an earlier run has copied."""
    baseline = replace(spec.baseline or start.history.latest, stores=view.store_ids())
    live = start.history.latest.members
    members = [live[name] for name in sorted(live) if name in baseline.members]
    if (workload := spec.restart.kubernetes) is not None:
        names = [m.id for m in members]
        steps = [RestartStep(workload, None, 0, workload_members=names)] if names else []
    else:
        steps = [RestartStep(m.id, spec.host_of(m.id, m.host), m.czxid) for m in members]
    return BounceState(spec.group, start.change, baseline, steps, list(copied))


class CommandTest(NamedTuple):
    """The test of one member: the command, its result as text ("ok", or the reason for the failure), and its run time
    in seconds, rounded to tenths."""

    group: str
    member: str
    host: str | None
    command: str
    status: str
    seconds: float


def run_command_tests(view: GroupView, spec: BounceSpec, log: Path) -> Iterator[CommandTest]:
    """Runs the test of the restart for each live member of the group, or of the baseline, and yields each result.
    Members with the same command share one run. A restart command is filled in too, so that an invalid one is found.

    Raises `GroupNotFound` if no member is alive, and any error from `fill_template`.
    """
    live = view.members(spec.group)
    members = [m for _, m in sorted(live.items()) if spec.baseline is None or m.id in spec.baseline.members]
    if not members:
        raise GroupNotFound(f"group {spec.group}", "no live member of it is registered in ZooKeeper")
    done: dict[str, tuple[str, float]] = {}
    for member in members:
        host = spec.host_of(member.id, member.host)
        command = spec.filled(spec.restart.test_command or "", member.id, host)
        if spec.restart.command:
            spec.filled(spec.restart.command, member.id, host)
        if command not in done:
            began = view.clock.monotonic()
            result = run_in_shell(command, log, spec.restart.limit_s)
            done[command] = (result.status, round(view.clock.monotonic() - began, 1))
        yield CommandTest(spec.group, member.id, host, command, *done[command])
