"""The gate before the first step of a rolling bounce: determines the group's phase, and whether the change is safe now.

The check only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, Confidence, Phase, PhaseEvidence, require_safe
from offsetmgr.core.errors import GateRefused, OffsetMgrError
from offsetmgr.core.model import Offset, TopicPartition
from offsetmgr.core.plurals import list_of
from offsetmgr.migration.evidence import PhaseReport, assess_phase, behaviour_of, infer_phase
from offsetmgr.migration.observation import (
    GroupHistory,
    GroupView,
    Observation,
    ObservationWindow,
    OffsetReadResult,
    watch_group,
)
from offsetmgr.stores.dual_policy import partitions_ahead

if TYPE_CHECKING:
    from offsetmgr.migration.bounce_plan import BounceSpec


class GateClosed(GateRefused):
    """A gate stays closed because evidence is missing; ``report`` has the results."""

    def __init__(self, what: str, report: PhaseReport) -> None:
        super().__init__(what, missing_evidence(report), "offsetmgr runbook check shows each result with its evidence")
        self.report = report


class UnrequestedReturn(GateRefused):
    """A bounce to dual would take the group back towards the source of its plan, and the caller has not named the
    phase in which it starts."""


def missing_evidence(report: PhaseReport) -> str:
    """Returns the evidence that a closed gate lacks, in one line."""
    lacks = list(report.problems)
    lacks += [f"{m.member}: {m.why}" for m in report.members if not m.ok]
    lacks += [f"{p.partition}: {p.why}" for p in report.partitions if not p.ok and p.member is None]
    if not lacks:
        return "no member was checked"
    return list_of(lacks, 3, "; ")


@dataclass(frozen=True, slots=True)
class BounceStart:
    """The phase change that a bounce makes, and the observations of the group before the bounce. If the bounce starts
    in the dual phase, ``report`` is the result of the check of this phase."""

    change: CommitModeChange
    history: GroupHistory
    report: PhaseReport | None = None

    @property
    def observation(self) -> Observation:
        assert self.history.latest is not None  # a history begins with an observation
        return self.history.latest


def find_start(view: GroupView, spec: BounceSpec) -> BounceStart:
    """Returns the change of a bounce, with the evidence that the change may begin.

    A change to the dual phase may begin only if no offset in the unused store is ahead, because a dual member starts
    from the larger offset and would skip messages. A change from the dual phase may begin only if every member is known
    to be dual. (ZooKeeper may be behind Kafka in partitions without traffic, because the caller copies Kafka's offsets
    of these partitions and checks again.)

    Raises `GateRefused` with the reason; `GateClosed` if the evidence is insufficient, and `UnrequestedReturn`.
    """
    group, start, to = spec.group, spec.start, spec.to
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
    found = _check_change_to_dual(view, group, start, spec.window)
    present = found.change.start
    if start is None and spec.source not in (None, present):
        raise UnrequestedReturn(
            f"bounce {found.change}",
            f"group {group} is in phase {present.value} already, so a bounce to dual would take it back",
            Advice("to take it back, name its phase with {from_phase}: {}", spec.way_back),
        )
    return found


def _check_change_to_dual(
    view: GroupView, group: str, start: CommitMode | None, window: ObservationWindow
) -> BounceStart:
    """Checks a change to the dual phase. The change is refused only at the end of the window, because further commits
    may change the result. If the unused store is ahead, a dual member would read the larger offset and skip
    messages."""
    if start is not None:
        change = require_safe(start, CommitMode.DUAL)
        history = watch_group(view, group, window, enough=lambda w: not jumps(change, w))
    else:
        history = watch_group(view, group, window, enough=_can_begin)
        change = require_safe(_start_of(infer_phase(history)), CommitMode.DUAL)
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
    return BounceStart(change, history)


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
        Advice("use a longer {window} and a partition with traffic, or give the phase with {from_phase}"),
    )


def used_and_other_store(change: CommitModeChange) -> tuple[str, str]:
    """Returns the name of the store that the group uses before a change into dual, and the name of the other store."""
    return ("ZooKeeper", "Kafka") if change.start is CommitMode.ZOOKEEPER else ("Kafka", "ZooKeeper")


def jumps(change: CommitModeChange, history: GroupHistory) -> Mapping[TopicPartition, tuple[int | None, int]]:
    """Returns the partitions in which the unused store is ahead before a change into dual, with the offset of the used
    store and the larger one. A partition whose owner commits to both stores is none of them."""
    observation = history.latest
    if observation is None or change.start is CommitMode.DUAL:
        return {}
    in_use, unused = observation.zookeeper, observation.kafka
    if change.start is CommitMode.KAFKA:
        in_use, unused = unused, in_use
    partitions = history.partitions
    compared = {
        tp: unused[tp]
        for tp in observation.partitions
        if tp in unused
        and (tp not in partitions or not (partitions[tp].zookeeper.changes and partitions[tp].kafka.changes))
    }
    return partitions_ahead(in_use, compared)


def _check_change_from_dual(view: GroupView, spec: BounceSpec) -> BounceStart:
    to, rules = spec.to, replace(spec.rules, catch_up_later=True)
    change = CommitModeChange(CommitMode.DUAL, to)

    def report_of(history: GroupHistory) -> PhaseReport:
        # If an earlier bounce was reversed or lost its state file, members may already be in the target phase.
        return assess_phase(history, CommitMode.DUAL, baseline=spec.start_baseline, rules=rules, also=to)

    history = watch_group(view, spec.group, spec.window, enough=lambda w: report_of(w).final)
    report, found, observation = report_of(history), infer_phase(history), history.latest
    mode = found.phase.mode if found.confidence is Confidence.SEEN else None
    if mode not in (None, CommitMode.DUAL) and observation is not None:
        require_safe(mode, to, zookeeper=_committed(observation.zookeeper), kafka=_committed(observation.kafka))
    if not report.passed:
        raise GateClosed(f"bounce {change}: the gate of phase dual is closed", report)
    return BounceStart(change, history, report)


def _committed(readings: Mapping[TopicPartition, OffsetReadResult]) -> dict[TopicPartition, Offset]:
    return {tp: found for tp, found in readings.items() if not isinstance(found, OffsetMgrError)}
