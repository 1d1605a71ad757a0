"""The journal of a migration: killed at any step, a command resumes to the same end state."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from one_migration import Migration, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import JournalError
from offsetmgr.migration import journaled_writer
from offsetmgr.migration.progress import Journal, read_journal


class Killed(BaseException):
    """Simulates SIGKILL at a journal step. The tests in tests/crash send the real signal."""


def run_with_kill(migration: Migration, command: str, at: int, when: str, monkeypatch) -> bool:
    """Runs a command that is killed at its ``at``-th append to the journal, before the write or after its fsync, and
    then again to its end. Returns False if the journal has fewer steps."""
    count, append = itertools.count(), Journal.append

    def dying(journal, records):
        records = list(records)
        if not records or next(count) != at:
            return append(journal, records)
        if when == "after":
            append(journal, records)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(journaled_writer, "BATCH_GROUPS", 1)
        patch.setattr(Journal, "append", dying)
        try:
            getattr(migration, command)()
        except Killed:
            pass
        else:
            return False
    if command == "apply" or migration.state().apply.intents:
        assert getattr(migration, command)().ok
    return True


def scenario(directory: Path) -> Migration:
    migration = Migration(directory)
    for n in range(5):
        commit(migration.source, f"g{n}", 10 + n, 20 + n, 30 + n)
        commit(migration.target, f"g{n}", *[None, 5, 99][: n % 4])
    return migration


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_a_command_killed_at_any_journal_step_resumes_to_the_same_end(tmp_path, command, when, monkeypatch):
    undisturbed = scenario(tmp_path / "undisturbed")
    untouched = undisturbed.target_offsets()
    undisturbed.plan()
    assert undisturbed.apply().ok
    applied = undisturbed.target_offsets()
    for at in itertools.count():
        migration = scenario(tmp_path / f"{at}")
        migration.plan()
        if command == "rollback":
            migration.apply()
        if not run_with_kill(migration, command, at, when, monkeypatch):
            break
        assert migration.target_offsets() == (applied if command == "apply" else untouched)
        if command == "apply":
            assert migration.rollback().ok
            assert migration.target_offsets() == untouched
    assert at >= 8


def test_a_torn_last_line_is_cut_and_damage_in_the_middle_is_an_error(migration):
    migration.start([10])
    path = migration.journal
    whole = path.read_bytes()
    records = [record for _, record in read_journal(path)]
    for cut in range(whole.rstrip(b"\n").rfind(b"\n") + 2, len(whole)):
        path.write_bytes(whole[:cut])
        assert [record for _, record in read_journal(path)] == records[:-1]
    middle = whole.index(b"\n") + 10
    path.write_bytes(whole[:middle] + b"#" + whole[middle + 1 :])
    with pytest.raises(JournalError, match="before its end"):
        list(read_journal(path))


def test_two_processes_never_work_on_one_plan_and_a_journal_of_another_plan_is_refused(migration):
    migration.start([10], apply=False)
    sha256 = json.loads(migration.path.read_text())["sha256"]
    with (
        Journal(migration.journal, plan_sha256=sha256, clock=SystemClock()),
        pytest.raises(JournalError, match="another process"),
    ):
        migration.apply()
    migration.apply()
    with pytest.raises(JournalError, match="another plan"):
        migration.plan_again()
