"""The gate before the first step of a rolling bounce: which phase the group is in, and whether the change is safe now.

It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, require_safe
from offsetmgr.core.errors import GateRefused, OffsetMgrError
from offsetmgr.core.model import Committed, Offset, TopicPartition
from offsetmgr.migration.evidence import Confidence, EvidenceThresholds, behaviour_of
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, watch_group
from offsetmgr.migration.group_snapshot import Observation, Reading
from offsetmgr.migration.ownership_history import GroupHistory, offset_or
from offsetmgr.migration.phase_inference import InferredPhase, PhaseReport, assess_phase, infer_phase


class GateClosed(GateRefused):
    """A gate that the evidence does not open; ``report`` is that evidence."""

    def __init__(self, what: str, report: PhaseReport) -> None:
        super().__init__(what, missing_evidence(report), "offsetmgr runbook check shows each verdict with its evidence")
        self.report = report


def missing_evidence(report: PhaseReport) -> str:
    """What a closed gate lacks, in one line."""
    lacks = list(report.problems)
    lacks += [f"{m.member}: {m.why}" for m in report.members if not m.ok]
    lacks += [f"{p.partition}: {p.why}" for p in report.partitions if not p.ok and p.member is None]
    if not lacks:
        return "no member was judged"
    return "; ".join(lacks[:3]) + (f"; and {len(lacks) - 3} more" if len(lacks) > 3 else "")


@dataclass(frozen=True, slots=True)
class BounceStart:
    """Where a bounce begins. ``report`` is the dual phase's check where the change begins there."""

    change: CommitModeChange
    watch: GroupHistory
    report: PhaseReport | None = None

    @property
    def seen(self) -> Observation:
        assert self.watch.latest is not None  # a watch begins with an observation
        return self.watch.latest


def find_start(
    view: GroupView,
    group: str,
    to: CommitMode,
    *,
    start: CommitMode | None = None,
    baseline: Observation | None = None,
    rules: EvidenceThresholds | None = None,
    window: ObservationWindow | None = None,
) -> BounceStart:
    """The change that would lead to the phase, with the evidence that it may begin.

    Into the dual phase the stores must not make the larger offset a jump forward; out of it every member must be known
    to be dual (ZooKeeper may be behind where nothing moves: the caller copies that first and checks again).

    Raises `GateRefused` with the reason; `GateClosed` where the evidence falls short.
    """
    rules, window = rules or EvidenceThresholds(), window or ObservationWindow()
    if not view.registry.members(group, view.cluster.topics).members:
        raise GateRefused(
            f"bounce of group {group}",
            "no live member is registered in ZooKeeper, so there is nobody to restart",
            "check its name, and the chroot of --zookeeper; an idle group is moved with `offsetmgr migrate`",
        )
    if start is not None and (start is to or CommitMode.DUAL not in (start, to)):
        seen = view.observe(group)
        require_safe(start, to, zookeeper=_committed(seen.zookeeper), kafka=_committed(seen.kafka))
    if to is CommitMode.DUAL:
        return _into_dual(view, group, start, window)
    return _out_of_dual(view, group, to, baseline, replace(rules, catch_up_later=True), window)


def _into_dual(view: GroupView, group: str, start: CommitMode | None, window: ObservationWindow) -> BounceStart:
    """A refusal that the next commits may take back is made only at the end of the window."""
    if start is not None:
        change = require_safe(start, CommitMode.DUAL)
        watch = watch_group(view, group, window, enough=lambda w: not _jumps(change, w))
    else:
        watch = watch_group(view, group, window, enough=_can_begin)
        change = require_safe(_start_of(infer_phase(watch)), CommitMode.DUAL)
    refuse_offset_jump(change, watch)
    return BounceStart(change, watch)


def _can_begin(watch: GroupHistory) -> bool:
    """Whether the commits seen so far show where a bounce to dual begins, and that it may."""
    found = infer_phase(watch)
    if found.confidence is not Confidence.SEEN:
        return False
    if found.phase is CommitMode.DUAL:  # known of the whole group only when every partition has told
        return all(behaviour_of(track) is not None for track in watch.tracks.values())
    others = found.members - {CommitMode.DUAL}
    return len(others) != 1 or not _jumps(CommitModeChange(next(iter(others)), CommitMode.DUAL), watch)


def _start_of(found: InferredPhase) -> CommitMode:
    """The phase that a bounce to dual leaves; members that are dual already do not matter."""
    if found.phase is not None:
        return found.phase
    others = found.members - {CommitMode.DUAL}
    if len(others) == 1:
        return next(iter(others))
    raise GateRefused(
        "bounce to dual",
        f"the phase that the group is in is not known: {found.why}",
        "a partition with traffic and a longer --window show it; or say it with --from-phase",
    )


def refuse_offset_jump(change: CommitModeChange, watch: GroupHistory) -> None:
    """A dual member reads the larger offset: where the store that is not in use is ahead, it would skip messages."""
    jumps = _jumps(change, watch)
    if jumps:
        used, other = _stores(change)
        more = f"; and {len(jumps) - 3} more" if len(jumps) > 3 else ""
        raise GateRefused(
            f"bounce {change}",
            f"{other} is ahead of {used}, which the group uses, and a dual member reads the larger: the messages"
            f" between would never be consumed ({'; '.join(jumps[:3])}{more})",
            f"if the group was rewound on purpose, delete or lower its {other} offsets first (offsetmgr offsets)",
        )


def _stores(change: CommitModeChange) -> tuple[str, str]:
    """The store that the group uses, and the other one."""
    return ("ZooKeeper", "Kafka") if change.start is CommitMode.ZOOKEEPER else ("Kafka", "ZooKeeper")


def _jumps(change: CommitModeChange, watch: GroupHistory) -> list[str]:
    """The partitions where the store that is not in use is ahead, with both offsets."""
    seen = watch.latest
    if seen is None:
        return []
    used, other = _stores(change)
    jumps: list[str] = []
    for tp in seen.partitions:
        track = watch.tracks.get(tp)
        if track is not None and track.zookeeper.moves and track.kafka.moves:
            continue
        here, there = seen.zookeeper[tp], seen.kafka[tp]
        if change.start is CommitMode.KAFKA:
            here, there = there, here
        if isinstance(there, Committed) and offset_or(here) < there.offset:
            jumps.append(f"{tp}: {used} {offset_or(here)}, {other} {there.offset}".replace(" -1", " no offset"))
    return jumps


def _out_of_dual(
    view: GroupView,
    group: str,
    to: CommitMode,
    baseline: Observation | None,
    rules: EvidenceThresholds,
    window: ObservationWindow,
) -> BounceStart:
    change = CommitModeChange(CommitMode.DUAL, to)

    def report_of(watch: GroupHistory) -> PhaseReport:
        # Members in the target phase already (a bounce that was turned round, or lost its state) are as good as dual.
        return assess_phase(watch, CommitMode.DUAL, baseline=baseline, rules=rules, also=to)

    watch = watch_group(view, group, window, enough=lambda w: report_of(w).settled)
    report, found, seen = report_of(watch), infer_phase(watch), watch.latest
    if found.confidence is Confidence.SEEN and found.phase not in (None, CommitMode.DUAL) and seen is not None:
        require_safe(found.phase, to, zookeeper=_committed(seen.zookeeper), kafka=_committed(seen.kafka))
    if not report.passed:
        raise GateClosed(f"bounce {change}: the gate dual is closed", report)
    return BounceStart(change, watch, report)


def _committed(readings: Mapping[TopicPartition, Reading]) -> dict[TopicPartition, Offset]:
    return {tp: found for tp, found in readings.items() if not isinstance(found, OffsetMgrError)}
