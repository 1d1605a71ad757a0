"""The reverse plan after the cutover: a plan in the other direction, made from the first plan and its journal.

A reverse plan copies the current offsets of the new store. The offsets in the first plan are not copied: the first plan
only selects the groups and partitions, and its journal shows which partitions were copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.selection import literal_pattern
from offsetmgr.migration.copied_offsets import copied_steps
from offsetmgr.migration.plan import (
    LEFT_OUT,
    Action,
    GroupPlan,
    GroupScope,
    PlanOptions,
    PlanStep,
    check_renames,
)
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState


def reverse_options(plan: PlanFile, only: GroupScope | None = None, if_ahead: AheadPolicy | None = None) -> PlanOptions:
    """Returns the options of a reverse plan. They select the same topics and groups (of the groups, only those in
    ``only``), give the groups their original names, and shift offsets back. ``if_ahead`` is the caller's word."""
    options = plan.header.options
    reverse = {group.target_group: group.group for group in plan.groups_of(only) if group.target_group != group.group}
    groups = tuple(literal_pattern(group.target_group) for group in plan.groups_of(only))
    return PlanOptions(
        if_ahead, options.clamp, options.topics, groups, reverse, onto_existing=True, shift=-options.shift
    )


@dataclass(frozen=True)
class ReversePlanner:
    """Plans every group of ``plan`` in the other direction, or only those in ``only``. ``base`` is the planner of the
    other direction, with `reverse_options`.

    A group that was never copied gets an entry with a note. If a copied offset no longer exists in the new store, the
    step is refused. If the old store is ahead and still holds the offset that was copied, no member has committed to
    the old store since the copy. This means that the offset was moved back in the new store, so the reverse step is a
    rewind. The rewind is refused unless ``allow_rewind`` is True. The copy is evidence for `LastWrites`.
    """

    plan: PlanFile
    state: MigrationState
    base: Planner
    allow_rewind: bool = False
    """Whether the reverse plan may move an offset back in the old store, if the offset was moved back in the new store
    after the copy."""
    only: GroupScope | None = None

    @cached_property
    def planner(self) -> Planner:
        return replace(self.base, known=((self.plan, self.state),), rewinds_stale=self.allow_rewind)

    @cached_property
    def groups(self) -> list[str]:
        """The names of the groups in the first plan's target, sorted.

        Raises `UsageError` if the reverse plan would give two groups the same name.
        """
        names = sorted(self._positions)
        check_renames(self.base.options.rename, names)
        return names

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {
            group.target_group: position
            for position, group in self.plan.positioned_groups()
            if self.only is None or group.group in self.only
        }

    def steps(self) -> Iterator[GroupPlan]:
        """Yields the reverse plan, group by group, lazily."""
        for reverse in self.planner.plan(self.groups):
            forward = self.plan.group_at(self._positions[reverse.group])
            found = reverse if reverse.error else self._with_lost_offsets(reverse, forward)
            yield replace(found, wave=forward.wave, owner=forward.owner)

    def _with_lost_offsets(self, reverse: GroupPlan, forward: GroupPlan) -> GroupPlan:
        steps = {step.tp: step for step in reverse.steps}
        for tp in sorted(copied_steps(forward, self.state)):
            step = steps.get(tp)
            if step is None or step.action is Action.TARGET_ONLY:
                why = f"it was copied to {self.base.source.uri}, and is gone from there: deleted, or expired"
                steps[tp] = PlanStep(tp, Action.REFUSE_LOST, None, step.target if step else None, None, why)
        planned = tuple(steps[tp] for tp in sorted(steps))
        if any(step.action is not Action.TARGET_ONLY for step in planned):
            return replace(reverse, steps=planned)
        return replace(reverse, steps=planned, note=f"{LEFT_OUT}{self._reason_for_nothing(forward)}")

    def _reason_for_nothing(self, forward: GroupPlan) -> str:
        if forward.error:
            return f"it was never copied ({forward.error})"
        none = f"{self.base.source.uri} holds none of it"
        rejected = next((step for step in forward.steps if step.action.rejects), None)
        if rejected is not None:
            return f"it was never copied ({rejected.tp} {rejected.action}), and {none}"
        return f"there was nothing to copy, and {none}" if not forward.writes() else f"it was never copied, and {none}"
