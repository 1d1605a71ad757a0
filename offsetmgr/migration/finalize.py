"""Finalizes a migration: checks the gates, records the end, and on request deletes the source's offsets.

After the cutover, restoring the before-images would rewind the groups, so a finalized plan cannot be rolled back.
Therefore finalizing requires two kinds of evidence: a new verification in which every partition passes, and for each
group the result of a check for members that commit to the source alone. The result names its evidence: seen, inferred,
or accepted by an option of the user.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import GateRefused, JournalError
from offsetmgr.core.model import Committed
from offsetmgr.core.offset_store import Guard
from offsetmgr.core.phase import Confidence
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.edits import unseen
from offsetmgr.migration.group_batches import read_batches
from offsetmgr.migration.journal import Journal
from offsetmgr.migration.journaled_writer import GroupWrite, JournaledWriter, Report
from offsetmgr.migration.plan import Action, GroupPlan, PlanStep
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.verify import MigrationVerifier, PartitionResult
from offsetmgr.migration.verify_rules import Status


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


class FinalizeGate(Protocol):
    """Checks whether groups have members that commit to the source alone. Yields one result for each group, in any
    order."""

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]: ...


Gates: TypeAlias = tuple[GroupGate, ...]


@dataclass(frozen=True, slots=True)
class FinalizeReport:
    """The result of finalize.

    ``verified`` counts the partitions that passed. ``left_out`` counts the partitions whose failure the caller
    accepted. ``deleted`` is the report of the deletion, or None if no deletion was requested. ``kept`` names the
    offsets that stay in the source, each with the reason.
    """

    verified: int
    left_out: int
    gates: Gates
    deleted: Report | None = None
    kept: tuple[str, ...] = ()


def check_gates(verifier: MigrationVerifier, gate: FinalizeGate, accept: Collection[Status] = ()) -> FinalizeReport:
    """Verifies the migration again and checks the gate of every group.

    A partition whose status is in ``accept`` does not count as a failure. Raises `GateRefused` with the first failed
    partitions or closed gates.
    """
    failed: list[PartitionResult] = []
    wrong: Counter[Status] = Counter()
    verified = left_out = 0
    for result in verifier.results():
        if result.status.ok:
            verified += 1
        elif result.status in accept:
            left_out += 1
        else:
            wrong[result.status] += 1
            failed += [result] if len(failed) < 3 else []
    total = verified + left_out + wrong.total()
    if failed:
        named = "; ".join(f"{v.group} {v.tp or ''} {v.status}: {v.detail}" for v in failed)
        why = f"{wrong.total()} of {total} partitions do not verify ({named})"
        raise GateRefused("finalize", why, failure_hint(set(wrong), verifier.plan.path))
    if not total:
        raise GateRefused("finalize", "the migration has no partitions to verify")
    # A group that could not be planned was not migrated, so the gate does not check its members.
    planned = (group for group in verifier.plan.groups_of(verifier.only) if not group.error)
    gates = tuple(found for batch in read_batches(planned) for found in gate(batch))
    if closed := [found for found in gates if not found.passed]:
        named = "; ".join(f"{found.group}: {found.detail}" for found in closed[:3])
        hints = {found.hint for found in closed}
        raise GateRefused(
            "finalize",
            f"{len(closed)} of {count_of(len(gates), 'group')}: some members may still commit to the source alone "
            f"({named})",
            hints.pop() if len(hints) == 1 and "" not in hints else "bounce them first: see offsetmgr runbook",
        )
    return FinalizeReport(verified, left_out, gates)


def failure_hint(wrong: set[Status], plan: Path) -> str:
    """Returns the hint for these statuses. ``plan`` is the path of the plan."""
    if wrong <= {Status.REFUSED}:
        return "--accept-refused accepts the partitions that the plan refused"
    if wrong <= {Status.REFUSED, Status.UNREADABLE}:
        return (
            "unreadable offsets are never skipped silently: fix the cause, or make a new plan without them "
            "(--group, --topic)"
        )
    return f"offsetmgr migrate verify {shlex.quote(str(plan))} lists the differences"


def finalize(
    verifier: MigrationVerifier,
    state: MigrationState,
    journal: Journal,
    gate: FinalizeGate,
    remover: JournaledWriter | None = None,
    accept: Collection[Status] = (),
    *,
    accept_unseen: bool = False,
) -> FinalizeReport:
    """Finalizes a plan. With ``remover`` (an executor over the source store), the function also deletes the source's
    offsets.

    For each group, the gate is checked again just before the source's offsets are deleted. An offset of the source is
    deleted only if the target's offset for the partition is not behind it. A group that may have unseen offsets in the
    source keeps all its offsets there, unless ``accept_unseen``: they are not in the plan. If a run was interrupted
    during the deletion, the next run continues the deletion. Raises `GateRefused`, and `JournalError` if the plan was
    not applied completely or was rolled back.
    """
    name = f"plan {verifier.plan.path}"
    if state.is_rolled_back:
        raise JournalError(name, "it was rolled back", "make a new plan")
    if not (state.apply.complete or all(state.is_applied(group) for group in verifier.plan.groups_of(verifier.only))):
        raise JournalError(name, "it was not applied completely", f"run: offsetmgr migrate apply {verifier.plan.path}")
    report = FinalizeReport(0, 0, ())
    if state.finalized_at is None:
        report = check_gates(verifier, gate, accept)
        evidence = [[g.group, g.evidence.value, g.detail] for g in report.gates]
        ended = {"kind": "finalized", "verified": report.verified, "left_out": report.left_out, "gates": evidence}
        journal.append([ended])
    if remover is None:
        return report
    deleted, kept = delete_source_offsets(verifier, gate, state, remover, accept_unseen=accept_unseen)
    return replace(report, deleted=deleted, kept=kept)


def delete_source_offsets(
    verifier: MigrationVerifier,
    gate: FinalizeGate,
    state: MigrationState,
    remover: JournaledWriter,
    *,
    accept_unseen: bool,
) -> tuple[Report, tuple[str, ...]]:
    """Deletes the source's offsets of the groups of ``verifier.only``. Returns the report, and the offsets that stay in
    the source."""
    kept: list[str] = []
    return remover.run(_removals(verifier, gate, state, kept, accept_unseen)), tuple(kept)


def _removals(
    verifier: MigrationVerifier, gate: FinalizeGate, state: MigrationState, kept: list[str], accept_unseen: bool
) -> Iterator[GroupWrite]:
    """Yields the writes that delete the source's current offsets. They contain the planned partitions in which the
    target is not behind the source. Each deletion is conditional on the offset that was read. The offsets that must
    stay are appended to ``kept``, each with the reason."""
    for plan in verifier.plan.groups_of(verifier.only):
        if plan.group in state.delete.done or plan.error:
            continue
        for found in gate([plan]):
            if not found.passed:
                kept.append(f"{plan.group}: {found.detail}")
                break
        else:
            reasons = unseen(verifier.source, [plan.group], by_deletion=False, accept=accept_unseen)
            kept += [Advice("{}; {}", reason, reason.hint) for reason in reasons.values()]
            steps = () if reasons else _removable(plan, verifier, kept)
            if steps:
                terms = ("the offset read just before", "removed")
                yield GroupWrite(plan.group, plan.group, steps, Guard.LOCK, terms=terms)


def _removable(plan: GroupPlan, verifier: MigrationVerifier, kept: list[str]) -> tuple[PlanStep, ...]:
    # The source is read before the target. Therefore, if the target is not behind, it has at least the offset that was
    # read from the source.
    (source,) = verifier.source.scan([plan.group])
    (target,) = verifier.target.scan([plan.target_group])
    if problem := source.error or target.error:
        kept.append(f"{plan.group}: {problem}")
        return ()
    known = {step.source_tp: step for step in plan.steps if step.source is not None and not step.action.rejects}
    steps: list[PlanStep] = []
    for tp, committed in sorted(source.offsets.items()):
        step = known.get(tp)
        if step is None:
            continue
        current = target.offsets.get(step.tp)
        if step.origin is not None and step.source is not None and committed.offset != step.source.offset:
            kept.append(f"{plan.group} {tp}: the source moved on after the plan ({committed.offset})")
        elif step.action is Action.KEEP_NEWER and step.source is not None and committed.offset != step.source.offset:
            kept.append(f"{plan.group} {tp}: the source moved on after the plan, and the target was ahead of it")
        elif current is None or current.offset < _required_offset(step, committed) + verifier.plan.header.options.shift:
            kept.append(f"{plan.group} {tp}: the source is ahead of the target ({committed.offset})")
        else:
            steps.append(PlanStep(tp, Action.REWIND, None, committed.value(), None))
    return tuple(steps)


def _required_offset(step: PlanStep, committed: Committed) -> int:
    """Returns the offset that the target must have before the source's offset may be deleted. If the source holds a
    byte position, the required offset is the offset in the plan."""
    return step.after.offset if step.origin is not None and step.after is not None else committed.offset
