"""A child process that runs a migration command and kills itself (SIGKILL) at a given journal step.

Arguments: ``apply|undo PLAN STEP MOMENT``. ``STEP`` counts the journal's appends; ``MOMENT`` is ``before`` the append,
``torn`` in the middle of its write, or ``after`` its fsync. The exit code is 0 if the command ended before that step.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.migration import journaled_writer
from offsetmgr.migration.apply import apply
from offsetmgr.migration.journal import Journal, JournalRecord, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.rollback import rollback
from offsetmgr.stores.uri import open_store


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingJournal(Journal):
    """A journal that kills the process at its ``step``-th append."""

    step = 0
    moment = "before"
    _count = itertools.count()

    def append(self, records: Iterable[JournalRecord]) -> None:
        records = list(records)
        is_target_step = bool(records) and next(self._count) == self.step
        if is_target_step and self.moment == "before":
            die()
        self._tear = is_target_step and self.moment == "torn"
        super().append(records)
        if is_target_step:
            die()

    def _write(self, data: bytes) -> None:
        if self._tear:
            os.write(self._fd, data[: len(data) - 7])
            die()
        super()._write(data)


def main(command: str, path: Path, step: int, moment: str) -> None:
    journaled_writer.BATCH_GROUPS = 1
    DyingJournal.step, DyingJournal.moment = step, moment
    plan = PlanFile(path)
    state = MigrationState.read(journal_path(path), plan.sha256)
    with (
        open_store(plan.header.target.uri, ConnectionConfig()) as target,
        DyingJournal(journal_path(path), plan_sha256=plan.sha256, clock=SystemClock()) as journal,
    ):
        writer = JournaledWriter(command, target, journal, SystemClock())
        report = apply(plan, state, writer) if command == "apply" else rollback(plan, state, writer)
    assert report.ok, report.failed


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
