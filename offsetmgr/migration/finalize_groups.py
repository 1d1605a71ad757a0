"""Finalizes single groups of a plan: each group passes or fails by itself, and does not hold up the others.

The checks are those of `finalize`. The journal records every group that passed, and for every other group the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from offsetmgr.core.errors import GateRefused, JournalError
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.finalize import FinalizeGate, GroupGate, delete_source_offsets, failure_hint
from offsetmgr.migration.group_batches import read_batches
from offsetmgr.migration.journal import Journal, JournalRecord
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.verify import MigrationVerifier, PartitionResult
from offsetmgr.migration.verify_rules import Status


@dataclass(slots=True)
class GroupFinalizeReport:
    """The result of `finalize_groups`.

    ``finalized`` are the gates of the groups that were finalized now, ``earlier`` the groups that an earlier run had
    finalized, and ``blocked`` the other groups, each with the reason. ``deleted`` and ``kept`` are as in
    `FinalizeReport`.
    """

    finalized: list[GroupGate] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    blocked: dict[str, GateRefused] = field(default_factory=dict)
    verified: int = 0
    left_out: int = 0
    deleted: Report | None = None
    kept: tuple[str, ...] = ()


def finalize_groups(
    verifier: MigrationVerifier,
    state: MigrationState,
    journal: Journal,
    gate: FinalizeGate,
    remover: JournaledWriter | None = None,
    accept: Collection[Status] = (),
    *,
    accept_unseen: bool = False,
) -> GroupFinalizeReport:
    """Finalizes each group of ``verifier.only`` that passes the checks. The arguments are those of `finalize`.

    Raises `JournalError` if the whole plan was rolled back, and any error of a whole store.
    """
    plan = verifier.plan
    if state.is_rolled_back:
        raise JournalError(f"plan {plan.path}", "it was rolled back", "make a new plan")
    report = GroupFinalizeReport()
    candidates: list[GroupPlan] = []
    for group in plan.groups_of(verifier.only):
        if state.group_finalized_at(group.group) is not None:
            report.earlier.append(group.group)
        elif problem := _reason_not_applied(plan.path.name, group, state):
            report.blocked[group.group] = problem
        else:
            candidates.append(group)
    _record_blocked(journal, report.blocked)
    if candidates:
        checks = _Checks(replace(verifier, only=frozenset(group.group for group in candidates)), accept)
        checks.run()
        for batch in read_batches(candidates):
            _finalize_batch(batch, checks, gate, journal, report)
    done = frozenset([*report.earlier, *(found.group for found in report.finalized)])
    if remover is not None and done:
        report.deleted, report.kept = delete_source_offsets(
            replace(verifier, only=done), gate, state, remover, accept_unseen=accept_unseen
        )
    return report


def _finalize_batch(
    batch: list[GroupPlan], checks: _Checks, gate: FinalizeGate, journal: Journal, report: GroupFinalizeReport
) -> None:
    """Checks the gates of the groups whose offsets verify, and records the result of every group."""
    blocked = {group.group: error for group in batch if (error := checks.reason(group)) is not None}
    report.blocked |= blocked
    _record_blocked(journal, blocked)
    passing = {group.group: group for group in batch if group.group not in blocked}
    for found in gate(list(passing.values())):
        if not found.passed:
            why = f"some members may still commit to the source alone ({found.detail})"
            report.blocked[found.group] = GateRefused(
                f"finalize {found.group}", why, found.hint or "bounce them first: see offsetmgr runbook"
            )
            _record_blocked(journal, {found.group: report.blocked[found.group]})
            continue
        verified, left_out = checks.counts[found.group]
        record: JournalRecord = {"kind": "group-finalized", "group": found.group}
        counts = {"verified": verified, "left_out": left_out, "gate": [found.evidence.value, found.detail]}
        journal.append([record | counts])
        report.finalized.append(found)
        report.verified += verified
        report.left_out += left_out


def _reason_not_applied(plan: str, group: GroupPlan, state: MigrationState) -> GateRefused | None:
    """Returns the reason for which the journal alone excludes that the group is finalized."""
    what = f"finalize {group.group}"
    if group.error:
        return GateRefused(what, f"the plan does not migrate it: {group.error}", "fix the cause, then make a new plan")
    if state.is_group_rolled_back(group.group):
        return GateRefused(what, "it was rolled back", "make a new plan for it")
    if not state.is_applied(group):
        command = shlex.join(("offsetmgr", "migrate", "apply", plan, "--group", group.group))
        return GateRefused(what, "it was not applied completely", f"run: {command}")
    return None


def _record_blocked(journal: Journal, blocked: dict[str, GateRefused]) -> None:
    journal.append(
        {"kind": "group-blocked", "group": group, "step": "finalize", "why": error.why, "hint": error.hint}
        for group, error in blocked.items()
    )


@dataclass(slots=True)
class _Checks:
    """The verification of the groups. ``counts`` has the numbers of verified and of accepted partitions of each
    group."""

    verifier: MigrationVerifier
    accept: Collection[Status]
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    _failed: dict[str, list[PartitionResult]] = field(default_factory=dict)

    def run(self) -> None:
        for result in self.verifier.results():
            verified, left_out = self.counts.get(result.group, (0, 0))
            if result.status.ok:
                self.counts[result.group] = verified + 1, left_out
            elif result.status in self.accept:
                self.counts[result.group] = verified, left_out + 1
            else:
                self._failed.setdefault(result.group, []).append(result)

    def reason(self, group: GroupPlan) -> GateRefused | None:
        """Returns the reason for which the group's offsets do not pass."""
        what = f"finalize {group.group}"
        if failed := self._failed.get(group.group):
            total = sum(self.counts.get(group.group, (0, 0))) + len(failed)
            named = "; ".join(f"{found.tp or ''} {found.status}: {found.detail}".strip() for found in failed[:3])
            why = f"{len(failed)} of {count_of(total, 'partition')} do not verify ({named})"
            return GateRefused(what, why, failure_hint({found.status for found in failed}, self.verifier.plan.path))
        if group.group not in self.counts:
            return GateRefused(what, "it has no partitions to verify")
        return None
