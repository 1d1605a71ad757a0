"""A run of a plan under its journal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.leftover_locks import OnWait
from offsetmgr.groups.operation_log import OperationLog, OperationStart, shortened
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import GroupOutcome, JournaledWriter
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import MigrationState

OPERATIONS: Final = {
    "apply": "migrate apply",
    "refresh": "migrate apply --refresh",
    "undo": "migrate rollback",
    "delete": "migrate finalize",
}
"""The names of the writers, and their names in the operation log."""


def open_plan(path: Path) -> tuple[PlanFile, MigrationState]:
    """Returns the plan in ``path``, and the state that its journal records. Raises `PlanError`, `JournalError`."""
    plan = PlanFile(path)
    return plan, MigrationState.read(journal_path(path), plan.sha256)


@contextmanager
def journaled_writer(
    plan: PlanFile,
    name: str,
    store: OffsetStore,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[GroupOutcome], None] = lambda _outcome: None,
    wait_empty_s: float = 0.0,
    waiting: OnWait = lambda _groups, _seconds: None,
    reason: str = "",
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Holds the journal locked, and records the run in the operation log with the user's ``reason``. Yields a writer to
    ``store``, and the state that the locked journal records.

    The state is read after the journal is locked, because another process may have executed the plan before. See
    `JournaledWriter` for the other arguments. Raises `JournalError` if another process has locked the journal, and
    `FileFailure` if the operation log cannot be written.
    """
    clock = SystemClock()
    with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=clock) as journal:
        state = MigrationState.read(journal_path(plan.path), plan.sha256)
        writer = JournaledWriter(name, store, journal, clock, stop, progress, wait_empty_s, waiting)
        with OperationLog().recorded(_operation(plan, name, store, reason)) as recorded:
            try:
                yield writer, state
            finally:
                report = writer.report
                recorded.written, recorded.interrupted = report.written, report.interrupted
                recorded.failed = sum(len(outcome.failed) for outcome in report.failed.values())


def _operation(plan: PlanFile, name: str, store: OffsetStore, reason: str) -> OperationStart:
    path = str(plan.path.absolute())
    return OperationStart(
        name=OPERATIONS[name],
        stores=(store.uri,),
        groups=shortened(group.target_group for group in plan.groups()),
        group_count=plan.summary.groups,
        changes=plan.summary.writes,
        files=(path,),
        undo=(shlex.join(("offsetmgr", "migrate", "rollback", path)),) if name == "apply" else (),
        reason=reason,
    )
