"""The reverse plan after the cutover: a plan in the other direction, made from the first plan and its journal.

A reverse plan copies the current offsets of the new store. The offsets in the first plan are not copied: the first plan
only selects the groups and partitions, and its journal shows which partitions were copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.groups.selection import literal_pattern
from offsetmgr.migration.plan import (
    Action,
    AheadPolicy,
    GroupPlan,
    GroupScope,
    PlanOptions,
    PlanStep,
    check_renames,
)
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState


def reverse_options(plan: PlanFile, only: GroupScope | None = None) -> PlanOptions:
    """Returns the options of a reverse plan. They select the same topics and groups (of the groups, only those in
    ``only``), give the groups their original names, and keep an offset that is ahead in the old store."""
    options = plan.header.options
    reverse = {group.target_group: group.group for group in plan.groups_of(only) if group.target_group != group.group}
    groups = tuple(literal_pattern(group.target_group) for group in plan.groups_of(only))
    return PlanOptions(AheadPolicy.KEEP, options.clamp, options.topics, groups, reverse, onto_existing=True)


class _Forward(NamedTuple):
    """One group in the first plan. ``copied`` maps the target's partitions to the steps whose offsets were copied."""

    plan: GroupPlan
    copied: dict[TopicPartition, PlanStep]


@dataclass(frozen=True)
class ReversePlanner:
    """Plans every group of ``plan`` in the other direction, or only those in ``only``. ``base`` is the planner of the
    other direction, with `reverse_options`.

    A group that was never copied gets an entry with a note. If a copied offset no longer exists in the new store, the
    step is refused. If the old store is ahead and still holds the offset that was copied, no member has committed to
    the old store since the copy. This means that the offset was moved back in the new store, so the reverse step is a
    rewind. The rewind is refused unless ``allow_rewind`` is True.
    """

    plan: PlanFile
    state: MigrationState
    base: Planner
    allow_rewind: bool = False
    """Whether the reverse plan may move an offset back in the old store, if the offset was moved back in the new store
    after the copy."""
    only: GroupScope | None = None
    _read: dict[str, _Forward] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def planner(self) -> Planner:
        return replace(self.base, options_for=self._options)

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

    @cached_property
    def _options_if_rewound(self) -> PlanOptions:
        return replace(self.base.options, if_ahead=AheadPolicy.REWIND if self.allow_rewind else AheadPolicy.REFUSE)

    def steps(self) -> Iterator[GroupPlan]:
        """Yields the reverse plan, group by group, lazily."""
        for reverse in self.planner.plan(self.groups):
            forward = self._forward(reverse.group).plan
            yield replace(
                reverse if reverse.error else self._with_lost_offsets(reverse), wave=forward.wave, owner=forward.owner
            )

    def _options(self, name: str, tp: TopicPartition, target_offset: Committed) -> PlanOptions:
        step = self._forward(name).copied.get(tp)
        unchanged = step is not None and step.source is not None and step.source.offset == target_offset.offset
        return self._options_if_rewound if unchanged else self.base.options

    def _forward(self, name: str) -> _Forward:
        """Returns the group in the first plan. Caches the last group, because the steps of a group are requested one
        after the other."""
        if name not in self._read:
            self._read.clear()
            forward = self.plan.group_at(self._positions[name])
            self._read[name] = _Forward(forward, self._copied_steps(forward))
        return self._read[name]

    def _copied_steps(self, forward: GroupPlan) -> dict[TopicPartition, PlanStep]:
        """Returns the steps of the first plan whose offset both stores held after apply. The keys are the target's
        partitions."""
        done = self.state.partitions(self.state.apply, forward.group)
        transferred = done.written | done.unchanged | done.in_doubt
        expected = (step for step in forward.steps if step.after is not None and step.source is not None)
        return {s.tp: s for s in expected if s.origin is None and (not s.action.writes or s.tp in transferred)}

    def _with_lost_offsets(self, reverse: GroupPlan) -> GroupPlan:
        forward, copied = self._forward(reverse.group)
        steps = {step.tp: step for step in reverse.steps}
        for tp in sorted(copied):
            step = steps.get(tp)
            if step is None or step.action is Action.TARGET_ONLY:
                why = f"it was copied to {self.base.source.uri}, and is gone from there: deleted, or expired"
                steps[tp] = PlanStep(tp, Action.REFUSE_LOST, None, step.target if step else None, None, why)
        planned = tuple(steps[tp] for tp in sorted(steps))
        if any(step.action is not Action.TARGET_ONLY for step in planned):
            return replace(reverse, steps=planned)
        return replace(reverse, steps=planned, note=f"left out: {self._reason_for_nothing(forward)}")

    def _reason_for_nothing(self, forward: GroupPlan) -> str:
        if forward.error:
            return f"it was never copied ({forward.error})"
        none = f"{self.base.source.uri} holds none of it"
        rejected = next((step for step in forward.steps if step.action.rejects), None)
        if rejected is not None:
            return f"it was never copied ({rejected.tp} {rejected.action}), and {none}"
        return f"there was nothing to copy, and {none}" if not forward.writes() else f"it was never copied, and {none}"
