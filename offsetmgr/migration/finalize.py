"""Ending the dual phase of a migration: the gates, the record, and (only if asked) the source's offsets removed.

Finalizing is the point after which before-images would rewind a group, so it asks for evidence twice: a fresh
verification in which every partition passes, and, for each group, proof that no member that writes only the source
is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from offsetmgr.core.errors import GateRefused, JournalError
from offsetmgr.core.model import Committed
from offsetmgr.core.offset_store import Guard
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.chunking import READ_GROUPS, batched
from offsetmgr.migration.journal import Journal
from offsetmgr.migration.journaled_writer import Executor, GroupWrite, Report
from offsetmgr.migration.plan import Action, GroupPlan, PlanStep
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.verify import MigrationVerifier, Status, VerifyEvidence, VerifyVerdict


@dataclass(frozen=True, slots=True)
class GroupGate:
    """Whether any member of a group still writes the source alone, and how that is known."""

    group: str
    passed: bool
    evidence: VerifyEvidence
    detail: str
    hint: str = ""
    """What opens it, where that is not a bounce."""


class FinalizeGate(Protocol):
    """Asks who still writes the source alone: one gate a group, in any order."""

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]: ...


Gates: TypeAlias = tuple[GroupGate, ...]


@dataclass(frozen=True, slots=True)
class FinalizeReport:
    """What finalizing found and did.

    ``verified`` and ``left_out`` count partitions: those that passed, and those that the caller let pass.
    ``deleted`` is the removal's report, None where it was not asked for; ``kept`` says what stays there, and why.
    """

    verified: int
    left_out: int
    gates: Gates
    deleted: Report | None = None
    kept: tuple[str, ...] = ()


def check_gates(verifier: MigrationVerifier, gate: FinalizeGate, accept: Collection[Status] = ()) -> FinalizeReport:
    """Verifies afresh and asks the gate for every group.

    ``accept`` are statuses that the caller lets pass. Raises `GateRefused` with the first things that stand in the way.
    """
    failed: list[VerifyVerdict] = []
    wrong: Counter[Status] = Counter()
    verified = left_out = 0
    for verdict in verifier.verdicts():
        if verdict.status.ok:
            verified += 1
        elif verdict.status in accept:
            left_out += 1
        else:
            wrong[verdict.status] += 1
            failed += [verdict] if len(failed) < 3 else []
    total = verified + left_out + wrong.total()
    if failed:
        named = "; ".join(f"{v.group} {v.tp or ''} {v.status}: {v.detail}" for v in failed)
        why = f"{wrong.total()} of {total} partitions do not verify ({named})"
        raise GateRefused("finalize", why, _way_on(set(wrong)))
    if not total:
        raise GateRefused("finalize", "there is nothing to verify, so nothing is proved")
    # Of a group that could not be planned nothing was moved: who writes it is no matter of this plan's end.
    planned = (group for group in verifier.plan.groups() if not group.error)
    gates = tuple(found for batch in batched(planned, READ_GROUPS) for found in gate(batch))
    if closed := [found for found in gates if not found.passed]:
        named = "; ".join(f"{found.group}: {found.detail}" for found in closed[:3])
        hints = {found.hint for found in closed}
        raise GateRefused(
            "finalize",
            f"{len(closed)} of {count_of(len(gates), 'group')}: not proved that nobody commits to the source alone "
            f"({named})",
            hints.pop() if len(hints) == 1 and "" not in hints else "bounce them first: see offsetmgr runbook",
        )
    return FinalizeReport(verified, left_out, gates)


def _way_on(wrong: set[Status]) -> str:
    """What can be done where these statuses stand in the way."""
    if wrong <= {Status.REFUSED}:
        return "--accept-refused leaves out what the plan refused"
    if wrong <= {Status.REFUSED, Status.UNREADABLE}:
        return "what cannot be read is never left out unseen: mend it, or make a new plan without it (--group, --topic)"
    return "see: migrate verify"


def finalize(
    verifier: MigrationVerifier,
    state: MigrationState,
    journal: Journal,
    gate: FinalizeGate,
    remover: Executor | None = None,
    accept: Collection[Status] = (),
) -> FinalizeReport:
    """Finalizes a plan; with ``remover`` (an executor over the source store) also removes the source's offsets.

    Each group is removed only right after its gate was asked again, and only where the target is not behind. A run that
    was interrupted in the removal goes on there. Raises `GateRefused`, and `JournalError` where the plan was never
    applied to its end or was rolled back.
    """
    name = f"plan {verifier.plan.path}"
    if state.undo.touched:
        raise JournalError(name, "it was rolled back", "make a new plan")
    if not state.apply.complete:
        raise JournalError(name, "it was not applied to its end", f"run: offsetmgr migrate apply {verifier.plan.path}")
    report = FinalizeReport(0, 0, ())
    if state.finalized_at is None:
        report = check_gates(verifier, gate, accept)
        evidence = [[g.group, g.evidence.value, g.detail] for g in report.gates]
        ended = {"kind": "finalized", "verified": report.verified, "left_out": report.left_out, "gates": evidence}
        journal.append([ended])
    if remover is None:
        return report
    kept: list[str] = []
    deleted = remover.run(_removals(verifier, gate, state, kept))
    return replace(report, deleted=deleted, kept=tuple(kept))


def _removals(
    verifier: MigrationVerifier, gate: FinalizeGate, state: MigrationState, kept: list[str]
) -> Iterator[GroupWrite]:
    """Deletions of what the source holds now, for the partitions that the plan knows and the target is not behind in;
    each conditional on the value read. What must stay is named in ``kept``."""
    for plan in verifier.plan.groups():
        if plan.group in state.delete.done or plan.error:
            continue
        for found in gate([plan]):
            if not found.passed:
                kept.append(f"{plan.group}: {found.detail}")
                break
        else:
            steps = _removable(plan, verifier, kept)
            if steps:
                words = ("what was read just before", "removed")
                yield GroupWrite(plan.group, plan.group, steps, Guard.LOCK, words=words)


def _removable(plan: GroupPlan, verifier: MigrationVerifier, kept: list[str]) -> tuple[PlanStep, ...]:
    # The source is read before the target: a target that is level with it then holds all that the source held.
    (source,) = verifier.source.scan([plan.group])
    (target,) = verifier.target.scan([plan.target_group])
    if problem := source.error or target.error:
        kept.append(f"{plan.group}: {problem}")
        return ()
    known = {step.source_tp: step for step in plan.steps if step.source is not None and not step.action.refuses}
    steps: list[PlanStep] = []
    for tp, held in sorted(source.offsets.items()):
        step = known.get(tp)
        if step is None:
            continue
        here = target.offsets.get(step.tp)
        if step.origin is not None and step.source is not None and held.offset != step.source.offset:
            kept.append(f"{plan.group} {tp}: the source moved on after the plan ({held.offset})")
        elif here is None or here.offset < _enough(step, held):
            kept.append(f"{plan.group} {tp}: the source is ahead of the target ({held.offset})")
        else:
            steps.append(PlanStep(tp, Action.REWIND, None, held.value(), None))
    return tuple(steps)


def _enough(step: PlanStep, held: Committed) -> int:
    """The offset that the target must hold before the source's may go. A byte position says nothing of it, the plan
    does."""
    return step.after.offset if step.origin is not None and step.after is not None else held.offset
