"""Executes conditional writes and records them in the journal. Apply, rollback and finalize share this loop.

    fsync the intent -> pass the edit to the store -> append the outcome

The store receives the edits as a lazy stream, so that the store can edit many groups at the same time. The intents of a
batch share one fsync. The use of memory grows with the number of groups that the store edits at the same time.
"""

from __future__ import annotations

import glob
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from offsetmgr.core.advice import Advice, Argument, Invocation, for_command_line, option
from offsetmgr.core.atomic_file import remove_abandoned
from offsetmgr.core.batches import batched
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import Conflict, GroupActive, JournalError, OffsetMgrError
from offsetmgr.core.model import (
    ABSENT,
    DELETES_OFFSETS,
    BrokerPartition,
    Committed,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
)
from offsetmgr.core.offset_store import (
    Change,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    Guard,
    OffsetStore,
)
from offsetmgr.core.plurals import SHOWN, count_of
from offsetmgr.groups.describe import POLL_S, OnWait
from offsetmgr.groups.edit_plan import holds_offset
from offsetmgr.groups.execute import execute
from offsetmgr.groups.last_writes import GroupPair
from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups
from offsetmgr.migration.plan import Action, GroupScope, PlanFile, PlanStep, encode_steps, summary_of
from offsetmgr.migration.progress import (
    EncodedJson,
    Journal,
    JournalRecord,
    MigrationState,
    encode_partitions,
    journal_path,
)

BATCH_GROUPS = 100
"""The number of groups whose intents share one fsync."""


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """The changes to one group: each of ``steps`` replaces ``target`` (the before-image) by ``after``.

    ``group`` is the group's name in the plan and in the journal, and ``target_group`` is its name in the store.
    ``in_doubt`` are partitions that an earlier attempt with an unknown outcome may have written. If a partition in
    ``in_doubt`` holds ``after``, it counts as written.
    """

    group: str
    target_group: str
    steps: tuple[PlanStep, ...]
    guard: Guard
    in_doubt: frozenset[TopicPartition] = frozenset()
    keep_newer: bool = False
    """Whether a copy counts as done if the partition's current offset is larger than the offset to copy. If False, such
    a copy fails."""
    terms: tuple[str, str] = ("the offset when the plan was made", "the planned offset")
    """The names that error messages use for the offsets ``target`` and ``after`` of a step."""
    rejected: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)
    """Partitions that will not be written, each with the reason. These partitions remain in ``steps``, so that the
    first intent contains the correct before-images of all partitions."""

    def edit(self) -> GroupEdit | None:
        """Returns the edit, with each change conditional on its before-image; None if all partitions are rejected."""
        changes = {
            step.tp: Change(step.after, before_image(step.target), step.action is Action.REWIND)
            for step in self.steps
            if step.tp not in self.rejected
        }
        return GroupEdit(self.target_group, changes, self.guard) if changes else None


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one group. ``written`` are the partitions that were changed; ``unchanged`` are the partitions that
    did not have to be changed or were not allowed to be changed, each with the reason; ``failed`` are the partitions
    with an error."""

    group: str
    target_group: str
    written: tuple[TopicPartition, ...]
    unchanged: Mapping[TopicPartition, str]
    failed: Mapping[TopicPartition, OffsetMgrError]
    atomic: bool = True
    how: str = ""

    @property
    def active_members(self) -> tuple[str, ...]:
        """The members that the coordinator named when it rejected the write because the group is active."""
        for error in self.failed.values():
            if isinstance(error, GroupActive):
                return error.members or ("a member that left before it could be named",)
        return ()

    @property
    def lock_ends_s(self) -> float:
        """If the lock of a killed run was the cause of the rejection, the maximum number of seconds until the lock
        ends; otherwise 0."""
        return max((e.lock_ends_s for e in self.failed.values() if isinstance(e, GroupActive)), default=0)

    def failures(self) -> Iterator[str]:
        """Yields one line for each failed partition; one line if all partitions failed for one reason."""
        group, reasons = self.target_group, {tp: one.why or one.what for tp, one in sorted(self.failed.items())}
        if members := self.active_members:
            how = "is locked by another run of offsetmgr" if self.lock_ends_s else "is active"
            yield f"  ! {group} {how}: {'; '.join(members)}"
        elif len(reasons) > 1 and len({str(error) for error in self.failed.values()}) == 1:
            yield Advice("  ! {}, {}: {}", group, count_of(len(reasons), "partition"), next(iter(reasons.values())))
        else:
            yield from (Advice("  ! {} {}: {}", group, tp, why) for tp, why in reasons.items())


@dataclass(slots=True)
class Report:
    """The result of a run.

    ``started`` counts the groups whose intents are in the journal, ``groups`` the processed groups, ``changed`` the
    groups with a written partition, ``not_atomic`` the groups that were written without a lock, and ``skipped`` the
    groups that an earlier run had completed. ``written`` and ``unchanged`` count partitions. ``failed`` has the
    outcomes of groups with failures. ``interrupted`` is True if the caller stopped the run before all groups were done.
    """

    begun: bool = False
    """Whether an intent was or may have been written to the journal."""
    started: int = 0
    groups: int = 0
    changed: int = 0
    written: int = 0
    unchanged: int = 0
    skipped: int = 0
    not_atomic: int = 0
    failed: dict[str, GroupOutcome] = field(default_factory=dict)
    interrupted: bool = False
    closed: dict[str, str] = field(default_factory=dict)
    """The groups that the run left out because of an earlier step, such as a rollback, each with the reason."""

    def add(self, outcome: GroupOutcome) -> None:
        """Adds the outcome of one group to the counts."""
        self.groups += 1
        self.changed += bool(outcome.written)
        self.written += len(outcome.written)
        self.unchanged += len(outcome.unchanged)
        self.not_atomic += bool(outcome.written) and not outcome.atomic
        if outcome.failed:
            self.failed[outcome.group] = outcome

    @property
    def ok(self) -> bool:
        """Whether the run processed all groups, and no partition failed."""
        return not self.failed and not self.interrupted and not self.closed

    def lines(self, verb: str) -> Iterator[str]:
        """Describes the result, and at most `SHOWN` failures. ``verb`` is the work, such as "written"."""
        parts = [f"{count_of(self.written, 'offset')} {verb} in {count_of(self.changed, 'group')}"]
        if self.unchanged:
            parts.append(f"{self.unchanged} unchanged")
        if self.skipped:
            parts.append(f"{count_of(self.skipped, 'group')} completed by an earlier run")
        yield "; ".join(parts)
        if self.not_atomic:
            yield (
                f"not atomic: {count_of(self.not_atomic, 'group')} written without a group lock (new in Kafka, or with"
                " old consumers); the journal names the checks that replaced it"
            )
        yield from islice((line for outcome in self.failed.values() for line in outcome.failures()), SHOWN)
        for group, why in islice(self.closed.items(), SHOWN):
            yield Advice("  ! {} left as it is: {}", group, why)
        if self.failed:
            failed = sum(len(outcome.failed) for outcome in self.failed.values())
            rest = "the rest is done" if self.written or self.unchanged or self.skipped else "nothing is done"
            yield f"failed: {count_of(failed, 'partition')} of {count_of(len(self.failed), 'group')}; {rest}"


@dataclass(slots=True)
class JournaledWriter:
    """Executes tasks against one store under one journal. It is the `EditSink` of its edits: intents are fsynced before
    the edits begin, and outcomes are appended together with the next intents, or at the end.

    The name of ``plan_run`` is the prefix of the journal's records (``apply``, ``undo``, ``delete``). ``report`` has
    the counts so far. ``identity`` are fields of the journal's record of the run: ``operation``, the run's id in the
    operation log, and for the rollback of one run of apply ``run``, the id of that run.
    """

    plan_run: PlanRun
    store: OffsetStore
    journal: Journal
    clock: Clock
    report: Report
    identity: Mapping[str, str]
    incomplete: bool = field(default=False, init=False)
    """Whether the caller left out a part of the run, such as groups that cannot be finalized yet."""
    _stopped_early: bool = False
    """Whether the run was stopped before a batch started."""
    _outcomes: list[JournalRecord] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, tasks: Iterable[GroupWrite]) -> Report:
        """Executes all tasks and returns the report.

        If the store rejects the write of a group because the group is active, the method retries the write until
        ``wait_empty_s`` has passed. If the lock of an earlier run made the group active, the method retries at least
        until the latest time at which this lock ends. Raises an error only if the whole store or the journal cannot be
        used. After such an error, the journal contains the intent of every write that was executed.
        """
        report, limits = self.report, self.plan_run
        waiting: dict[str, GroupWrite] = {}
        wait_s: dict[str, float] = {}
        locked: set[str] = set()
        opening: JournalRecord = {"kind": f"{limits.name}-open", **self.identity}
        self.journal.append([opening if limits.only is None else opening | {"groups": sorted(limits.only)}])
        for outcome, task in execute(self.store.edit, self._batches(tasks), self):
            if outcome.active_members and max(limits.wait_empty_s, outcome.lock_ends_s) > 0:
                waiting[task.group] = task
                wait_s[task.group] = max(limits.wait_empty_s, outcome.lock_ends_s)
                locked |= {task.target_group} if outcome.lock_ends_s else set()
            else:
                self._report_outcome(outcome)
        started_at = self.clock.monotonic()
        while waiting and not limits.stop():
            remaining_s = max(wait_s[group] for group in waiting) - (self.clock.monotonic() - started_at)
            if locked:
                limits.on_lock_wait(sorted(locked), remaining_s)
            self.clock.sleep(min(POLL_S, max(0.0, remaining_s)))
            waited_s = self.clock.monotonic() - started_at
            for outcome, task in execute(self.store.edit, self._batches(list(waiting.values())), self):
                if not outcome.lock_ends_s:
                    locked.discard(task.target_group)
                    wait_s[task.group] = limits.wait_empty_s  # the members are now consumers, not a lock
                if waited_s >= wait_s[task.group] or not outcome.active_members:
                    del waiting[task.group]
                    locked.discard(task.target_group)
                    self._report_outcome(outcome)
        report.interrupted = self._stopped_early or bool(waiting)
        if report.ok and limits.only is None:
            self.journal.append([{"kind": f"{limits.name}-complete"}])
        return report

    def _report_outcome(self, outcome: GroupOutcome) -> None:
        self.report.add(outcome)
        self.plan_run.progress(outcome)

    def _batches(self, tasks: Iterable[GroupWrite]) -> Iterator[list[GroupWrite]]:
        for batch in batched(tasks, BATCH_GROUPS):
            if self.plan_run.stop():
                self._stopped_early = True
                return
            yield batch

    def intend(self, batch: Iterable[GroupWrite]) -> None:
        """Appends the intents of a batch, after the outcomes that were collected since the last call. Raises
        `JournalError`."""
        intents = [self._intent(task) for task in batch]
        self.report.begun = True
        self.journal.append([*self._take_outcomes(), *intents])
        self.report.started += len(intents)

    def record(self, planned: GroupWrite, result: GroupEditResult | None) -> tuple[GroupOutcome, GroupWrite]:
        """Returns the outcome of a task, with the task."""
        outcome = outcome_of(planned, result)
        with self._lock:
            self._outcomes.append(self._outcome(outcome))
        return outcome, planned

    def close(self) -> None:
        """Appends the last outcomes. Raises `JournalError`."""
        self.journal.append(self._take_outcomes())

    def _take_outcomes(self) -> list[JournalRecord]:
        with self._lock:
            records, self._outcomes = self._outcomes, []
        return records

    def _intent(self, task: GroupWrite) -> JournalRecord:
        return {
            "kind": f"{self.plan_run.name}-intent",
            "group": task.group,
            "target_group": task.target_group,
            "topics": EncodedJson(encode_steps(task.steps, whole=False)),
        }

    def _outcome(self, outcome: GroupOutcome) -> JournalRecord:
        record: JournalRecord = {
            "kind": f"{self.plan_run.name}-outcome",
            "group": outcome.group,
            "written": encode_partitions(outcome.written),
            "unchanged": encode_partitions(outcome.unchanged),
        }
        if outcome.failed:
            record["failed"] = [
                [tp.topic, BrokerPartition.to_json(tp.partition), type(error).__name__, for_command_line(error.text)]
                for tp, error in outcome.failed.items()
            ]
        if not outcome.atomic:
            record["not_atomic"] = outcome.how
        return record


def late_deletion(store: OffsetStore) -> str:
    """Returns a warning if the store does not delete offsets at once; otherwise an empty string."""
    return next((found.text for found in store.weaknesses() if found.subject == DELETES_OFFSETS), "")


def before_image(value: OffsetAndMetadata | None) -> Offset:
    """Returns a before-image of the journal as the condition of a write."""
    return ABSENT if value is None else Committed(value.offset, value.metadata, value.leader_epoch)


def outcome_of(task: GroupWrite, result: GroupEditResult | None) -> GroupOutcome:
    """Returns the outcome of a task from the store's result (None: all partitions were rejected). An earlier run may
    already have written some of the partitions."""
    if result is None:
        return GroupOutcome(task.group, task.target_group, (), {}, task.rejected)
    written: list[TopicPartition] = []
    unchanged: dict[TopicPartition, str] = {}
    failed: dict[TopicPartition, OffsetMgrError] = dict(task.rejected)
    for step in task.steps:
        if step.tp in failed:
            continue
        outcome = result.outcomes[step.tp]
        if outcome.status is EditStatus.WRITTEN:
            written.append(step.tp)
            continue
        after = None if step.after is None else step.after.offset
        found: Offset | None = outcome.error.actual if isinstance(outcome.error, Conflict) else None
        if outcome.status is EditStatus.UNCHANGED or (found is not None and holds_offset(found, after)):
            if step.tp in task.in_doubt:
                written.append(step.tp)  # inferred: the interrupted run wrote it without recording the outcome
            else:
                unchanged[step.tp] = "already held the value to write"
        elif (
            task.keep_newer
            and step.action is Action.COPY
            and after is not None
            and isinstance(found, Committed)
            and found.offset > after
        ):
            unchanged[step.tp] = f"has advanced to {found.offset} since the plan"
        else:
            assert outcome.error is not None
            failed[step.tp] = outcome.error if found is None else _conflict(step, found, task.terms)
    return GroupOutcome(task.group, task.target_group, tuple(written), unchanged, failed, result.atomic, result.how)


def _conflict(step: PlanStep, found: Offset, terms: tuple[str, str]) -> Conflict:
    """Returns the error of a partition that another client changed. The error names all offsets, and nothing was
    written to the partition."""
    return Conflict(
        str(step.tp),
        f"holds {_text(found)}, which is neither {_text(before_image(step.target))} ({terms[0]})"
        f" nor {_text(before_image(step.after))} ({terms[1]}); nothing was written",
        actual=found,
    )


def _text(value: Offset) -> str:
    return str(value.offset) if isinstance(value, Committed) else "no offset"


# Opens a plan with its journal, and holds the journal's lock while a command executes the plan (a *run*).

OPERATIONS: Final = {
    "apply": "migrate apply",
    "refresh": f"migrate apply {option('refresh')}",
    "undo": "migrate rollback",
    "delete": "migrate finalize",
}
"""The names of runs, and the commands that execute them, as the operation log names them."""

RENEWED: Final = ".renewed"
"""A part of the name of a renewed plan's temporary file (``.PLAN.renewed.HASH.tmp``). The renewal gives the file its
final name."""


class PlanRun(NamedTuple):
    """The parameters of a run of a plan.

    ``name`` is a key of `OPERATIONS`. ``only`` are the groups to which the run is limited (None: all groups).
    ``reason`` is the user's reason, and ``undo_options`` are the arguments for the connection of the call that undoes
    the run; the operation log saves both. If a rollback undoes only one run of apply, ``undoes_run`` is the id of that
    run. The run waits ``wait_empty_s`` seconds for groups with members to become empty.

    ``stop`` is called before each batch of groups. Once it returns True, no new batch starts, but the batches that have
    started are completed and recorded. ``progress`` is called with each outcome, and ``on_lock_wait`` with the groups
    and the remaining seconds while the run waits for locks of an earlier run.
    """

    name: str
    only: GroupScope | None = None
    reason: str = ""
    undo_options: Mapping[str, Argument] = {}
    undoes_run: str = ""
    wait_empty_s: float = 0.0
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[GroupOutcome], None] = lambda _outcome: None
    on_lock_wait: OnWait = lambda _groups, _seconds: None


def open_plan(path: Path) -> tuple[PlanFile, MigrationState]:
    """Returns the plan in ``path``, and the state that its journal records. Raises `PlanError`, and `JournalError` for
    a damaged journal and for a plan that was renewed."""
    plan = PlanFile(path)
    return plan, _current_state(plan)


def open_renewed(path: Path) -> tuple[PlanFile, MigrationState]:
    """Like `open_plan`, but if the plan was renewed, returns the newest plan, whose journal has the runs of the old
    plan."""
    plan = PlanFile(path)
    while renewed_by := MigrationState.read(journal_path(plan.path), plan.sha256).renewed_by:
        plan = PlanFile(Path(renewed_by))
    return plan, _current_state(plan)


def _current_state(plan: PlanFile) -> MigrationState:
    state = MigrationState.read(journal_path(plan.path), plan.sha256)
    if state.renewed_by:
        new = state.renewed_by
        renew = Invocation("migrate renew", (str(plan.path),), {"output": new})
        hint = f"use {new}" if Path(new).exists() else Advice("if the renewal was interrupted, run: {}", renew)
        raise JournalError(f"plan {plan.path}", f"it was renewed as {new}", hint)
    return state


RECORD_WAIT_S: Final = 60.0
"""The time in seconds for which `append_to_journal` waits while another command works on the plan."""


def append_to_journal(plan: PlanFile, records: Iterable[JournalRecord]) -> None:
    """Appends records to the plan's journal. Raises `JournalError`, also if another process holds the journal for
    longer than `RECORD_WAIT_S`, or if the plan was renewed."""
    path = journal_path(plan.path)
    with Journal(path, plan_sha256=plan.sha256, clock=SystemClock(), lock_wait_s=RECORD_WAIT_S) as journal:
        _current_state(plan)  # another process may have renewed the plan since the caller opened it
        journal.append(records)


@contextmanager
def journaled_writer(
    plan: PlanFile, run: PlanRun, store: OffsetStore, report: Report
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Locks the journal for the ``with`` block, and records the run in the operation log. Yields a writer to ``store``,
    and the state that the locked journal records. ``report`` gets the counts.

    The state is read after the journal is locked, because another process may have executed the plan before. Raises
    `JournalError` if another process has locked the journal, and `FileFailure` if the operation log cannot be written.
    """
    clock = SystemClock()
    with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=clock) as journal:
        state = _current_state(plan)
        remove_abandoned(plan.path.parent, glob.escape(plan.path.name) + RENEWED)  # of a killed `migrate renew`
        log = OperationLog()
        identity = {"operation": log.new_id()} | ({"run": run.undoes_run} if run.undoes_run else {})
        writer = JournaledWriter(run, store, journal, clock, report, identity)
        with log.recorded(_operation(plan, writer), identity["operation"]) as recorded:
            try:
                yield writer, state
            finally:
                recorded.written, recorded.interrupted = report.written, report.interrupted
                recorded.failed = sum(len(outcome.failed) for outcome in report.failed.values())
                recorded.incomplete = writer.incomplete or bool(report.closed)


def _operation(plan: PlanFile, writer: JournaledWriter) -> OperationStart:
    run, path = writer.plan_run, str(plan.path.absolute())
    scope = summary_of(plan, run.only)
    names = (name for one in plan.groups_of(run.only) for name in (one.target_group, one.name))
    undo = Invocation("migrate rollback", (path,), {"run": writer.identity["operation"], **run.undo_options})
    return OperationStart(
        name=OPERATIONS[run.name],
        stores=(writer.store.uri,),
        groups=first_groups(dict.fromkeys(names)),
        group_count=scope.groups,
        changes=0 if run.name == "delete" else scope.writes,
        files=(path,),
        undo=(undo,) if run.name == "apply" else (),  # of this run, and no other run of the plan
        reason=run.reason,
    )


# Splits groups into batches to limit memory, and reads one batch ahead.

READ_BATCH_GROUPS = 128
"""The number of groups that are read together, which limits the memory of plan and verify."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def read_batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yields batches of at most `READ_BATCH_GROUPS` groups, which are read at once."""
    return batched(items, READ_BATCH_GROUPS)


def with_offsets(
    store: OffsetStore, items: Iterable[_T], group: Callable[[_T], str]
) -> Iterator[tuple[_T, GroupOffsets]]:
    """Yields each item with the present offsets in the store of its group, whose name ``group`` returns."""
    for batch in read_batches(items):
        found = {one.name: one for one in store.scan([group(item) for item in batch])}
        yield from ((item, found[group(item)]) for item in batch)


def prefetch(read: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[tuple[_T, _R]]:
    """Yields each item with the result of ``read``, in order, and calls ``read`` for the next item while the caller
    processes the current item.

    ``read`` runs in a separate thread, one call at a time; ``items`` are consumed in the caller's thread. If ``read``
    fails for an item, the iterator raises the error instead of yielding the item.
    """
    with ThreadPoolExecutor(1, "offsetmgr-read-ahead") as pool:
        current: tuple[_T, Future[_R]] | None = None
        for item in items:
            following = (item, pool.submit(read, item))
            if current is not None:
                yield current[0], current[1].result()
            current = following
        if current is not None:
            yield current[0], current[1].result()


def read_pairs(
    source: OffsetStore, target: OffsetStore, existing: Collection[str], items: Iterable[tuple[_T, str, str]]
) -> Iterator[list[tuple[_T, GroupPair]]]:
    """Yields batches of items with the present offsets of their group in both stores. In ``items``, each item is
    followed by the name of its group in the source and in the target. The source is read one batch ahead, and always
    before the target: if a dual consumer commits in between, the target shows the commit. The target is asked only for
    groups that are in ``existing``."""

    def read(batch: list[tuple[_T, str, str]]) -> dict[str, GroupOffsets]:
        return {found.name: found for found in source.scan(here for _, here, _ in batch)}

    for batch, sources in prefetch(read, read_batches(items)):
        known = [there for _, _, there in batch if there in existing]
        targets = {found.name: found for found in target.scan(known)} if known else {}
        yield [(item, GroupPair(sources[h], targets.get(t, GroupOffsets(t, {})))) for item, h, t in batch]
