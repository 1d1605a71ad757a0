"""Reads from the servers where the groups of a plan are now: their members, the phase of the members, and the
partitions that do not verify. It only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription
from offsetmgr.core.phase import Confidence, Phase
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, watch_groups
from offsetmgr.migration.location import LiveGroup
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import assess_phase, infer_phase
from offsetmgr.migration.plan import GroupPlan, GroupScope
from offsetmgr.migration.precheck import missing_evidence
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.verify import MigrationVerifier, PartitionResult
from offsetmgr.migration.verify_rules import Status

_BEFORE_APPLY = frozenset((Status.MISSING, Status.BEHIND, Status.NOT_REWOUND))
_WHILE_THE_SOURCE_IS_USED = frozenset((Status.SOURCE_AHEAD, Status.NOT_IN_PLAN))


@dataclass(frozen=True, slots=True)
class FleetView:
    """The servers of a plan. ``view`` is None if the plan is not between ZooKeeper and Kafka; then the groups have no
    phases. ``end`` is the phase in which the migration ends."""

    verifier: MigrationVerifier
    state: MigrationState
    view: GroupView | None
    end: CommitMode
    window: ObservationWindow

    def observe(self, only: GroupScope | None) -> Mapping[str, LiveGroup]:
        """Returns the evidence about each group that is not rolled back, by its name in the plan. Of a finalized group,
        only offsets that are gone and a source that is ahead are obstacles."""
        groups = [group for group in self.verifier.plan.groups_of(only) if self._is_open(group)]
        members = self._members(groups)
        return {**members, **self._with_problems(groups, members)}

    def _is_open(self, group: GroupPlan) -> bool:
        return not (group.error or self.state.is_group_rolled_back(group.group))

    def _is_finalized(self, group: GroupPlan) -> bool:
        return self.state.group_finalized_at(group.group) is not None

    def _members(self, groups: list[GroupPlan]) -> dict[str, LiveGroup]:
        if self.view is None:
            return {group.group: LiveGroup(Phase.UNKNOWN, Confidence.UNKNOWN, "") for group in groups}
        to_kafka = self.end is CommitMode.KAFKA
        old = {group.group: group.group if to_kafka else group.target_group for group in groups}
        new = {group.group: group.target_group if to_kafka else group.group for group in groups}
        watched = watch_groups(self.view, old.values(), self.window, enough=_is_enough)
        described = self.view.cluster.describe_groups(list(new.values())) if groups else {}
        found = {name: _live(watched[old[name]], described.get(new[name])) for name in old}
        for name in (group.group for group in groups if self._is_finalized(group)):
            if found[name].known is Confidence.UNKNOWN:  # without traffic, the phase of its members is not visible
                found[name] = replace(found[name], obstacles=())
        return found

    def _with_problems(self, groups: list[GroupPlan], members: Mapping[str, LiveGroup]) -> dict[str, LiveGroup]:
        """Returns the evidence about each group together with the partitions that would not verify now."""
        planned = {group.group: group for group in groups}
        failed: dict[str, list[str]] = {name: [] for name in planned}
        lost: set[str] = set()
        if not planned:
            return {}
        for result in replace(self.verifier, only=frozenset(planned)).results():
            if text := self._problem(planned[result.group], result, members[result.group]):
                failed[result.group].append(f"{result.tp or ''} {text}".strip())
                if result.status is Status.MISSING:
                    lost.add(result.group)
        return {
            name: replace(
                members[name],
                obstacles=(*members[name].obstacles, _summary(found)),
                verifies=False,
                is_lost=name in lost,
            )
            for name, found in failed.items()
            if found
        }

    def _problem(self, group: GroupPlan, result: PartitionResult, live: LiveGroup) -> str:
        """Returns the problem of a partition; an empty string if it verifies, or if a later step is expected to change
        it."""
        uses_source = bool(live.members) and live.phase not in (Phase.of(self.end), Phase.DUAL)
        if result.status.ok or result.status is Status.REFUSED:  # the plan lists the refused partitions
            return ""
        if self._is_finalized(group) and result.status not in (Status.MISSING, Status.SOURCE_AHEAD):
            return ""
        if not self.state.is_applied(group) and result.status in _BEFORE_APPLY:
            if uses_source or result.source is None or result.expected is None:
                return ""
            moved = result.source + self.verifier.plan.header.options.shift > result.expected
            return "the source moved on after the plan: make a new plan for the group" if moved else ""
        if uses_source and result.status in _WHILE_THE_SOURCE_IS_USED:
            return ""
        return f"{result.status.value}: {result.detail}"


def _summary(problems: list[str]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{count_of(len(problems), 'partition')}: {problems[0]}{more}"


def _is_enough(history: GroupHistory) -> bool:
    """Returns whether every member of the group is known to be in one phase, or the group has no member."""
    if history.latest is None or not history.latest.members:
        return True
    return any(assess_phase(history, phase).passed for phase in CommitMode)


def _live(history: GroupHistory | OffsetMgrError, described: GroupDescription | OffsetMgrError | None) -> LiveGroup:
    if isinstance(history, OffsetMgrError):
        return LiveGroup(Phase.UNKNOWN, Confidence.UNKNOWN, f"it cannot be observed: {history}")
    old: Iterable[str] = history.latest.members if history.latest is not None else ()
    modern = described if isinstance(described, GroupDescription) and not described.idle else None
    new = [str(member) for member in modern.members] if modern is not None else []
    members = (*sorted(old), *new)
    if history.latest is None or not history.latest.members:
        return _without_old_consumers(members, described)
    found = infer_phase(history)
    if (mode := found.phase.mode) is None:
        obstacle = (found.why,) if found.members else ()
        return LiveGroup(Phase.UNKNOWN, found.confidence, found.why, members, obstacle)
    if found.confidence is not Confidence.SEEN:
        return LiveGroup(found.phase, found.confidence, found.why, members)
    report = assess_phase(history, mode, rules=EvidenceThresholds(accept_idle=True))
    if report.passed:
        return LiveGroup(found.phase, Confidence.SEEN, found.why, members)
    why = f"{found.why}; not known for the whole group: {missing_evidence(report)}"
    return LiveGroup(found.phase, Confidence.INFERRED, why, members)


def _without_old_consumers(members: tuple[str, ...], described: GroupDescription | OffsetMgrError | None) -> LiveGroup:
    if isinstance(described, OffsetMgrError):
        return LiveGroup(
            Phase.UNKNOWN, Confidence.UNKNOWN, f"Kafka's coordinator did not report the members: {described}"
        )
    if members:
        why = f"no old consumer is registered, and Kafka's coordinator reports {count_of(len(members), 'member')}"
        return LiveGroup(Phase.KAFKA, Confidence.SEEN, why, members)
    return LiveGroup(Phase.UNKNOWN, Confidence.SEEN, "no member is registered", members)
