"""The gates of `finalize`, which check that no member commits to the source alone.

In a migration between ZooKeeper and Kafka the gate watches the old consumers' commits, as `runbook check` does. In
other migrations from Kafka or from a manager, the gate asks the source's coordinator for members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.clock import Clock
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import PERSISTENT_MEMBERS_HINT, GroupDescription
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.phase import Confidence
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.finalize import GroupGate
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, watch_groups
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import PhaseReport, assess_phase
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.zookeeper.groups.registry import GroupMembers


@dataclass(frozen=True, slots=True)
class OldConsumerGate:
    """Gate for migrations between ZooKeeper and Kafka: every live old consumer must commit to the target. All groups of
    one call are watched within one window.

    ``target`` is the phase in which the migration ends (kafka, or zookeeper on the way back). ``exclusive`` means that
    the source's offsets will be deleted, so no member may commit to the source. Without ``exclusive``, members in the
    dual phase pass too.
    """

    view: GroupView
    target: CommitMode
    exclusive: bool
    rules: EvidenceThresholds
    window: ObservationWindow

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        names = {self._name(group): group for group in groups}
        watched = watch_groups(self.view, names, self.window, enough=self._decided)
        for name, group in names.items():
            history = watched[name]
            if isinstance(history, OffsetMgrError):
                yield GroupGate(group.group, False, Confidence.UNKNOWN, f"it cannot be observed: {history}")
            else:
                yield replace(self._gate(group, history), group=group.group)

    def _name(self, plan: GroupPlan) -> str:
        """Returns the group's name in ZooKeeper."""
        return plan.group if self.target is CommitMode.KAFKA else plan.target_group

    def _gate(self, plan: GroupPlan, history: GroupHistory) -> GroupGate:
        name = self._name(plan)
        observation = history.latest
        assert observation is not None  # a window has at least one observation
        if observation.unreadable:
            return GroupGate(
                name, False, Confidence.UNKNOWN, f"ZooKeeper node {observation.unreadable[0]} cannot be read"
            )
        if self.target is CommitMode.ZOOKEEPER and (modern := self._members_in_kafka(plan.group)) is not None:
            return modern
        if not observation.members:
            return GroupGate(name, True, Confidence.SEEN, "no old consumer is registered in ZooKeeper")
        if plan.group != plan.target_group:
            members = ", ".join(sorted(observation.members))
            why = f"the group was renamed, and old consumers are still registered as {name}: {members}"
            return GroupGate(name, False, Confidence.SEEN, why)
        reports = [assess_phase(history, phase, rules=self.rules) for phase in self._phases]
        passed = next((report for report in reports if report.passed), None)
        if passed is not None:
            count = len(passed.members)
            members = "the only member commits" if count == 1 else f"all {count} members commit"
            detail = f"{members} as phase {passed.phase.value} does"
            accepted = _accepted_idle(assess_phase(history, passed.phase, rules=replace(self.rules, accept_idle=False)))
            return GroupGate(name, True, _weakest(passed), detail, accepted=accepted, live=True)
        gate = closed_gate(name, history, reports, self.rules, "--delete-source" if self.exclusive else "")
        persistent = not any(member.session for member in observation.members.values())
        return replace(gate, hint=PERSISTENT_MEMBERS_HINT) if persistent else gate

    def _members_in_kafka(self, group: str) -> GroupGate | None:
        """Returns a closed gate if Kafka's coordinator reports members of the group or cannot be asked; otherwise
        None."""
        gate = _assess_members(group, self.view.cluster.describe_groups([group])[group])
        return None if gate.passed else gate

    @property
    def _phases(self) -> tuple[CommitMode, ...]:
        return (self.target,) if self.exclusive else (self.target, CommitMode.DUAL)

    def _decided(self, history: GroupHistory) -> bool:
        if history.latest is None or not history.latest.members:
            return True
        reports = [assess_phase(history, phase, rules=self.rules) for phase in self._phases]
        return any(report.passed for report in reports) or all(report.final for report in reports)


def _accepted_idle(strict: PhaseReport) -> str:
    """Returns the partitions that pass only with --accept-idle, as text. ``strict`` is the result without this
    option."""
    idle = [str(part.partition) for part in strict.partitions if not part.ok]
    return f"{count_of(len(idle), 'partition')} without traffic (--accept-idle): {list_of(idle, 5)}" if idle else ""


def _weakest(report: PhaseReport) -> Confidence:
    """Returns the confidence of the report, which is the lowest confidence among the results of its members and
    partitions."""
    kinds = {member.confidence for member in report.members} | {part.confidence for part in report.partitions}
    return next((kind for kind in (Confidence.UNKNOWN, Confidence.INFERRED) if kind in kinds), Confidence.SEEN)


def closed_gate(
    name: str,
    history: GroupHistory,
    reports: Sequence[PhaseReport],
    rules: EvidenceThresholds,
    restricting_option: str = "",
) -> GroupGate:
    """Returns a closed gate for a group that is not known to be in an accepted phase. The reason is taken from the
    check of the accepted phase with the fewest failures. If the gate is closed only because of partitions without
    traffic, the reason names these partitions, and the hint names the option that accepts them.

    ``restricting_option`` is the command-line option that excludes all accepted phases but one. It is empty if no
    option excludes a phase.
    """
    nearest = min(reports, key=lambda report: (len(report.wrong), sum(not part.ok for part in report.partitions)))
    phase = f"phase {nearest.phase.value}" + (f" (required by {restricting_option})" if restricting_option else "")
    lenient = assess_phase(history, nearest.phase, rules=replace(rules, accept_idle=True))
    if lenient.passed:
        idle = [str(part.partition) for part in nearest.partitions if not part.ok]
        why = f"no commit of {phase} was seen on {count_of(len(idle), 'partition')} without traffic: {list_of(idle, 5)}"
        return GroupGate(name, False, _weakest(nearest), why, ACCEPT_IDLE)
    wanted = phase if restricting_option else f"phase {' or '.join(report.phase.value for report in reports)}"
    return GroupGate(name, False, _weakest(nearest), f"not seen in {wanted}: {_first_problem(lenient)}")


ACCEPT_IDLE: Final = "pass --accept-idle: nothing can be lost there; or send each of them a message"


def _first_problem(report: PhaseReport) -> str:
    bad = [member for member in report.members if not member.ok]
    worst = next((member for member in bad if member.wrong), bad[0] if bad else None)
    if worst is not None:
        parts = [part for part in report.partitions if part.member == worst.member and not part.ok]
        part = next((part for part in parts if part.confidence is Confidence.SEEN), parts[0] if parts else None)
        if part is None:
            return f"member {worst.member}: {worst.why}" + (f" ({worst.remedy})" if worst.remedy else "")
        return f"member {worst.member}: {part.partition}: {part.why}" + (f" ({part.remedy})" if part.remedy else "")
    if report.problems:
        return report.problems[0]
    part = next((part for part in report.partitions if not part.ok), None)
    return "the phase could not be determined" if part is None else f"{part.partition}: {part.why}"


@dataclass(frozen=True, slots=True)
class CoordinatorGate:
    """Gate for migrations from Kafka or from a manager to a store other than ZooKeeper. The gate passes if the group
    has no members and no offset changes during the window.

    The coordinator reports only group members. It does not report old consumers, nor consumers that assign partitions
    to themselves. Therefore the gate also reads the offsets twice, ``window.duration_s`` apart. If no offset has
    changed between the two reads, the gate infers that no client commits.
    """

    source: OffsetStore
    cluster: Cluster
    window: ObservationWindow
    clock: Clock

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        names = [plan.group for plan in groups]
        before = {found.group: found for found in self.source.scan(names)}
        self.clock.sleep(self.window.duration_s)
        after = {found.group: found for found in self.source.scan(names)}
        for name, described in self.cluster.describe_groups(names).items():
            gate = _assess_members(name, described)
            known = f"{gate.detail}, and no offset changed in {self.window.duration_s:g} s"
            yield gate if not gate.passed else _assess_inactivity(name, before[name], after[name], known)


@dataclass(frozen=True, slots=True)
class InactivityGate:
    """Gate for sources in a ZooKeeper of Kafka 0.7 or of Storm's spouts. The gate passes if no offset changes during
    the window and no member is registered.

    Spouts do not register, so ``members`` is None if the source belongs to spouts. If no offset changes during the
    window, the gate infers that no client commits to the source.
    """

    source: OffsetStore
    members: Callable[[list[str]], Iterator[GroupMembers]] | None
    window: ObservationWindow
    clock: Clock

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        names = [plan.group for plan in groups]
        before = {found.group: found for found in self.source.scan(names)}
        self.clock.sleep(self.window.duration_s)
        after = {found.group: found for found in self.source.scan(names)}
        alive = {found.group: found for found in self.members(names)} if self.members else {}
        known = f"no offset changed in {self.window.duration_s:g} s, and " + (
            "no member is registered in ZooKeeper" if self.members else "spouts do not register"
        )
        for name in names:
            found = alive.get(name, GroupMembers(name))
            if found.error is not None:
                yield GroupGate(name, False, Confidence.UNKNOWN, f"the registered members are unknown: {found.error}")
            elif found.members:
                registered = ", ".join(member.member_id for member in found.members)
                hint = "" if found.live else PERSISTENT_MEMBERS_HINT
                yield GroupGate(name, False, Confidence.SEEN, f"registered in ZooKeeper: {registered}", hint)
            else:
                yield _assess_inactivity(name, before[name], after[name], known)


def _assess_inactivity(name: str, before: GroupOffsets, after: GroupOffsets, known: str) -> GroupGate:
    """Compares two reads of the offsets of a group without known members, and returns the gate of the group. ``known``
    is the text for the gate's ``detail`` if the gate passes."""
    if error := before.error or after.error:
        return GroupGate(name, False, Confidence.UNKNOWN, str(error))
    moved = next((tp for tp, found in after.offsets.items() if before.offsets.get(tp) != found), None)
    if moved is not None:
        return GroupGate(name, False, Confidence.SEEN, f"a client commits to the source: {moved} changed while watched")
    return GroupGate(name, True, Confidence.INFERRED, known)


def _assess_members(name: str, found: GroupDescription | OffsetMgrError) -> GroupGate:
    if isinstance(found, OffsetMgrError):
        return GroupGate(
            name, False, Confidence.UNKNOWN, f"the source's coordinator did not report the members: {found}"
        )
    if not found.membership:
        return GroupGate(name, True, Confidence.SEEN, "the source's brokers (Kafka 0.8.2) have no group members")
    if not found.idle:
        members = "; ".join(str(member) for member in found.members)
        return GroupGate(name, False, Confidence.SEEN, f"active in the source: {members or found.state}")
    return GroupGate(name, True, Confidence.SEEN, "the source's coordinator knows no member")


class NoMembersGate:
    """Gate for sources without consumers, such as files: always open."""

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        for plan in groups:
            yield GroupGate(plan.group, True, Confidence.SEEN, "no member commits to the source")
