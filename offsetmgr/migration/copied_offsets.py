"""The offsets that two stores held after a plan copied groups between them, as evidence for `last_writes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from offsetmgr.core.clock import CLOCK_BOUND_MS
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.last_writes import LastCopy, LastWrites
from offsetmgr.groups.operation_log import MAX_GROUPS, OperationLog, RecordedOperation
from offsetmgr.migration.journaled_writer import OPERATIONS, open_renewed
from offsetmgr.migration.plan import Action, GroupPlan, PlanFile, PlanStep
from offsetmgr.migration.progress import MigrationState

_BY_COPY: Final = (Action.COPY, Action.REWIND, Action.SKIP_EQUAL)
"""The actions after which the two offsets do not show which store the consumers use."""
_RUN_MS: Final = 86_400_000
"""The time for which a run without a recorded end may have written."""


def copied_steps(plan: GroupPlan, state: MigrationState) -> dict[TopicPartition, PlanStep]:
    """Returns the steps of a plan whose offset both stores held after apply, by the target's partition."""
    return {tp: step for tp, step in transferred_steps(plan, state).items() if step.origin is None}


def transferred_steps(plan: GroupPlan, state: MigrationState) -> dict[TopicPartition, PlanStep]:
    """Returns the steps of a plan whose offset the target held after apply, by the target's partition."""
    done = state.partitions(state.apply, plan.name)
    transferred = done.written | done.unchanged | done.in_doubt
    expected = (step for step in plan.steps if step.after is not None and step.source is not None)
    return {s.tp: s for s in expected if not s.action.writes or s.tp in transferred}


StepsOf: TypeAlias = Callable[[GroupPlan, MigrationState], dict[TopicPartition, PlanStep]]


def last_writes(
    source: OffsetStore, target: OffsetStore, *known: tuple[PlanFile, MigrationState], **options: Any
) -> LastWrites:
    """Returns `LastWrites` with the evidence of `CopiedOffsets`; ``options`` are its other arguments."""
    copies = CopiedOffsets(source, target, *known)
    return LastWrites(source, target, copied=copies.of, own_write=copies.own_write, **options)


class CopiedOffsets:
    """The copies between two stores, by the plans ``known`` and by the plans that this machine's operation log names.
    The newest plan decides."""

    def __init__(self, source: OffsetStore, target: OffsetStore, *known: tuple[PlanFile, MigrationState]) -> None:
        self._stores = (source, target)
        self._known = known

    def of(self, source: str, target: str, steps_of: StepsOf = copied_steps) -> dict[TopicPartition, LastCopy]:
        """Returns the copies of a group's partitions, from its names in the two stores. `transferred_steps` returns
        those of translated offsets too."""
        for plan, state, positions, reverse in self._plans:
            name, other = (target, source) if reverse else (source, target)
            if name not in positions or state.is_group_rolled_back(name):
                continue
            group = plan.group_at(positions[name])
            if group.target_group == other:
                times = [at for at in (state.apply.at.get(name), state.copied_at(group)) if at is not None]
                clock_ms = CLOCK_BOUND_MS + (plan.header.clock.correction_ms if plan.header.clock else 0)
                at_ms = max(times, default=plan.header.created_at) + clock_ms
                copies = {}
                for tp, step in steps_of(group, state).items():
                    if step.source is not None and step.after is not None:
                        here, there = step.source.offset, step.after.offset
                        pair = (there, here) if reverse else (here, there)
                        copies[tp] = LastCopy(pair, at_ms if step.action in _BY_COPY else None)
                return copies
        return {}

    def own_write(self, side: int, group: str, at_ms: int) -> str:
        """Returns why a commit to the source (0) or target (1) at this time may not be that of a consumer.

        The reason is that offsetmgr restored an older offset then, or executed a plan that cannot be read now. The
        result is empty if there is no such reason.
        """
        assert self._plans is not None  # reads the plans
        here, there = self._stores[side].uri, self._stores[1 - side].uri
        kind = here.partition(":")[0] + ":"
        for run, why in self._own_writes:
            named = group in run.start.groups or len(run.start.groups) >= MAX_GROUPS
            end_ms = run.ended_ms or run.at_ms + _RUN_MS
            is_then = run.at_ms - CLOCK_BOUND_MS <= at_ms <= end_ms + CLOCK_BOUND_MS
            # the log may name the store by the addresses of other brokers or by another name of a host
            is_here = any(uri == here or (uri != there and uri.startswith(kind)) for uri in run.start.stores)
            if named and is_then and is_here:
                return why
        return self._problem

    @cached_property
    def _plans(self) -> list[tuple[PlanFile, MigrationState, dict[str, int], bool]]:
        """The plans with the positions of their groups, and whether each is in the other direction."""
        ids = [(one.kind, {one.id, *one.former}) for one in (store.identity() for store in self._stores)]
        plans = []
        for plan, state in self._all():
            sides = (plan.header.source, plan.header.target)
            for reverse, of_plan in ((False, sides), (True, sides[::-1])):
                if all(side.kind == one[0] and side.id in one[1] for side, one in zip(of_plan, ids, strict=True)):
                    positions = {group.name: position for position, group in plan.positioned_groups()}
                    plans.append((plan, state, positions, reverse))
        return plans

    def _all(self) -> Iterator[tuple[PlanFile, MigrationState]]:
        yield from self._known
        log = OperationLog()
        self._own_writes: list[tuple[RecordedOperation, str]] = []
        runs: list[RecordedOperation] = []
        try:
            runs = log.operations()
            problem: OffsetMgrError | None = next(iter([*log.damaged, *log.newer.values()]), None)
        except OffsetMgrError as error:
            problem = error
        self._problem = (
            f"offsetmgr may have written it: its operation log cannot be read ({problem})" if problem else ""
        )
        applied: dict[str, RecordedOperation] = {}
        for run in reversed(runs):
            if run.undoes or run.start.name == OPERATIONS["undo"]:
                self._own_writes.append((run, f"offsetmgr restored an older offset then (operation {run.id})"))
            elif run.start.name in (OPERATIONS["apply"], OPERATIONS["refresh"]):
                for file in run.start.files:
                    applied.setdefault(file, run)
        for file, run in applied.items():
            try:
                yield open_renewed(Path(file))
            except OffsetMgrError as error:  # the plan was removed, or its journal is damaged
                why = f"offsetmgr wrote it then, or a consumer (operation {run.id}, whose plan cannot be read: {error})"
                self._own_writes += [(one, why) for one in runs if file in one.start.files]
