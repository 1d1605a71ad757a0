"""Applying a plan: writes exactly what stands in it, and only where the target still holds what the plan saw."""

from __future__ import annotations

from collections.abc import Iterator

from offsetmgr.errors import JournalError, PlanError
from offsetmgr.migration.execute import Executor, Report, Task
from offsetmgr.migration.plan import Endpoint, GroupPlan
from offsetmgr.migration.planfile import PlanFile
from offsetmgr.migration.planner import endpoint
from offsetmgr.migration.state import MigrationState
from offsetmgr.model import TopicPartition
from offsetmgr.stores.base import OffsetStore


def check_endpoint(side: str, planned: Endpoint, store: OffsetStore) -> None:
    """Raises `PlanError` where a store is not the one that the plan was made for (rule 8)."""
    found = endpoint(store)
    if (found.kind, found.id) != (planned.kind, planned.id):
        raise PlanError(
            f"{side} {store.uri}",
            f"the plan was made for {planned.kind} {planned.id} ({planned.how}), this is {found.kind} {found.id}"
            f" ({found.how})",
            "make a plan for this cluster",
        )


def apply(plan: PlanFile, state: MigrationState, executor: Executor) -> Report:
    """Applies a plan, or goes on where an earlier run stopped.

    ``executor.store`` is the target. Groups that the plan could not read, and steps that it refuses, are not touched;
    the report counts only what was to be written. Raises `PlanError` for another cluster, `JournalError` where the
    plan was rolled back or finalized.
    """
    check_endpoint("target", plan.header.target, executor.store)
    if state.undo.touched:
        raise JournalError(f"plan {plan.path}", "it was rolled back", "make a new plan")
    if state.finalized_at is not None:
        raise JournalError(f"plan {plan.path}", "it was finalized", "make a new plan")
    skipped = 0

    def tasks() -> Iterator[Task]:
        nonlocal skipped
        for group in plan.groups():
            if group.group in state.apply.settled:
                skipped += 1
            elif task := _task(group, state):
                yield task

    report = executor.run(tasks())
    report.skipped = skipped
    return report


def _task(group: GroupPlan, state: MigrationState) -> Task | None:
    steps = group.writes()
    maybe: frozenset[TopicPartition] = frozenset()
    if group.group in state.apply.intents:
        so_far = state.partitions(state.apply, group.group)
        steps = [step for step in steps if step.tp not in so_far.written and step.tp not in so_far.left]
        maybe = so_far.maybe
    if not steps:
        return None
    return Task(group.group, group.target_group, tuple(steps), group.guard, maybe, keep_newer=True)
