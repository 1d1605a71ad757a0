"""Executes a plan from the command line: stops cleanly on Ctrl-C, and shows progress."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.cli import migrate_output
from offsetmgr.cli.errors import Interrupted, fail_if
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.render import note
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.fleet import expiry_texts
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import Action
from offsetmgr.migration.plan_file import PlanFile, PlanSummary
from offsetmgr.migration.plan_run import PlanRun, journaled_writer
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore


def print_next_step(report: Report, then: str) -> None:
    if report.failed:
        note("run the same command again to retry the failed groups")
    elif not report.interrupted:
        note(then)


def end_of_planning(summary: PlanSummary, following: str, *, failed: object = False) -> None:
    """Prints the next command of a new plan, unless the plan refuses everything. Raises `typer.Exit` if it does, if it
    refuses a whole group, or if ``failed``."""
    if not summary.refuses_all:
        note(following)
    elif not summary.actions[Action.REFUSE_BYTE_POSITION]:  # a note names the map that these need
        note("nothing can be applied: the plan refuses everything; correct the causes above, then plan again")
    fail_if(failed or summary.failed_groups or summary.refuses_all)


def option_text(words: Iterable[str]) -> str:
    """Returns words of a command line as text, each with a leading space."""
    return "".join(f" {shlex.quote(word)}" for word in words)


def note_expiry(plan: Path | str, dates: Iterable[int | None], options: str, *, watched: bool) -> None:
    """Prints when copied offsets expire that no consumer commits again, and the command that renews them."""
    refresh = f"{command_line('migrate', 'apply', plan, '--refresh')}{options}"
    for text in expiry_texts(dates, SystemClock().now_ms(), refresh, watched=watched):
        note(f"warning: {text}")


def exit_if_interrupted(report: Report) -> None:
    """Raises `Interrupted` if Ctrl-C stopped the run before it was complete."""
    if report.interrupted:
        raise Interrupted("started writes are finished and recorded; run the same command again to continue")


@contextmanager
def plan_writer(
    plan: PlanFile, run: PlanRun, store: OffsetStore, wait_empty_s: float = 0.0
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Like `journaled_writer`; also turns Ctrl-C into a clean stop, and prints progress on stderr. If an error ends the
    run, prints how much was written before. Before the first write, Ctrl-C interrupts the run at once."""
    writers: list[JournaledWriter] = []

    def has_begun() -> bool:
        return any(writer.report.begun for writer in writers)

    groups = plan.summary.groups if run.only is None else len(run.only)
    try:
        with (
            stop_on_signal("groups under way are finished", has_begun) as stop,
            migrate_output.MigrateProgress(f"{run.name}: groups", groups) as shown,
            journaled_writer(
                plan, run, store, stop=stop, progress=shown.count, wait_empty_s=wait_empty_s, on_lock_wait=LockWait()
            ) as (writer, state),
        ):
            writers.append(writer)
            yield writer, state
    except OffsetMgrError:
        for writer in writers:
            if writer.report.started:
                note(
                    f"the offsets of up to {count_of(writer.report.started, 'group')} had been changed when the error"
                    f" occurred ({writer.report.written:,} are confirmed); the next run checks them"
                )
        raise
    except KeyboardInterrupt:
        if has_begun():
            raise
        raise Interrupted("this run wrote nothing; run the same command again") from None
