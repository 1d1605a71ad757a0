"""A run of a plan under its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.leftover_locks import OnWait
from offsetmgr.migration.journal import Journal, JournalRecord, journal_path
from offsetmgr.migration.journaled_writer import GroupOutcome, JournaledWriter
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import MigrationState


def open_plan(path: Path) -> tuple[PlanFile, MigrationState]:
    """Returns the plan in ``path``, and the state that its journal records. Raises `PlanError`, `JournalError`."""
    plan = PlanFile(path)
    return plan, MigrationState.read(journal_path(path), plan.sha256)


RECORD_WAIT_S: Final = 60.0
"""The time in seconds for which `append_to_journal` waits while another command works on the plan."""


def append_to_journal(plan: PlanFile, records: Iterable[JournalRecord]) -> None:
    """Appends records to the plan's journal. Raises `JournalError`, also if another process holds the journal for
    longer than `RECORD_WAIT_S`."""
    path = journal_path(plan.path)
    with Journal(path, plan_sha256=plan.sha256, clock=SystemClock(), lock_wait_s=RECORD_WAIT_S) as journal:
        journal.append(records)


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
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Holds the journal locked. Yields a writer to ``store``, and the state that the locked journal records.

    The state is read after the journal is locked, because another process may have executed the plan before. See
    `JournaledWriter` for the arguments. Raises `JournalError` if another process has locked the journal.
    """
    clock = SystemClock()
    with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=clock) as journal:
        state = MigrationState.read(journal_path(plan.path), plan.sha256)
        yield JournaledWriter(name, store, journal, clock, stop, progress, wait_empty_s, waiting), state
