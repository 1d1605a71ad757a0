"""The way back after cut-over: a plan in the other direction, made with what the first plan and its journal know.

The offsets are today's; the first plan only tells which groups and partitions are meant, and what became of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from offsetmgr.migration.plan import Action, GroupPlan, IfAhead, PlanOptions, Step, check_renames, literal
from offsetmgr.migration.planfile import PlanFile
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.state import MigrationState
from offsetmgr.model import TopicPartition


def reverse_options(plan: PlanFile) -> PlanOptions:
    """The options of a plan that leads back: the same groups under their old names, the same topics, and nothing
    that would move a group backwards."""
    options = plan.header.options
    back = {group.target_group: group.group for group in plan.groups() if group.target_group != group.group}
    groups = tuple(literal(group.target_group) for group in plan.groups())
    return PlanOptions(IfAhead.KEEP, options.clamp, options.topics, groups, back, onto_existing=True)


@dataclass(frozen=True)
class WayBack:
    """Plans every group of ``plan`` back; ``planner`` leads in the other direction, with `reverse_options`.

    A group that never came over has an entry with a note and stops nobody; what was copied and is gone is refused.
    """

    plan: PlanFile
    state: MigrationState
    planner: Planner

    @cached_property
    def groups(self) -> list[str]:
        """The groups by their names in the first plan's target, sorted. Raises `UsageError` where two would become
        one."""
        names = sorted(self._positions)
        check_renames(self.planner.options.rename, names)
        return names

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {group.target_group: position for position, group in self.plan.positioned_groups()}

    def steps(self) -> Iterator[GroupPlan]:
        """The plan back, group by group, lazily."""
        for back in self.planner.plan(self.groups):
            yield back if back.error else self._with_what_is_gone(back)

    def _with_what_is_gone(self, back: GroupPlan) -> GroupPlan:
        forward = self.plan.group_at(self._positions[back.group])
        steps = {step.tp: step for step in back.steps}
        for tp in sorted(self._came_over(forward)):
            step = steps.get(tp)
            if step is None or step.action is Action.TARGET_ONLY:
                why = f"it was copied to {self.planner.source.uri}, and is gone from there: deleted, or expired"
                steps[tp] = Step(tp, Action.REFUSE_GONE, None, step.target if step else None, None, why)
        planned = tuple(steps[tp] for tp in sorted(steps))
        if any(step.action is not Action.TARGET_ONLY for step in planned):
            return replace(back, steps=planned)
        return replace(back, steps=planned, note=f"left out: {self._why_not(forward)}")

    def _came_over(self, forward: GroupPlan) -> set[TopicPartition]:
        """The partitions that the first plan's target held once it was applied, as far as the source had them too."""
        done = self.state.partitions(self.state.apply, forward.group)
        copied = done.written | done.left | done.maybe
        expected = (step for step in forward.steps if step.after is not None and step.source is not None)
        return {step.tp for step in expected if not step.action.writes or step.tp in copied}

    def _why_not(self, forward: GroupPlan) -> str:
        if forward.error:
            return f"it was never copied ({forward.error})"
        none = f"{self.planner.source.uri} holds none of it"
        refused = next((step for step in forward.steps if step.action.refuses), None)
        if refused is not None:
            return f"it was never copied ({refused.tp} {refused.action}), and {none}"
        return f"there was nothing to copy, and {none}" if not forward.writes() else f"it was never copied, and {none}"
