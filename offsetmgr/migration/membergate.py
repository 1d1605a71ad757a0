"""The gate of `finalize`: is any member left that writes only the source?

Between ZooKeeper and Kafka it watches the old consumers' commits, as `runbook check` does. Elsewhere it asks the
source's coordinator for members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from offsetmgr.cluster.base import Cluster
from offsetmgr.errors import OffsetMgrError
from offsetmgr.migration.evidence import Known, Rules
from offsetmgr.migration.finalize import GroupGate
from offsetmgr.migration.observing import GroupView, Window, watch_group
from offsetmgr.migration.phasecheck import PhaseReport, judge
from offsetmgr.migration.phases import Phase
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.migration.verify import Evidence
from offsetmgr.migration.watch import Watch
from offsetmgr.model import GroupDescription

_EVIDENCE = {Known.SEEN: Evidence.SEEN, Known.INFERRED: Evidence.INFERRED, Known.UNKNOWN: Evidence.UNKNOWN}


@dataclass(frozen=True, slots=True)
class OldConsumerGate:
    """For migrations between ZooKeeper and Kafka: every live old consumer must commit to the target.

    ``target`` is the phase that ends the migration (kafka, or zookeeper on the way back). ``exclusive``: the source's
    offsets will be removed, so nobody may write the source any more; else members in the dual phase pass too.
    """

    view: GroupView
    target: Phase
    exclusive: bool
    rules: Rules
    window: Window

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        for group in groups:
            yield self._gate(group)

    def _gate(self, plan: GroupPlan) -> GroupGate:
        name = plan.group if self.target is Phase.KAFKA else plan.target_group
        watch = watch_group(self.view, name, self.window, enough=self._enough)
        seen = watch.latest
        assert seen is not None  # watching looks at least once
        if seen.unreadable:
            return GroupGate(name, False, Evidence.UNKNOWN, f"ZooKeeper node {seen.unreadable[0]} cannot be read")
        if not seen.members:
            return GroupGate(name, True, Evidence.SEEN, "no old consumer is registered in ZooKeeper")
        if plan.group != plan.target_group:
            members = ", ".join(sorted(seen.members))
            why = f"the group was renamed, and old consumers are still registered as {name}: {members}"
            return GroupGate(name, False, Evidence.SEEN, why)
        reports = [judge(watch, phase, rules=self.rules) for phase in self._phases]
        passed = next((report for report in reports if report.passed), None)
        if passed is not None:
            return GroupGate(
                name, True, _weakest(passed), f"all {len(passed.members)} members commit as {passed.phase}"
            )
        return GroupGate(name, False, _weakest(reports[0]), _first_problem(reports[0]))

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return (self.target,) if self.exclusive else (self.target, Phase.DUAL)

    def _enough(self, watch: Watch) -> bool:
        if watch.latest is None or not watch.latest.members:
            return True
        reports = [judge(watch, phase, rules=self.rules) for phase in self._phases]
        return any(report.passed for report in reports) or all(report.settled for report in reports)


def _weakest(report: PhaseReport) -> Evidence:
    """A chain of evidence is as good as its weakest part."""
    kinds = {member.known for member in report.members} | {part.known for part in report.partitions}
    return next((_EVIDENCE[kind] for kind in (Known.UNKNOWN, Known.INFERRED) if kind in kinds), Evidence.SEEN)


def _first_problem(report: PhaseReport) -> str:
    bad = next((member for member in report.members if not member.ok), None)
    if bad is not None:
        return f"member {bad.member}: {bad.why}" + (f" ({bad.settle})" if bad.settle else "")
    if report.problems:
        return report.problems[0]
    part = next((part for part in report.partitions if not part.ok), None)
    return "the phase could not be told" if part is None else f"{part.partition}: {part.why}"


@dataclass(frozen=True, slots=True)
class CoordinatorGate:
    """For other sources that have a coordinator: the source group must have no members."""

    source: Cluster

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        for name, found in self.source.describe_groups(plan.group for plan in groups).items():
            yield _described(name, found)


def _described(name: str, found: GroupDescription | OffsetMgrError) -> GroupGate:
    if isinstance(found, OffsetMgrError):
        return GroupGate(name, False, Evidence.UNKNOWN, f"the source's coordinator did not tell: {found}")
    if not found.idle:
        members = "; ".join(str(member) for member in found.members)
        return GroupGate(name, False, Evidence.SEEN, f"active in the source: {members or found.state}")
    return GroupGate(name, True, Evidence.SEEN, "the source's coordinator knows no member")


class NoMembers:
    """For sources that nobody consumes from, such as files."""

    def __call__(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        for plan in groups:
            yield GroupGate(plan.group, True, Evidence.SEEN, "nobody commits to the source")
