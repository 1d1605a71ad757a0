"""Renews a plan: plans the groups again that apply has not begun, with their present offsets.

The migration of a fleet takes weeks, and the offsets of a plan get old. A renewed plan is a new file with a copy of the
journal. Groups that apply has begun keep their steps, their states and their before-images. All groups keep their waves
and owners. The old plan can no longer be executed: its journal names the new one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, JournalError, OffsetMgrError, PlanError, UsageError
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.groups.scan import scan_in_order
from offsetmgr.migration.apply import recreated_topics
from offsetmgr.migration.journaled_writer import RENEWED, with_offsets
from offsetmgr.migration.plan import Action, GroupPlan, GroupScope, PlanFile, PlanStep, PlanSummary, write_plan
from offsetmgr.migration.planner import Planner, WrittenPlan
from offsetmgr.migration.progress import Journal, MigrationState, copy_journal, journal_path, read_journal
from offsetmgr.stores.known_logs import NEW_LOG

MAX_AGE_MS = 24 * 3_600_000
"""The age of a plan from which apply compares its source."""


def is_waiting(group: GroupPlan, state: MigrationState) -> bool:
    """Whether apply has not begun the group, so that it can be planned again."""
    name = group.name
    closed = state.is_group_rolled_back(name) or state.group_finalized_at(name) is not None
    return not closed and name not in state.apply.intents


def unplanned_groups(plan: PlanFile, source: OffsetStore) -> list[str]:
    """Returns the groups of the source that the plan selects but does not have, because they had no offsets then."""
    options = plan.header.options
    new = set(filter(options.selects_group, source.groups())).difference(group.name for group in plan.groups())
    return [one.name for one in scan_in_order(source, sorted(new)) if any(map(options.selects, one.offsets))]


def reject_stale(
    plan: PlanFile, state: MigrationState, source: OffsetStore, only: GroupScope | None, hint: str, *, always: bool
) -> None:
    """Raises `PlanError`, with ``hint``, if the plan is older than a day, or ``always``, and a group that apply has not
    begun has changed in the source since: a planned offset is another one or gone, or a selected one is new. If the
    time of the plan is more than a day in the future, a clock was wrong, so the age of the plan is unknown, and the
    function checks it like an old one. A topic of the source that was recreated since is always an error, if the plan
    translates its positions. Raises `PlanError` if an offset cannot be read, and any error of the source.
    """
    if recreated := recreated_in_source(plan, source):
        waiting = (group for group in plan.groups_of(only) if is_waiting(group, state))
        steps = (step for group in waiting for step in group.writes() if step.is_translated)
        if (step := next((one for one in steps if one.source_tp.topic in recreated), None)) is not None:
            topic = step.source_tp.topic
            raise PlanError(f"plan {plan.path}", f"topic {topic} of the source: {recreated[topic]}", hint)
    age_ms = SystemClock().now_ms() - plan.header.created_at
    if abs(age_ms) <= MAX_AGE_MS and not always:
        return
    waiting = (group for group in plan.groups_of(only) if is_waiting(group, state) and _compared_steps(plan, group))
    read = with_offsets(source, waiting, lambda group: group.name)
    moved = [group.name for group, found in read if _has_moved(plan, group, found)]
    if moved:
        why = f"{count_of(len(moved), 'group')} changed in the source since then: {list_of(moved, 3)}"
        if days := abs(age_ms) // MAX_AGE_MS:
            text = count_of(days, "day")
            age = f"it is {text} old" if age_ms > 0 else f"its time is {text} in the future, because a clock was wrong"
            why = f"{age}, and {why}"
        raise PlanError(f"plan {plan.path}", why, hint)


def recreated_in_source(plan: PlanFile, source: OffsetStore) -> dict[str, str]:
    """Returns the topics with translated positions that were recreated in the source since, each with the reason."""
    planned = plan.summary.source_topic_ids
    now = source.topic_ids(planned) if planned else {}
    return {
        topic: f"{NEW_LOG}: its topic id was {was} when the plan was made, and is {now[topic]} now"
        for topic, was in planned.items()
        if was and now.get(topic, was) != was
    }


def _compared_steps(plan: PlanFile, group: GroupPlan) -> list[PlanStep]:
    """Returns the steps whose source is compared. Between clusters, a target that holds the offset can get old, too."""
    equal = [step for step in group.steps if step.action is Action.SKIP_EQUAL]
    return [*group.writes(), *(equal if plan.header.rules else ())]


def _has_moved(plan: PlanFile, group: GroupPlan, found: GroupOffsets) -> bool:
    steps = [(step.source_tp, step.source.offset) for step in _compared_steps(plan, group) if step.source is not None]
    unread = (found.errors[tp] for tp, _ in steps if tp in found.errors)
    if (error := found.error or next(unread, None)) is not None:
        why = f"the source of group {group.name} cannot be compared with it: {error}"
        hint = "fix the cause and repeat the command, or leave out the group"
        raise PlanError(f"plan {plan.path}", why, hint) from error
    new = {*found.offsets, *found.errors}.difference(step.source_tp for step in group.steps)
    changed = (tp not in found.offsets or found.offsets[tp].offset != offset for tp, offset in steps)
    return any(changed) or any(map(plan.header.options.selects, new))


def renew(plan: PlanFile, planner: Planner, path: Path, only: GroupScope | None = None) -> WrittenPlan:
    """Writes the renewed plan to the new file ``path``, with its journal. ``planner`` has the options of ``plan``.
    ``only`` limits the groups that are planned again.

    The function writes the new plan under a temporary name, copies the journal, marks the old plan as replaced, and
    renames the new plan, in this order. After a kill, at most one of both plans can be executed: the next call for the
    same ``path`` starts again if the old plan is not replaced, and otherwise `finish_renewal` ends the work.

    A group of which apply wrote nothing, although it tried, keeps its steps like those that were applied. Raises
    `JournalError` if another command works on the plan, if a group is applied in part, or if the plan was rolled back,
    finalized or renewed; `UsageError` if no group is waiting; and the errors of `Planner` and `write_plan`.
    """
    new_journal, part = journal_path(path), _unpublished(plan, path)
    if path.exists():
        raise FileFailure(f"file {path}", "exists already", "choose another name")
    with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        state = MigrationState.read(journal.path, plan.sha256)
        tried = _check(plan, state)
        again = [group.name for group in plan.groups_of(only) if is_waiting(group, state)]
        if not again:
            raise UsageError(f"plan {plan.path}", "apply has begun every group, so there is nothing to plan again")
        _remove_interrupted(_interrupted(plan, path), new_journal)
        header, recreated, new = planner.header(), recreated_topics(plan, planner.target), set(again)
        there = recreated_in_source(plan, planner.source)
        refused = recreated if planner.translations is None else there
        kept = (group for group in plan.groups() if (recreated or there) and group.name not in new)
        topics = {(step.source_tp.topic, step.tp.topic) for group in kept for step in group.writes()}

        def complete(summary: PlanSummary) -> None:
            planner.complete(summary)
            known = plan.summary
            summary.topic_ids |= {topic: known.topic_ids[topic] for _, topic in topics if topic in recreated}
            summary.source_topic_ids |= {topic: known.source_topic_ids[topic] for topic, _ in topics if topic in there}

        try:
            summary, sha256 = write_plan(part, header, _groups(plan, planner, again, refused), complete)
            copy_journal(journal.path, new_journal, sha256)
        except BaseException:
            new_journal.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            raise
        journal.append([{"kind": "renewed", "by": str(path.absolute())}])
        _publish(part, path)
    return WrittenPlan(PlanFile(path), renewed=len(again), kept=summary.groups - len(again), tried=tuple(tried))


def finish_renewal(plan: PlanFile, path: Path) -> bool:
    """Ends a renewal of ``plan`` as ``path`` that was killed after it had replaced ``plan``. Returns False if there is
    no such renewal. Raises `JournalError` if another command works on the plan, and `FileFailure` if ``path`` is
    another file."""
    part = _interrupted(plan, path)
    if not part.exists():
        return False
    with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        if MigrationState.read(journal.path, plan.sha256).renewed_by != str(path.absolute()):
            return False
        _publish(part, path)
    return True


def _unpublished(plan: PlanFile, path: Path) -> Path:
    """The temporary name of the new plan. It names the old plan, so that no renewal of another plan removes it."""
    return path.with_name(f".{path.name}{RENEWED}.{plan.sha256[:8]}.tmp")


def _interrupted(plan: PlanFile, path: Path) -> Path:
    """The file of a killed renewal, if there is one. Earlier versions gave it another temporary name."""
    part, former = _unpublished(plan, path), path.with_name(f".{path.name}.{plan.sha256[:16]}.part")
    return former if former.exists() and not part.exists() else part


def _publish(part: Path, path: Path) -> None:
    """Gives the new plan its name, unless an earlier run has done so."""
    if not path.exists() or PlanFile(path).sha256 != PlanFile(part).sha256:
        with part.open("rb") as written:
            replace_file(path, lambda out: shutil.copyfileobj(written, out), overwrite=False)
    part.unlink(missing_ok=True)


def _remove_interrupted(part: Path, new_journal: Path) -> None:
    """Removes the files of a killed renewal that had not replaced the old plan. Raises `FileFailure` if the new journal
    belongs to another plan."""
    if new_journal.exists():
        try:
            belongs = next(record for _, record in read_journal(new_journal)).get("plan") == PlanFile(part).sha256
        except (OffsetMgrError, StopIteration):
            belongs = False
        if not belongs:
            raise FileFailure(f"journal {new_journal}", "exists already", "choose another name for the plan")
        new_journal.unlink()
    part.unlink(missing_ok=True)


def _check(plan: PlanFile, state: MigrationState) -> list[str]:
    """Returns the groups of which apply wrote nothing, although it tried."""
    what = f"plan {plan.path}"
    state.reject_ended(plan.path)
    if plan.header.partition_map is not None:
        raise PlanError(what, "it translates byte positions of Kafka 0.7 with a map", "make a new plan with the map")
    partial = [
        group.name
        for group in plan.groups()
        if group.name in state.apply.intents
        and not state.is_applied(group)
        and not state.is_group_rolled_back(group.name)
    ]
    if written := [group for group in partial if group in state.apply.written]:
        why = f"{count_of(len(written), 'group')} applied in part: {list_of(written, 3)}"
        again = Invocation("migrate apply", (str(plan.path),), {"group": written[0]})
        raise JournalError(what, why, Advice("run: {}", again))
    return partial


def _groups(plan: PlanFile, planner: Planner, again: list[str], recreated: Mapping[str, str]) -> Iterator[GroupPlan]:
    """Yields the groups in the order of the plan. If the source still has the plan's offset of a topic that was
    recreated since, the new step is a refusal."""
    new = planner.plan(again)
    names = set(again)
    for group in plan.groups():
        if group.name not in names:
            yield group
            continue
        known = {step.source_tp: step.source.offset for step in group.writes() if step.source is not None}
        planned = next(new)
        steps = tuple(
            step._replace(action=Action.REFUSE_RECREATED, after=None, note=recreated[step.source_tp.topic])
            if step.action.writes
            and step.source_tp.topic in recreated
            and step.source is not None
            and known.get(step.source_tp) == step.source.offset
            else step
            for step in planned.steps
        )
        yield replace(planned, steps=steps, wave=group.wave, owner=group.owner)
