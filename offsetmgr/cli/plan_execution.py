"""Executes a plan: opens the plan and its journal, stops cleanly on Ctrl-C, and shows progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.cli import migrate_output
from offsetmgr.cli.errors import Interrupted
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.render import note
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.core.clock import SystemClock
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore


def print_next_step(report: Report, then: str) -> None:
    if report.failed:
        note("run the same command again to retry the failed groups")
    elif not report.interrupted:
        note(then)


def exit_if_interrupted(report: Report) -> None:
    """Raises `Interrupted` if Ctrl-C stopped the run before it was complete."""
    if report.interrupted:
        raise Interrupted("started writes are finished and recorded; run the same command again to continue")


def open_plan(path: Path) -> tuple[PlanFile, MigrationState]:
    plan = PlanFile(path)
    return plan, MigrationState.read(journal_path(path), plan.sha256)


@contextmanager
def plan_writer(
    plan: PlanFile, name: str, store: OffsetStore, wait_empty: float = 0.0
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Holds the journal open, turns Ctrl-C into a clean stop, and prints progress on stderr.

    The state of the migration is read again after the journal is locked, because another process may have executed the
    plan while this process waited for the answer to a prompt.
    """
    clock = SystemClock()
    with (
        Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=clock) as journal,
        stop_on_signal("groups under way are finished") as stop,
        migrate_output.MigrateProgress(f"{name}: groups", plan.summary.groups) as shown,
    ):
        state = MigrationState.read(journal_path(plan.path), plan.sha256)
        yield JournaledWriter(name, store, journal, clock, stop, shown.count, wait_empty, LockWait()), state
