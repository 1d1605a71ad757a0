"""Executes a plan from the command line: stops cleanly on Ctrl-C, and shows progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offsetmgr.cli import migrate_output
from offsetmgr.cli.errors import Interrupted
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.render import note
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import journaled_writer
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


@contextmanager
def plan_writer(
    plan: PlanFile, name: str, store: OffsetStore, wait_empty: float = 0.0
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Like `journaled_writer`; also turns Ctrl-C into a clean stop, and prints progress on stderr. If an error ends the
    run, prints how much was written before."""
    with (
        stop_on_signal("groups under way are finished") as stop,
        migrate_output.MigrateProgress(f"{name}: groups", plan.summary.groups) as shown,
        journaled_writer(
            plan, name, store, stop=stop, progress=shown.count, wait_empty_s=wait_empty, waiting=LockWait()
        ) as run,
    ):
        try:
            yield run
        except OffsetMgrError:
            done = run[0].report
            if done.written:
                note(
                    f"{count_of(done.written, 'offset')} in {count_of(done.changed, 'group')} had been changed when the"
                    " error occurred; groups in progress may have changed too. The next run checks them"
                )
            raise
