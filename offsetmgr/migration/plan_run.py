"""Opens a plan with its journal, and holds the journal's lock while a command executes the plan (a *run*)."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.atomic_file import remove_abandoned
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import JournalError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.leftover_locks import OnWait
from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups
from offsetmgr.migration.journal import Journal, JournalRecord, journal_path
from offsetmgr.migration.journaled_writer import GroupOutcome, JournaledWriter
from offsetmgr.migration.plan import GroupScope
from offsetmgr.migration.plan_file import PlanFile, summary_of
from offsetmgr.migration.progress import MigrationState

OPERATIONS: Final = {
    "apply": "migrate apply",
    "refresh": "migrate apply --refresh",
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
    run.
    """

    name: str
    only: GroupScope | None = None
    reason: str = ""
    undo_options: Mapping[str, Argument] = {}
    undoes_run: str = ""


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
    plan: PlanFile,
    run: PlanRun,
    store: OffsetStore,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[GroupOutcome], None] = lambda _outcome: None,
    wait_empty_s: float = 0.0,
    on_lock_wait: OnWait = lambda _groups, _seconds: None,
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Locks the journal for the ``with`` block, and records the run in the operation log. Yields a writer to ``store``,
    and the state that the locked journal records.

    The state is read after the journal is locked, because another process may have executed the plan before. See
    `JournaledWriter` for the other arguments. Raises `JournalError` if another process has locked the journal, and
    `FileFailure` if the operation log cannot be written.
    """
    clock = SystemClock()
    with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=clock) as journal:
        state = _current_state(plan)
        remove_abandoned(plan.path.parent, glob.escape(plan.path.name) + RENEWED)  # of a killed `migrate renew`
        log = OperationLog()
        identity = {"operation": log.new_id()} | ({"run": run.undoes_run} if run.undoes_run else {})
        writer = JournaledWriter(
            run.name, store, journal, clock, stop, progress, wait_empty_s, on_lock_wait, run.only, identity
        )
        with log.recorded(_operation(plan, writer, run), identity["operation"]) as recorded:
            try:
                yield writer, state
            finally:
                report = writer.report
                recorded.written, recorded.interrupted = report.written, report.interrupted
                recorded.failed = sum(len(outcome.failed) for outcome in report.failed.values())
                recorded.incomplete = writer.incomplete or bool(report.closed)


def _operation(plan: PlanFile, writer: JournaledWriter, run: PlanRun) -> OperationStart:
    path, scope = str(plan.path.absolute()), summary_of(plan, writer.only)
    names = (name for one in plan.groups_of(writer.only) for name in (one.target_group, one.group))
    return OperationStart(
        name=OPERATIONS[writer.name],
        stores=(writer.store.uri,),
        groups=first_groups(dict.fromkeys(names)),
        group_count=scope.groups,
        changes=0 if writer.name == "delete" else scope.writes,
        files=(path,),
        undo=(undo_of(path, writer, run),) if writer.name == "apply" else (),
        reason=run.reason,
    )


def undo_of(plan: str, writer: JournaledWriter, run: PlanRun) -> Invocation:
    """Returns the call that undoes this run of apply, and no other run of the plan."""
    return Invocation("migrate rollback", (plan,), {"run": writer.identity["operation"], **run.undo_options})
