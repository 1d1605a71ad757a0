"""Rolls a plan back: restores the before-images and deletes the offsets that apply created.

A partition is changed only if it still holds the offset that apply wrote. If it holds another offset, another client
has committed since, and the partition is rejected. With ``allow_rewind``, the rollback overwrites this offset, after it
has recorded the offset in the journal. After the cutover, the before-images would rewind the groups; use a reverse plan
instead.

The rollback of one run of apply restores only the partitions that this run wrote. If the run, or another run, was
interrupted at a partition, the journal does not record which of the two wrote the offset, and the partition is
rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import GateRefused, JournalError, OffsetMgrError, UsageError
from offsetmgr.core.log_origin import TranslationChoice
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import AheadPolicy, OffsetStore
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import TopicSelection, literal_pattern
from offsetmgr.groups.edits import groups_left_without_offsets
from offsetmgr.migration.apply import check_endpoint, recreated_topics, without_recreated
from offsetmgr.migration.copied_offsets import copied_steps, transferred_steps
from offsetmgr.migration.journaled_writer import GroupWrite, JournaledWriter, Report, late_deletion, with_offsets
from offsetmgr.migration.plan import (
    LEFT_OUT,
    Action,
    GroupPlan,
    GroupScope,
    PlanFile,
    PlanOptions,
    PlanStep,
    check_renames,
)
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import GroupProgress, MigrationState
from offsetmgr.translation.alignment import Verdict


class RollbackPreview(NamedTuple):
    """A partition that a rollback would restore from the offset ``applied`` to ``before``, or has left alone. It holds
    ``now``; None means no offset. ``problem`` is the reason for which it is not restored, and ``note`` a remark about
    the offset; empty strings if there are none."""

    group: str
    tp: TopicPartition
    applied: int | None
    now: int | None
    before: int | None
    problem: str = ""
    note: str = ""


@dataclass(slots=True)
class RollbackReport(Report):
    """The result of a rollback: a `Report`, and the partitions that it left alone although they do not hold their
    before-image.

    ``differing`` counts the planned partitions whose write the journal does not record, and whose offset is not the
    before-image. If there are any, the journal may be truncated, or another client has committed. ``differences`` has
    the first `SHOWN` of them. ``compared`` counts the groups with such partitions, ``recorded`` the groups of the plan
    that the journal records as started, and ``planned`` the groups of the plan. ``created`` counts the offsets that
    apply had created. ``empty_groups`` had no offset before apply, and exist without an offset now.

    >>> RollbackReport(groups=1, written=4, differing=1).ok
    False
    """

    differing: int = 0
    differences: tuple[RollbackPreview, ...] = ()
    compared: int = 0
    recorded: int = 0
    planned: int = 0
    created: int = 0
    empty_groups: tuple[str, ...] = ()
    plan: Path = Path()
    target: str = ""
    whole: bool = False
    """Whether the rollback covers all groups of the plan, and all runs of apply."""
    late: str = ""
    """A warning if the store ``target`` does not delete offsets at once."""

    @property
    def nothing_to_do(self) -> bool:
        """Whether earlier rollbacks had restored every group."""
        return not (self.groups or self.failed or self.interrupted or self.closed)

    @property
    def ok(self) -> bool:
        """Whether every offset that apply wrote is as it was before, and no other planned offset differs from its
        before-image."""
        return not (self.failed or self.interrupted or self.closed or self.differing)

    def comparison(self) -> Iterator[str]:
        """Describes the differences in lines of text; yields nothing if there was nothing to compare."""
        if not self.compared:
            return
        yield f"the journal records {self.recorded:,} of the plan's {self.planned:,} groups as started"
        for found in self.differences:
            yield Advice("  ! {}: {}", f"{found.group} {found.tp}", found.problem)
        groups = count_of(self.compared, "group")
        compared = f"compared, in {groups}, the offsets that the journal does not record as written"
        if not self.differing:
            yield f"{compared}: every offset is as it was before"
            return
        if self.differing > SHOWN:
            yield f"  ! and {self.differing - SHOWN:,} more"
        yield f"{compared}: {count_of(self.differing, 'offset')} differ from their before-images; they were not changed"
        yield (
            "hint: another client has committed, or the journal is truncated or older than the last apply: in that case"
            " restore a complete copy and roll back again, or restore a snapshot of the target"
        )

    def uncompared(self) -> str:
        """Describes a rollback after which the comparison of the offsets did not end."""
        failed = f"; failed: {list_of(self.failed, SHOWN)}" if self.failed else ""
        restored = f"{count_of(self.written, 'offset')} restored in {count_of(self.changed, 'group')}{failed}"
        return f"{restored}; the comparison with the before-images did not end"


@dataclass(frozen=True, slots=True)
class Rollback:
    """The undo of the writes that the journal of ``plan`` records, as ``state`` has it, in ``store``. ``only`` limits
    the groups. If ``run`` is given, only the writes of this run of apply are undone; ``only`` must name its groups.
    ``allow_rewind`` restores before-images even if the offset has changed since apply.
    """

    plan: PlanFile
    state: MigrationState
    store: OffsetStore
    only: GroupScope | None = None
    run: GroupProgress | None = None
    allow_rewind: bool = False

    def execute(self, writer: JournaledWriter) -> None:
        """Undoes the writes, or resumes an earlier rollback. A group that was finalized by itself is not changed; the
        report names it in ``closed``.

        Raises `JournalError` if nothing was applied, `GateRefused` if the plan was finalized (use a reverse plan
        instead), and `PlanError` if the store is not the plan's target.
        """
        self._check()
        report, closed, state = writer.report, dict[str, str](), self.state

        def tasks() -> Iterator[GroupWrite]:
            for group in self.plan.groups_of(self.only):
                name, is_done = group.name, group.name in state.undo.done
                if name in state.finalized:
                    closed[name] = Advice("it was finalized; use {reverse_plan} FILE")
                elif self.run is None and is_done and not state.is_rolled_back_in_part(name):
                    report.skipped += 1
                elif task := self._task(group):
                    yield task
                else:
                    report.skipped += is_done

        todo = self._without_deleted_logs(tasks())
        writer.run(_with_current_offsets(todo, self.store) if self.allow_rewind else todo)
        report.closed = closed
        if not (report.groups or report.skipped or closed or report.interrupted):
            raise JournalError(
                f"plan {self.plan.path}",
                "according to its journal, apply wrote nothing, so there is nothing to roll back",
                f"the journal is {writer.journal.path}: check that it is the journal of the run that applied the plan",
            )

    def preview(self) -> Iterator[RollbackPreview]:
        """Yields the partitions that `execute` would restore now, then those that it would leave alone although they
        do not hold their before-images. Raises the same errors."""
        self._check()
        tasks = self._without_deleted_logs(self._tasks())
        for task, current in with_offsets(self.store, tasks, lambda task: task.target_group):
            for step in task.steps:
                offsets = (step.target, current.offsets.get(step.tp), step.after)
                applied, now, before = (one and one.offset for one in offsets)
                error = task.rejected.get(step.tp) or current.error or current.errors.get(step.tp)
                problem = "" if error is None else error.text
                if not problem and not self.allow_rewind and now not in (applied, before):
                    problem = "it has changed since apply"
                yield RollbackPreview(task.target_group, step.tp, applied, now, before, problem)
        yield from self._differences()

    def restored_offsets(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yields the offsets that `execute` would restore if nothing has changed since apply. Reads no store."""
        for task in self._tasks():
            yield from ((step.tp, step.after.offset) for step in task.steps if step.after is not None)

    def compare(self, report: RollbackReport, progress: Callable[..., Iterable[RollbackPreview]]) -> None:
        """Adds the differences that a rollback left to its ``report``, and what apply had created. ``progress`` yields
        the differences that it gets, with a second argument that names the work."""
        if report.interrupted:
            return
        plan, state = self.plan, self.state
        report.compared = sum(1 for _ in self._unrecorded_writes())
        for found in progress(self._differences() if report.compared else (), "comparing"):
            report.differing += 1
            report.differences = (*report.differences, found)[:SHOWN]
        if not (report.groups and report.ok):
            return
        created = set()
        for group in plan.groups():
            if group.name in state.apply.intents:
                applied = state.partitions(state.apply, group.name)
                wrote = applied.written | applied.in_doubt
                report.created += sum(one.target is None and one.tp in wrote for one in group.writes())
                created |= {group.target_group} if all(one.target is None for one in group.steps) else set()
        report.empty_groups = tuple(groups_left_without_offsets(self.store, sorted(created)))
        report.late = late_deletion(self.store)

    def _check(self) -> None:
        """Raises the errors of `execute` that the plan and the journal cause."""
        plan, state = self.plan, self.state
        check_endpoint("target", plan.header.target, self.store)
        if not state.apply.intents:
            raise JournalError(f"plan {plan.path}", "nothing was applied, so there is nothing to roll back")
        if state.finalized_at is not None:
            raise GateRefused(
                f"rollback of {plan.path}",
                "the plan was finalized: its before-images would rewind groups that consume from the target now",
                Advice("use {reverse_plan} FILE: it plans the way back with the current offsets"),
            )

    def _tasks(self) -> Iterator[GroupWrite]:
        """Yields the undo of each group that was not finalized by itself."""
        groups = (group for group in self.plan.groups_of(self.only) if group.name not in self.state.finalized)
        return (task for group in groups if (task := self._task(group)))

    def _unrecorded_writes(self) -> Iterator[tuple[GroupPlan, list[PlanStep]]]:
        """Yields, by group, the planned writes for which the journal has no final outcome. Apply stopped before these
        writes, the writes failed, or the end of the journal was lost."""
        for group in self.plan.groups_of(self.only):
            steps = group.writes()
            if group.name in self.state.apply.intents:
                applied = self.state.partitions(self.state.apply, group.name)
                known = applied.written | applied.in_doubt | applied.unchanged
                steps = [step for step in steps if step.tp not in known]
            if steps:
                yield group, steps

    def _differences(self) -> Iterator[RollbackPreview]:
        """Yields the partitions without a recorded outcome whose offset in the target differs from the plan's
        before-image.

        If the end of the journal was lost, the rest looks like the journal of an apply run that was stopped early.
        Therefore only the target shows whether these partitions were written.
        """
        unrecorded = self._unrecorded_writes()
        for (group, steps), current in with_offsets(self.store, unrecorded, lambda item: item[0].target_group):
            for step in steps:
                before, now = (one and one.offset for one in (step.target, current.offsets.get(step.tp)))
                if error := current.error or current.errors.get(step.tp):
                    yield RollbackPreview(group.target_group, step.tp, None, now, before, error.text)
                elif before != now:
                    held = ("no offset" if one is None else one for one in (now, before))
                    problem = "holds {}, and held {} before the plan was applied".format(*held)
                    yield RollbackPreview(group.target_group, step.tp, None, now, before, problem)

    def _without_deleted_logs(self, tasks: Iterator[GroupWrite]) -> Iterator[GroupWrite]:
        """Yields the tasks, in which a before-image of a topic that was recreated since the plan is marked as
        rejected."""
        hint = "the offset points into the deleted log; set a new one with offsets reset"
        return without_recreated(tasks, recreated_topics(self.plan, self.store), hint)

    def _task(self, group: GroupPlan) -> GroupWrite | None:
        """Returns the undo of a group: only the partitions that apply, or one run of it, has written or may have
        written."""
        state, run = self.state, self.run
        applied = state.partitions(state.apply if run is None else run, group.name)
        to_undo = applied.written | applied.in_doubt
        in_doubt: frozenset[TopicPartition] = frozenset()
        if group.name in state.undo.intents:
            undone = state.partitions(state.undo, group.name)
            to_undo = to_undo - undone.written - undone.unchanged
            in_doubt = undone.in_doubt
        steps = tuple(
            PlanStep(step.tp, Action.REWIND, None, step.after, step.target)
            for step in state.intended(state.apply, group.name)
            if step.tp in to_undo
        )
        if not steps:
            return None
        terms = ("the offset that apply wrote", "the before-image")
        rejected = {} if run is None else _also_of_other_runs(group, state, run, to_undo)
        return GroupWrite(group.name, group.target_group, steps, group.guard, in_doubt, terms=terms, rejected=rejected)


def _with_current_offsets(tasks: Iterator[GroupWrite], store: OffsetStore) -> Iterator[GroupWrite]:
    """Yields the tasks with the store's current offsets as before-images. Therefore the journal contains every offset
    that a forced rollback overwrites. Unreadable partitions are rejected."""
    for task, current in with_offsets(store, tasks, lambda task: task.target_group):
        held = current.offsets
        steps = tuple(one._replace(target=held[one.tp].value() if one.tp in held else None) for one in task.steps)
        errors = ((step.tp, current.error or current.errors.get(step.tp)) for step in steps)
        rejected = {**{tp: error for tp, error in errors if error is not None}, **task.rejected}
        yield replace(task, steps=steps, rejected=rejected, terms=("the offset read just before", "the before-image"))


def _also_of_other_runs(
    group: GroupPlan, state: MigrationState, run: GroupProgress, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, OffsetMgrError]:
    """Returns the partitions that another run of apply has written or may have written too, each with the reason."""
    found: dict[TopicPartition, OffsetMgrError] = {}
    for other in (one for one in state.apply_runs if one is not run):
        applied = state.partitions(other, group.name)
        for tp in partitions & (applied.written | applied.in_doubt):
            name = f"the run {other.operation}" if other.operation else "a run of an older offsetmgr"
            why = f"{name} may have written it too: one of the two runs was interrupted, so its writes are unknown"
            leave_out = Advice("{}; leave out {run} to undo all runs of the group", why)
            found[tp] = UsageError(f"group {group.target_group}, {tp}", leave_out)
    return found


# The reverse plan after the cutover: a plan in the other direction, made from the first plan and its journal. A
# reverse plan copies the current offsets of the new store. The offsets in the first plan are not copied: the first
# plan only selects the groups and partitions, and its journal shows which partitions were copied.


def reverse_options(plan: PlanFile, only: GroupScope | None = None, if_ahead: AheadPolicy | None = None) -> PlanOptions:
    """Returns the options of a reverse plan. They select the same topics and groups (of the groups, only those in
    ``only``), give the groups their original names, and shift offsets back. ``if_ahead`` is the caller's word."""
    options = plan.header.options
    reverse = {group.target_group: group.name for group in plan.groups_of(only) if group.target_group != group.name}
    groups = tuple(literal_pattern(group.target_group) for group in plan.groups_of(only))
    topics: TopicSelection | tuple[str, ...] = options.selection
    if plan.header.rules is not None and not options.selection.everything:
        topics = tuple(sorted({f"{tp.topic}:{tp.partition}" for one in plan.groups_of(only) for tp, *_ in one.steps}))
    return PlanOptions(if_ahead, options.clamp, topics, groups, reverse, onto_existing=True, shift=-options.shift)


def reverse_choice(plan: PlanFile) -> TranslationChoice | None:
    """Returns how a reverse plan treats offsets of another cluster. With rules, topics get their original names, and
    the records that the old store's cluster holds beyond the copies do not count as missing. The user has accepted that
    the copy lacks records, but not that the old store's cluster lacks some."""
    if (rules := plan.header.rules) is None:
        return plan.header.translate
    topics = {step.tp.topic: step.source_tp.topic for group in plan.groups() for step in group.steps if step.origin}
    back = tuple(f"{re.escape(copy)}={topic}" for copy, topic in sorted(topics.items()) if copy != topic)
    accepts = tuple(verdict for verdict in rules.accepts if verdict != Verdict.MISSING)
    return rules._replace(topics=back, accepts=accepts, back=not rules.back)


def skipped_on_the_way_back(forward: PlanStep, offset: int | None) -> tuple[int, str]:
    """Returns the number of records that a group would never get if it goes back to ``offset``, because the copy lacked
    them, and a text that names them; "" if there are none."""
    lacked = 0 if forward.origin is None else forward.origin.skips or 0
    if not lacked or forward.source is None or offset is None or offset <= forward.source.offset:
        return 0, ""
    records = f"the copy lacked {count_of(lacked, 'record')} from offset {forward.source.offset} on"
    return lacked, f"{records}, which {offset} skips"


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
            if self.only is None or group.name in self.only
        }

    def steps(self) -> Iterator[GroupPlan]:
        """Yields the reverse plan, group by group, lazily."""
        for reverse in self.planner.plan(self.groups):
            forward = self.plan.group_at(self._positions[reverse.name])
            found = reverse if reverse.error else self._with_lost_offsets(reverse, forward)
            yield replace(found, wave=forward.wave, owner=forward.owner)

    def _with_lost_offsets(self, reverse: GroupPlan, forward: GroupPlan) -> GroupPlan:
        steps = {step.tp: step for step in reverse.steps}
        is_translated = self.base.translations is not None
        copied = transferred_steps(forward, self.state) if is_translated else copied_steps(forward, self.state)
        for one in copied.values():
            tp = one.source_tp
            step = steps.get(tp)
            if step is None or step.action is Action.TARGET_ONLY:
                why = f"it was copied to {self.base.source.uri}, and is gone from there: deleted, or expired"
                steps[tp] = PlanStep(tp, Action.REFUSE_LOST, None, step.target if step else None, None, why)
            elif step.action.writes and (skips := skipped_on_the_way_back(one, step.after and step.after.offset)[1]):
                another = Advice(
                    "{}; to skip them, plan the way back as another move: {}", skips, Invocation("migrate plan")
                )
                steps[tp] = step._replace(action=Action.REFUSE_UNSURE, after=None, note=another)
        planned = tuple(steps[tp] for tp in sorted(steps))
        if any(step.action is not Action.TARGET_ONLY for step in planned):
            return replace(reverse, steps=planned)
        return replace(reverse, steps=planned, note=f"{LEFT_OUT}{self._reason_for_nothing(forward)}")

    def _reason_for_nothing(self, forward: GroupPlan) -> str:
        if forward.error:
            return f"it was never copied ({forward.error})"
        rejected = next((f" ({step.tp} {step.action})" for step in forward.steps if step.action.rejects), "")
        why = f"it was never copied{rejected}" if rejected or forward.writes() else "there was nothing to copy"
        return f"{why}, and {self.base.source.uri} holds none of it"
