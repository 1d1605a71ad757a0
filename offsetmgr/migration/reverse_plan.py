"""The reverse plan after cut-over: a plan in the other direction, based on the first plan and its journal.

Its offsets are the current ones; the first plan only selects the groups and partitions and tells their outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.migration.plan import Action, AheadPolicy, GroupPlan, PlanOptions, PlanStep, check_renames, literal
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState


def reverse_options(plan: PlanFile) -> PlanOptions:
    """Returns the options of a reverse plan: the same groups under their old names, the same topics, and no rewinds."""
    options = plan.header.options
    back = {group.target_group: group.group for group in plan.groups() if group.target_group != group.group}
    groups = tuple(literal(group.target_group) for group in plan.groups())
    return PlanOptions(AheadPolicy.KEEP, options.clamp, options.topics, groups, back, onto_existing=True)


class _Forward(NamedTuple):
    """The first plan's part of a group, and its steps that were copied."""

    plan: GroupPlan
    came_over: dict[TopicPartition, PlanStep]


@dataclass(frozen=True)
class ReversePlanner:
    """Plans every group of ``plan`` in reverse; ``base`` plans in the other direction, with `reverse_options`.

    A group that was never copied has an entry with a note; a copied offset that has disappeared is refused. If the old
    store still holds what it held at the copy, no member has consumed there since, and being ahead means that the
    offset was moved back in the new store: a rewind, which is refused or allowed, and never "newer".
    """

    plan: PlanFile
    state: MigrationState
    base: Planner
    allow_rewind: bool = False
    """Whether offsets that were moved back in the first plan's target after the copy may be moved back here too."""
    _read: dict[str, _Forward] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def planner(self) -> Planner:
        return replace(self.base, options_for=self._options)

    @cached_property
    def groups(self) -> list[str]:
        """Returns the groups by their names in the first plan's target, sorted. Raises `UsageError` if two would become
        one."""
        names = sorted(self._positions)
        check_renames(self.base.options.rename, names)
        return names

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {group.target_group: position for position, group in self.plan.positioned_groups()}

    @cached_property
    def _of_rewound(self) -> PlanOptions:
        return replace(self.base.options, if_ahead=AheadPolicy.REWIND if self.allow_rewind else AheadPolicy.REFUSE)

    def steps(self) -> Iterator[GroupPlan]:
        """Yields the reverse plan, group by group, lazily."""
        for back in self.planner.plan(self.groups):
            yield back if back.error else self._with_what_is_gone(back)

    def _options(self, name: str, tp: TopicPartition, here: Committed) -> PlanOptions:
        copied = self._forward(name).came_over.get(tp)
        untouched = copied is not None and copied.source is not None and copied.source.offset == here.offset
        return self._of_rewound if untouched else self.base.options

    def _forward(self, name: str) -> _Forward:
        """Returns what is known of a group; caches the last one, since its steps come one after the other."""
        if name not in self._read:
            self._read.clear()
            forward = self.plan.group_at(self._positions[name])
            self._read[name] = _Forward(forward, self._came_over(forward))
        return self._read[name]

    def _came_over(self, forward: GroupPlan) -> dict[TopicPartition, PlanStep]:
        """Returns the partitions of the first plan's target after apply that the source had too."""
        done = self.state.partitions(self.state.apply, forward.group)
        copied = done.written | done.left | done.in_doubt
        expected = (step for step in forward.steps if step.after is not None and step.source is not None)
        return {s.tp: s for s in expected if s.origin is None and (not s.action.writes or s.tp in copied)}

    def _with_what_is_gone(self, back: GroupPlan) -> GroupPlan:
        forward, came_over = self._forward(back.group)
        steps = {step.tp: step for step in back.steps}
        for tp in sorted(came_over):
            step = steps.get(tp)
            if step is None or step.action is Action.TARGET_ONLY:
                why = f"it was copied to {self.base.source.uri}, and is gone from there: deleted, or expired"
                steps[tp] = PlanStep(tp, Action.REFUSE_GONE, None, step.target if step else None, None, why)
        planned = tuple(steps[tp] for tp in sorted(steps))
        if any(step.action is not Action.TARGET_ONLY for step in planned):
            return replace(back, steps=planned)
        return replace(back, steps=planned, note=f"left out: {self._why_not(forward)}")

    def _why_not(self, forward: GroupPlan) -> str:
        if forward.error:
            return f"it was never copied ({forward.error})"
        none = f"{self.base.source.uri} holds none of it"
        refused = next((step for step in forward.steps if step.action.refuses), None)
        if refused is not None:
            return f"it was never copied ({refused.tp} {refused.action}), and {none}"
        return f"there was nothing to copy, and {none}" if not forward.writes() else f"it was never copied, and {none}"
