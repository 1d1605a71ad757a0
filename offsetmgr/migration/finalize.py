"""Finalizes a migration: checks the gates, records the end, and on request deletes the source's offsets.

After the cutover, restoring the before-images would rewind the groups, so a finalized plan cannot be rolled back.
Therefore finalizing requires two kinds of evidence: a new verification in which every partition passes, and for each
group the result of a check for members that commit to the source alone. The result names its evidence: seen, inferred,
or accepted by an option of the user. A single group passes or fails by itself, and does not hold up the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.commit_mode import CommitMode, Confidence
from offsetmgr.core.document import time_text
from offsetmgr.core.errors import GateRefused, JournalError, OffsetMgrError, UsageError
from offsetmgr.core.model import PERSISTENT_MEMBERS_HINT, GroupDescription
from offsetmgr.core.offset_store import Guard, OffsetStore
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.groups.edits import unseen
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.migration.evidence import (
    EvidenceThresholds,
    MemberEvidence,
    PartitionEvidence,
    PhaseReport,
    assess_phase,
)
from offsetmgr.migration.journaled_writer import GroupWrite, JournaledWriter, Report, late_deletion, read_batches
from offsetmgr.migration.observation import GroupHistory, GroupView, ObservationWindow, watch_groups
from offsetmgr.migration.plan import Action, GroupPlan, PlanFile, PlanStep
from offsetmgr.migration.progress import Journal, MigrationState, blocked_record
from offsetmgr.migration.verify import MigrationVerifier, PartitionResult, Status
from offsetmgr.stores.uri import scheme_of
from offsetmgr.zookeeper.groups.registry import GroupMembers, members_many

if TYPE_CHECKING:
    from offsetmgr.stores.zookeeper import ZookeeperStore

_NAMED: Final = 3
"""The number of partitions and groups that an error names."""
_BOUNCE_FIRST: Final = "bounce them first: see offsetmgr runbook"


@dataclass(frozen=True, slots=True)
class GroupGate:
    """The result of one group's gate, which checks whether a member of the group commits to the source alone.

    ``group`` is the group's name in the plan's source. ``passed`` is True if the check found no member that commits to
    the source alone. ``detail`` is what was checked, and ``evidence`` how sure the result is.
    """

    group: str
    passed: bool
    evidence: Confidence
    detail: str
    hint: str = ""
    """The action with which the operator can open the gate. Empty if the action is a rolling bounce."""
    accepted: str = ""
    """The partitions that an option of the user accepted without evidence, as text; empty if there are none."""
    live: bool = False
    """Whether members of the group commit to the target, so that its offsets do not expire."""


FinalizeGate: TypeAlias = Callable[[list[GroupPlan]], Iterator[GroupGate]]
"""Checks whether groups have members that commit to the source alone. Yields one result for each group, in any
order."""


@dataclass(slots=True)
class FinalizeReport:
    """The result of `Finalization`.

    ``gates`` are those of the groups that were finalized now, ``earlier`` the groups that an earlier run had finalized,
    and ``blocked`` the groups that did not pass, each with the reason. ``verified`` counts the partitions that passed.
    ``left_out`` counts the partitions whose failure the caller accepted. ``deleted`` is the report of the deletion, or
    None if no deletion was requested. ``kept`` names the offsets that stay in the source, each with the reason.
    ``finalized_at`` is the time at which an earlier run finalized the whole plan.
    """

    verified: int = 0
    left_out: int = 0
    gates: list[GroupGate] = field(default_factory=list)
    deleted: Report | None = None
    kept: tuple[str, ...] = ()
    earlier: list[str] = field(default_factory=list)
    blocked: dict[str, GateRefused] = field(default_factory=dict)
    finalized_at: int | None = None
    by_group: bool = False
    """Whether each group passed or failed by itself."""
    late: str = ""
    """A warning if the source does not delete offsets at once."""

    @property
    def ok(self) -> bool:
        """Whether every group passed, and no offset to delete was left in the source."""
        return not (self.blocked or self.kept) and (self.deleted is None or self.deleted.ok)

    def lines(self) -> Iterator[str]:
        """Describes the groups that were finalized, and those that were not."""
        if self.finalized_at is not None:
            yield f"finalized already, on {time_text(self.finalized_at)}"
            return
        yield from (f"  {name}: finalized already" for name in self.earlier[:SHOWN])
        for gate in self.gates[:SHOWN]:
            text = "  {}: {} ({}); accepted: {}" if gate.accepted else "  {}: {} ({})"
            yield Advice(text, gate.group, gate.detail, gate.evidence, gate.accepted)
        if len(self.gates) > SHOWN:
            more = count_of(len(self.gates) - SHOWN, "more group")
            yield f"  ... and {more}; the journal holds the evidence of each"
        for group, error in islice(self.blocked.items(), SHOWN):
            yield Advice("  ! {}: {} ({})" if error.hint else "  ! {}: {}", group, error.why, error.hint)
        groups = f"{count_of(len(self.gates), 'group')}, " if self.by_group else ""
        left = f", {self.left_out} left out because the plan refused them" if self.left_out else ""
        verified = f"finalized: {groups}{count_of(self.verified, 'partition')} verified{left}"
        yield Advice("{}; {}", verified, self._members()) if self.gates or not self.by_group else verified
        if self.blocked:
            yield f"NOT finalized: {count_of(len(self.blocked), 'group')}; the journal has the reasons (migrate status)"

    def _members(self) -> str:
        """Returns the evidence with which the check of the members passed, for all groups."""
        found = Counter(gate.evidence.value for gate in self.gates)
        passed = ", ".join(f"{name} for {count_of(n, 'group')}" for name, n in sorted(found.items(), reverse=True))
        text = f"no member found that commits to the source alone ({passed}"
        if not (accepted := sum(bool(gate.accepted) for gate in self.gates)):
            return f"{text})"
        groups = count_of(accepted, "group")
        return Advice("{}, with partitions accepted by {accept_idle} in {})", text, groups)


class _Checks:
    """The verification of the partitions, by group, or of the ``whole`` plan under the name "": the numbers that passed
    and that the caller accepted, the numbers of failures by status, and the first three failures."""

    def __init__(self, verifier: MigrationVerifier, accept: Collection[Status], *, whole: bool = False) -> None:
        self._plan = verifier.plan.path
        self.verified, self.left_out = Counter[str](), Counter[str]()
        self._failed = defaultdict[str, Counter[Status]](Counter)
        self._first = defaultdict[str, list[PartitionResult]](list)
        groups = verifier.plan.groups_of(verifier.only)
        steps = ((group.name, step) for group in groups for step in group.steps if step.is_translated)
        planned = {(group, step.tp): step.source.offset for group, step in steps if step.source is not None}
        for result in verifier.results():
            name = "" if whole else result.group
            position = planned.get((result.group, result.tp)) if result.tp else None
            if result.status.ok and position is not None and result.source not in (None, position):
                detail = f"the source moved from {position} to {result.source} after the plan, as on the way back"
                result = result._replace(status=Status.SOURCE_AHEAD, detail=detail)  # noqa: PLW2901
            if result.status.ok:
                self.verified[name] += 1
            elif result.status in accept:
                self.left_out[name] += 1
            else:
                self._failed[name][result.status] += 1
                self._first[name] += [result] if len(self._first[name]) < _NAMED else []

    def refusal(self, name: str) -> GateRefused | None:
        """Returns the error of partitions that do not verify."""
        what, number = f"finalize {name}".rstrip(), self._failed[name].total()
        total = self.verified[name] + self.left_out[name] + number
        if not number:
            return None if total else GateRefused(what, "there are no partitions to verify")
        named = Advice.joined(
            Advice("{}: {}", f"{'' if name else one.group} {one.tp or ''} {one.status}".strip(), one.detail)
            for one in self._first[name]
        )
        why = Advice("{} of {} do not verify ({})", number, count_of(total, "partition"), named)
        return GateRefused(what, why, _failure_hint(set(self._failed[name]), self._plan))


@dataclass(slots=True)
class Finalization:
    """Finalizes a plan. With ``remover`` (an executor over the source store), also deletes the source's offsets.

    For each group, the gate is checked again just before the source's offsets are deleted. An offset of the source is
    deleted only if the target's offset for the partition is not behind it. A group that may have unseen offsets in the
    source keeps all its offsets there, unless ``accept_unseen``: they are not in the plan. If a run was interrupted
    during the deletion, the next run continues the deletion. ``accept`` are the statuses of partitions that the caller
    accepts.
    """

    verifier: MigrationVerifier
    state: MigrationState
    journal: Journal
    gate: FinalizeGate
    remover: JournaledWriter | None = None
    accept: Collection[Status] = ()
    accept_unseen: bool = False

    def run(self) -> FinalizeReport:
        """Finalizes the whole plan, which passes or fails, or each of the groups of ``verifier.only`` by itself.

        Raises `JournalError` if the plan was rolled back, and any error of a whole store. For the whole plan, also
        raises `GateRefused` if a check fails, and `JournalError` if the plan was not applied completely.
        """
        self.state.reject_ended(self.verifier.plan.path, finalized=False)
        if self.verifier.only is None:
            return self._finalize_plan()
        return self._finalize_groups(FinalizeReport(by_group=True))

    def _finalize_plan(self) -> FinalizeReport:
        path, state = self.verifier.plan.path, self.state
        if not (state.apply.complete or all(map(state.is_applied, self.verifier.plan.groups()))):
            hint = Advice("run: {}", Invocation("migrate apply", (str(path),)))
            raise JournalError(f"plan {path}", "it was not applied completely", hint)
        report = FinalizeReport(finalized_at=state.finalized_at)
        if state.finalized_at is None:
            self._check_plan(report)
            evidence = [[g.group, g.evidence.value, for_command_line(g.detail)] for g in report.gates]
            counts = {"verified": report.verified, "left_out": report.left_out, "gates": evidence}
            self.journal.append([{"kind": "finalized", **counts}])
        self._delete(report, self.verifier)
        return report

    def _check_plan(self, report: FinalizeReport) -> None:
        """Verifies every partition, and checks every gate. Raises `GateRefused` with the first failed partitions or
        closed gates."""
        checks = _Checks(self.verifier, self.accept, whole=True)
        if refusal := checks.refusal(""):
            raise refusal
        report.verified, report.left_out = checks.verified[""], checks.left_out[""]
        # A group that could not be planned was not migrated, so the gate does not check its members.
        planned = (group for group in self.verifier.plan.groups() if not group.error)
        report.gates = [found for batch in read_batches(planned) for found in self.gate(batch)]
        if closed := [found for found in report.gates if not found.passed]:
            named = Advice.joined(Advice("{}: {}", found.group, found.detail) for found in closed[:_NAMED])
            number = f"{len(closed)} of {count_of(len(report.gates), 'group')}"
            why = Advice("{}: some members may still commit to the source alone ({})", number, named)
            hints = {found.hint for found in closed}
            raise GateRefused("finalize", why, (hints.pop() if len(hints) == 1 else "") or _BOUNCE_FIRST)

    def _finalize_groups(self, report: FinalizeReport) -> FinalizeReport:
        candidates: list[GroupPlan] = []
        blocked: dict[str, GateRefused] = {}
        for group in self.verifier.plan.groups_of(self.verifier.only):
            if self.state.group_finalized_at(group.name) is not None:
                report.earlier.append(group.name)
            elif problem := self._reason_not_applied(group):
                blocked[group.name] = problem
            else:
                candidates.append(group)
        self._block(report, blocked)
        if candidates:
            names = frozenset(group.name for group in candidates)
            checks = _Checks(replace(self.verifier, only=names), self.accept)
            for batch in read_batches(candidates):
                self._finalize_batch(batch, checks, report)
        if done := frozenset([*report.earlier, *(found.group for found in report.gates)]):
            self._delete(report, replace(self.verifier, only=done))
        return report

    def _finalize_batch(self, batch: list[GroupPlan], checks: _Checks, report: FinalizeReport) -> None:
        """Checks the gates of the groups whose offsets verify, and records the result of every group."""
        blocked = {one.name: refusal for one in batch if (refusal := checks.refusal(one.name))}
        self._block(report, blocked)
        for found in self.gate([one for one in batch if one.name not in blocked]):
            name = found.group
            if not found.passed:
                why = Advice("some members may still commit to the source alone ({})", found.detail)
                self._block(report, {name: GateRefused(f"finalize {name}", why, found.hint or _BOUNCE_FIRST)})
                continue
            verified, left_out = checks.verified[name], checks.left_out[name]
            gate = [found.evidence.value, for_command_line(found.detail)]
            counts = {"verified": verified, "left_out": left_out, "gate": gate}
            self.journal.append([{"kind": "group-finalized", "group": name, **counts}])
            report.gates.append(found)
            report.verified += verified
            report.left_out += left_out

    def _block(self, report: FinalizeReport, blocked: dict[str, GateRefused]) -> None:
        """Records the reasons for which groups do not pass, in one write of the journal."""
        report.blocked |= blocked
        self.journal.append(blocked_record(name, "finalize", one.why, one.hint) for name, one in blocked.items())

    def _reason_not_applied(self, group: GroupPlan) -> GateRefused | None:
        """Returns the reason for which the journal alone excludes that the group is finalized."""
        what = f"finalize {group.name}"
        if group.error:
            why = f"the plan does not migrate it: {group.error}"
            return GateRefused(what, why, "fix the cause, then make a new plan")
        if self.state.is_group_rolled_back(group.name):
            return GateRefused(what, "it was rolled back", "make a new plan for it")
        if not self.state.is_applied(group):
            run = Invocation("migrate apply", (self.verifier.plan.path.name,), {"group": group.name})
            return GateRefused(what, "it was not applied completely", Advice("run: {}", run))
        return None

    def _delete(self, report: FinalizeReport, verifier: MigrationVerifier) -> None:
        """Deletes the source's offsets of the groups of ``verifier.only``."""
        if self.remover is not None:
            kept: list[str] = []
            report.deleted = self.remover.run(self._removals(verifier, kept))
            report.kept, report.late = tuple(kept), late_deletion(verifier.source)

    def _removals(self, verifier: MigrationVerifier, kept: list[str]) -> Iterator[GroupWrite]:
        """Yields the writes that delete the source's current offsets. They contain the planned partitions in which the
        target is not behind the source. Each deletion is conditional on the offset that was read. The offsets that must
        stay are appended to ``kept``, each with the reason."""
        for plan in verifier.plan.groups_of(verifier.only):
            if plan.name in self.state.delete.done or plan.error:
                continue
            if closed := [found for found in self.gate([plan]) if not found.passed]:
                kept += [Advice("{}: {}", plan.name, found.detail) for found in closed]
                continue
            reasons = unseen(verifier.source, [plan.name], by_deletion=False, accept=self.accept_unseen)
            kept += [Advice("{}; {}", reason, reason.hint) for reason in reasons.values()]
            if steps := () if reasons else _removable(plan, verifier, kept):
                terms = ("the offset read just before", "removed")
                yield GroupWrite(plan.name, plan.name, steps, Guard.LOCK, terms=terms)


def _failure_hint(wrong: set[Status], plan: Path) -> str:
    """Returns the hint for these statuses. ``plan`` is the path of the plan."""
    if wrong <= {Status.REFUSED}:
        return Advice("{accept_refused} accepts the partitions that the plan refused")
    if wrong <= {Status.REFUSED, Status.UNREADABLE}:
        return Advice(
            "unreadable offsets are never skipped silently: fix the cause, or make a new plan without them"
            " ({group}, {topic})"
        )
    return Advice("{} lists the differences", Invocation("migrate verify", (str(plan),)))


def _removable(plan: GroupPlan, verifier: MigrationVerifier, kept: list[str]) -> tuple[PlanStep, ...]:
    # The source is read before the target. Therefore, if the target is not behind, it has at least the offset that was
    # read from the source.
    (source,) = verifier.source.scan([plan.name])
    (target,) = verifier.target.scan([plan.target_group])
    if problem := source.error or target.error:
        kept.append(Advice("{}: {}", plan.name, problem.text))
        return ()
    known = {step.source_tp: step for step in plan.steps if step.source is not None and not step.action.rejects}
    steps: list[PlanStep] = []
    for tp, committed in sorted(source.offsets.items()):
        step = known.get(tp)
        if step is None:
            continue
        current, required = target.offsets.get(step.tp), committed.offset + verifier.plan.header.options.shift
        if step.origin is not None and step.after is not None:  # the source holds a position in another log
            required = step.after.offset
        has_moved = step.source is not None and committed.offset != step.source.offset
        if has_moved and (step.origin is not None or step.action is Action.KEEP_NEWER):
            kept.append(f"{plan.name} {tp}: the source moved on after the plan ({committed.offset})")
        elif current is None or current.offset < required:
            kept.append(f"{plan.name} {tp}: the source is ahead of the target ({committed.offset})")
        else:
            steps.append(PlanStep(tp, Action.REWIND, None, committed.value(), None))
    return tuple(steps)


# The gates of `finalize`, which check that no member commits to the source alone. In a migration between ZooKeeper
# and Kafka the gate watches the old consumers' commits, as `runbook check` does. In other migrations from Kafka or
# from a manager, the gate asks the source's coordinator for members.


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
        names = {one.name if self.target is CommitMode.KAFKA else one.target_group: one for one in groups}
        watched = watch_groups(self.view, names, self.window, enough=self._decided)
        for name, group in names.items():
            history = watched[name]
            if isinstance(history, OffsetMgrError):
                why = Advice("it cannot be observed: {}", history.text)
                yield GroupGate(group.name, False, Confidence.UNKNOWN, why)
            else:
                yield self._gate(group, name, history)

    def _gate(self, plan: GroupPlan, registered: str, history: GroupHistory) -> GroupGate:
        """Returns the gate of a group that is registered in ZooKeeper under this name."""
        name, observation = plan.name, history.latest
        if observation.unreadable:
            why = f"ZooKeeper node {observation.unreadable[0]} cannot be read"
            return GroupGate(name, False, Confidence.UNKNOWN, why)
        if self.target is CommitMode.ZOOKEEPER:
            in_kafka = _assess_members(name, self.view.cluster.describe_groups([name])[name])
            if not in_kafka.passed:
                return in_kafka
        if not observation.members:
            return GroupGate(name, True, Confidence.SEEN, "no old consumer is registered in ZooKeeper")
        if plan.name != plan.target_group:
            members = ", ".join(sorted(observation.members))
            why = f"the group was renamed, and old consumers are still registered as {registered}: {members}"
            return GroupGate(name, False, Confidence.SEEN, why)
        reports = [assess_phase(history, phase, rules=self.rules) for phase in self._phases]
        passed = next((report for report in reports if report.passed), None)
        if passed is not None:
            count = len(passed.members)
            members = "the only member commits" if count == 1 else f"all {count} members commit"
            detail = f"{members} as phase {passed.phase.value} does"
            accepted = _accepted_idle(assess_phase(history, passed.phase, rules=replace(self.rules, accept_idle=False)))
            return GroupGate(name, True, _weakest(passed), detail, accepted=accepted, live=True)
        gate = closed_gate(name, history, reports, self.rules, exclusive=self.exclusive)
        persistent = not any(member.session for member in observation.members.values())
        return replace(gate, hint=PERSISTENT_MEMBERS_HINT) if persistent else gate

    @property
    def _phases(self) -> tuple[CommitMode, ...]:
        return (self.target,) if self.exclusive else (self.target, CommitMode.DUAL)

    def _decided(self, history: GroupHistory) -> bool:
        if not history.latest.members:
            return True
        reports = [assess_phase(history, phase, rules=self.rules) for phase in self._phases]
        return any(report.passed for report in reports) or all(report.final for report in reports)


def _accepted_idle(strict: PhaseReport) -> str:
    """Returns the partitions that pass only because the caller accepts idle ones, as text. ``strict`` is the result of
    a check that does not accept them."""
    number, named = _not_ok(strict)
    return Advice("{} without traffic ({accept_idle}): {}", number, named) if named else ""


def _not_ok(report: PhaseReport) -> tuple[str, str]:
    """Returns the number and the names of the partitions that do not pass."""
    found = [part.partition for part in report.partitions if not part.ok]
    return count_of(len(found), "partition"), list_of(found, 5)


def _weakest(report: PhaseReport) -> Confidence:
    """Returns the confidence of the report, which is the lowest confidence among the results of its members and
    partitions."""
    kinds = {member.confidence for member in report.members} | {part.confidence for part in report.partitions}
    return next((kind for kind in (Confidence.UNKNOWN, Confidence.INFERRED) if kind in kinds), Confidence.SEEN)


def closed_gate(
    name: str, history: GroupHistory, reports: Sequence[PhaseReport], rules: EvidenceThresholds, *, exclusive: bool
) -> GroupGate:
    """Returns a closed gate for a group that is not known to be in an accepted phase. The reason is taken from the
    check of the accepted phase with the fewest failures. If the gate is closed only because of partitions without
    traffic, the reason names these partitions, and the hint names the argument that accepts them.
    ``exclusive`` is that of `OldConsumerGate`."""
    nearest = min(reports, key=lambda report: (len(report.wrong), sum(not part.ok for part in report.partitions)))
    phase = Advice("phase {} (required by {delete_source})" if exclusive else "phase {}", nearest.phase.value)
    lenient = assess_phase(history, nearest.phase, rules=replace(rules, accept_idle=True))
    if lenient.passed:
        why = Advice("no commit of {} was seen on {} without traffic: {}", phase, *_not_ok(nearest))
        return GroupGate(name, False, _weakest(nearest), why, ACCEPT_IDLE)
    wanted = phase if exclusive else f"phase {' or '.join(report.phase.value for report in reports)}"
    why = Advice("not seen in {}: {}", wanted, _first_problem(lenient))
    return GroupGate(name, False, _weakest(nearest), why)


ACCEPT_IDLE: Final = Advice("pass {accept_idle}: nothing can be lost there; or send each of them a message")


def _first_problem(report: PhaseReport) -> str:
    bad = [member for member in report.members if not member.ok]
    worst = next((member for member in bad if member.wrong), bad[0] if bad else None)
    if worst is not None:
        parts = [part for part in report.partitions if part.member == worst.member and not part.ok]
        part = next((part for part in parts if part.confidence is Confidence.SEEN), parts[0] if parts else None)
        one: MemberEvidence | PartitionEvidence = part or worst
        where = f"member {worst.member}: {f'{part.partition}: ' if part else ''}"
        return Advice("{}{} ({})" if one.remedy else "{}{}", where, one.why, one.remedy)
    if report.problems:
        return report.problems[0]
    part = next((part for part in report.partitions if not part.ok), None)
    return "the phase could not be determined" if part is None else f"{part.partition}: {part.why}"


def coordinator_gate(
    source: OffsetStore, cluster: KafkaCluster, window: ObservationWindow, clock: Clock, groups: list[GroupPlan]
) -> Iterator[GroupGate]:
    """Gate for migrations from Kafka or from a manager to a store other than ZooKeeper. The gate passes if the group
    has no members and no offset changes during the window.

    The coordinator reports only group members. It does not report old consumers, nor consumers that assign partitions
    to themselves. Therefore the gate also reads the offsets twice, ``window.duration_s`` apart. If no offset has
    changed between the two reads, the gate infers that no client commits.
    """
    inactive = _assess_inactivity(source, groups, window.duration_s, clock)
    for name, described in cluster.describe_groups(list(inactive)).items():
        yield _both(_assess_members(name, described), inactive[name])


def _both(members: GroupGate, inactive: GroupGate) -> GroupGate:
    """Returns the gate of a group whose members and whose offsets must be passive."""
    if members.passed and inactive.passed:
        return replace(inactive, detail=f"{members.detail}, and {inactive.detail}")
    return inactive if members.passed else members


def inactivity_gate(
    source: ZookeeperStore, window: ObservationWindow, clock: Clock, groups: list[GroupPlan]
) -> Iterator[GroupGate]:
    """Gate for sources in a ZooKeeper of Kafka 0.7 or of Storm's spouts, which do not register. The gate passes if no
    member is registered and no offset changes during the window, from which it infers that no client commits to the
    source."""
    inactive = _assess_inactivity(source, groups, window.duration_s, clock)
    registered = members_many(source.session, list(inactive)) if source.registered else ()
    alive = {found.group: found for found in registered}
    members = "no member is registered in ZooKeeper" if source.registered else "spouts do not register"
    for name, gate in inactive.items():
        found = alive.get(name, GroupMembers(name))
        if found.error is not None:
            why = Advice("the registered members are unknown: {}", found.error.text)
            yield GroupGate(name, False, Confidence.UNKNOWN, why)
        elif found.members:
            named = ", ".join(member.member_id for member in found.members)
            hint = "" if found.live else PERSISTENT_MEMBERS_HINT
            yield GroupGate(name, False, Confidence.SEEN, f"registered in ZooKeeper: {named}", hint)
        else:
            yield _both(GroupGate(name, True, Confidence.SEEN, members), gate)


def no_members_gate(groups: list[GroupPlan]) -> Iterator[GroupGate]:
    """Gate for sources without consumers, such as files: always open."""
    return (GroupGate(one.name, True, Confidence.SEEN, "no member commits to the source") for one in groups)


def _assess_inactivity(
    source: OffsetStore, groups: list[GroupPlan], duration_s: float, clock: Clock
) -> dict[str, GroupGate]:
    """Reads the offsets of groups twice, and returns for each group whether they did not change."""
    names = [plan.name for plan in groups]
    before = {found.name: found for found in source.scan(names)}
    clock.sleep(duration_s)
    gates = {}
    for found in source.scan(names):
        name, earlier = found.name, before[found.name]
        if error := earlier.error or found.error:
            gates[name] = GroupGate(name, False, Confidence.UNKNOWN, error.text)
        elif moved := found.first_change(earlier):
            why = f"a client commits to the source: {moved} changed while watched"
            gates[name] = GroupGate(name, False, Confidence.SEEN, why)
        else:
            gates[name] = GroupGate(name, True, Confidence.INFERRED, f"no offset changed in {duration_s:g} s")
    return gates


def _assess_members(name: str, found: GroupDescription | OffsetMgrError) -> GroupGate:
    if isinstance(found, OffsetMgrError):
        why = Advice("the source's coordinator did not report the members: {}", found.text)
        return GroupGate(name, False, Confidence.UNKNOWN, why)
    if not found.membership:
        return GroupGate(name, True, Confidence.SEEN, "the source's brokers (Kafka 0.8.2) have no group members")
    if not found.idle:
        members = "; ".join(str(member) for member in found.members)
        return GroupGate(name, False, Confidence.SEEN, f"active in the source: {members or found.state}")
    return GroupGate(name, True, Confidence.SEEN, "the source's coordinator knows no member")


def gate_of_source(
    plan: PlanFile, source: OffsetStore, cluster: Callable[[], KafkaCluster | None], window: ObservationWindow
) -> FinalizeGate:
    """Returns the gate of a plan whose groups do not migrate in phases. ``cluster`` returns the brokers of the source.
    Raises `UsageError` if there is no gate for the source."""
    from offsetmgr.stores.zookeeper import ZookeeperStore

    clock, endpoint = SystemClock(), plan.header.source
    if isinstance(source, ZookeeperStore) and source.layout != "0.8":
        return partial(inactivity_gate, source, window, clock)
    if scheme_of(endpoint.uri).coordinators and (known := cluster()) is not None:
        return partial(coordinator_gate, source, known, window, clock)
    if endpoint.kind == "file":
        return no_members_gate
    why = f"offsetmgr cannot find out which live members still commit to {endpoint.kind} {endpoint.uri}"
    raise UsageError(f"finalize of {plan.path}", why)
