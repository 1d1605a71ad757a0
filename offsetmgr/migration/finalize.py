"""Ending the dual phase of a migration: the gates, the record, and (only if asked) the source's offsets removed.

Finalizing is the point after which before-images would rewind a group, so it asks for evidence twice: a fresh
verification in which every partition passes, and, for each group, proof that no member that writes only the source
is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from offsetmgr.errors import GateRefused, JournalError
from offsetmgr.migration.batches import READ_GROUPS, batched
from offsetmgr.migration.execute import Executor, Report, Task
from offsetmgr.migration.journal import Journal
from offsetmgr.migration.plan import Action, GroupPlan, Step
from offsetmgr.migration.planfile import PlanFile
from offsetmgr.migration.state import MigrationState
from offsetmgr.migration.verify import Evidence, PartitionVerdict, Verifier
from offsetmgr.stores.base import Guard, OffsetStore


@dataclass(frozen=True, slots=True)
class GroupGate:
    """Whether any member of a group still writes the source alone, and how that is known."""

    group: str
    passed: bool
    evidence: Evidence
    detail: str


class MemberGate(Protocol):
    """Asks who still writes the source alone: one gate a group, in any order."""

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]: ...


@dataclass(frozen=True, slots=True)
class FinalizeReport:
    """What finalizing found and did. ``deleted`` is the removal's report, None where it was not asked for."""

    verified: int
    gates: tuple[GroupGate, ...]
    deleted: Report | None = None


def check_gates(verifier: Verifier, gate: MemberGate) -> tuple[int, tuple[GroupGate, ...]]:
    """Verifies afresh and asks the gate for every group; gives the partitions verified and the gates.

    Raises `GateRefused` with the first things that stand in the way.
    """
    failed: list[PartitionVerdict] = []
    total = 0
    for verdict in verifier.verdicts():
        total += 1
        if not verdict.status.ok and len(failed) < 20:
            failed.append(verdict)
    if failed:
        named = "; ".join(f"{v.group} {v.tp or ''} {v.status}: {v.detail}" for v in failed[:3])
        wrong = sum(n for status, n in verifier.summary.counts.items() if not status.ok)
        raise GateRefused("finalize", f"{wrong} of {total} partitions do not verify ({named})", "see: migrate verify")
    gates = tuple(found for batch in batched(verifier.plan.groups(), READ_GROUPS) for found in gate(batch))
    if closed := [found for found in gates if not found.passed]:
        named = "; ".join(f"{found.group}: {found.detail}" for found in closed[:3])
        raise GateRefused(
            "finalize",
            f"{len(closed)} of {len(gates)} groups may still commit to the source alone ({named})",
            "bounce them first: see offsetmgr runbook",
        )
    return total, gates


def record_finalized(journal: Journal, state: MigrationState, verified: int, gates: tuple[GroupGate, ...]) -> None:
    """Writes the fact, with its evidence, into the journal (once)."""
    if state.finalized_at is not None:
        return
    journal.append(
        [
            {
                "kind": "finalized",
                "verified": verified,
                "gates": [[g.group, g.evidence.value, g.detail] for g in gates],
            }
        ]
    )


def finalize(
    verifier: Verifier,
    state: MigrationState,
    journal: Journal,
    gate: MemberGate,
    remover: Executor | None = None,
) -> FinalizeReport:
    """Finalizes a plan; with ``remover`` (an executor over the source store) also removes the source's offsets.

    A run that was interrupted in the removal goes on there. Raises `GateRefused`, and `JournalError` where the plan
    was never applied to its end or was rolled back.
    """
    name = f"plan {verifier.plan.path}"
    if state.undo.opened:
        raise JournalError(name, "it was rolled back", "make a new plan")
    if not state.apply.complete:
        raise JournalError(name, "it was not applied to its end", f"run: offsetmgr migrate apply {verifier.plan.path}")
    verified, gates = 0, tuple[GroupGate, ...]()
    if state.finalized_at is None:
        verified, gates = check_gates(verifier, gate)
        record_finalized(journal, state, verified, gates)
    deleted = None if remover is None else remover.run(_removals(verifier.plan, verifier.source, state))
    return FinalizeReport(verified, gates, deleted)


def _removals(plan: PlanFile, source: OffsetStore, state: MigrationState) -> Iterator[Task]:
    """Deletions of what the source holds now, for the partitions that the plan knows; each conditional on its value."""
    for batch in batched(plan.groups(), READ_GROUPS):
        left = [group for group in batch if group.group not in state.delete.settled]
        found = {offsets.group: offsets for offsets in source.scan(group.group for group in left)}
        for group in left:
            known = {step.tp for step in group.steps if step.source is not None}
            steps = tuple(
                Step(tp, Action.REWIND, None, held.value(), None)
                for tp, held in sorted(found[group.group].offsets.items())
                if tp in known
            )
            if steps:
                yield Task(group.group, group.group, steps, Guard.LOCK)
