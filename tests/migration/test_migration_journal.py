"""The journal of a migration: killed at any step, a command resumes to the same end state."""

import itertools
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from one_migration import Migration, commit

from offsetmgr.app.connections import Connections
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import JournalError, Unreachable
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


# --- rollbacks with an incomplete journal, between two stores in memory: the rest is compared with the before-images


opened = Connections.store
GROUPS = [f"g{n:02}" for n in range(30)]
HELD = "orders-0: holds 10, and held no offset before the plan was applied"


@pytest.fixture
def applied(tmp_path: Path) -> Migration:
    migration = Migration(tmp_path)
    for group in GROUPS:
        commit(migration.source, group, 10, 20)
    migration.plan()
    migration.apply()
    return migration


@pytest.mark.parametrize("cut", [0, 7])
def test_a_rollback_with_a_truncated_journal_compares_the_rest_and_fails(applied: Migration, cut: int) -> None:
    """The journal ends after a record, or inside one."""
    lines = applied.journal.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[: len(lines) // 3])
    applied.journal.write_bytes(kept[: len(kept) - cut])
    output = applied.run("rollback", "--yes", code=1)
    left = sorted(applied.target_offsets())
    assert 0 < len(left) < 30
    assert f"the journal records {30 - len(left)} of the plan's 30 groups as started\n" in output
    assert f"{2 * len(left)} offsets differ from their before-images" in output
    assert f"{left[0]} {HELD}" in output
    assert "every offset is as it was before" not in output
    again = applied.run("rollback", "--yes", code=1)
    assert "an earlier run rolled back every group in the journal; nothing was done" in again
    assert f"{2 * len(left)} offsets differ from their before-images" in again


def test_a_rollback_whose_comparison_fails_tells_what_it_restored(applied: Migration) -> None:
    lines = applied.journal.read_bytes().splitlines(keepends=True)
    applied.journal.write_bytes(b"".join(lines[: len(lines) // 3]))
    scan = applied.target.scan

    def fails_for_the_last(groups: list[str]) -> Any:
        if GROUPS[-1] in groups:  # the journal does not record it, so that only the comparison reads it
            raise Unreachable("target")
        return scan(groups)

    with patch.object(applied.target, "scan", fails_for_the_last):
        output = applied.run("rollback", "--yes", code=None)
    restored = 30 - len(applied.target_offsets())
    assert f"{2 * restored} offsets restored in {restored} groups; the comparison" in output


def test_a_rollback_with_an_empty_journal_compares_all_offsets(applied: Migration) -> None:
    applied.journal.write_bytes(applied.journal.read_bytes().splitlines(keepends=True)[0])
    output = applied.run("rollback", "--yes", code=1)
    assert f"g00 {HELD}" in output
    assert "60 offsets differ from their before-images" in output


def test_a_rollback_compares_groups_whose_write_failed_according_to_the_journal(tmp_path: Path) -> None:
    """The first run of apply was refused, the second one wrote, and its records are missing in the journal."""
    migration = Migration(tmp_path)
    for group in ("g", "other"):
        commit(migration.source, group, 10, 20)
    migration.plan()
    migration.target.active["g"] = ("a consumer",)
    assert not migration.apply().ok
    first_run = migration.journal.read_bytes()
    migration.target.active.clear()
    migration.apply()
    migration.journal.write_bytes(first_run)
    assert f"g {HELD}" in migration.run("rollback", "--yes", code=1)


def test_a_verification_that_an_error_ended_has_no_summary(applied: Migration) -> None:
    with applied.opened() as library, patch.object(applied.target, "scan", side_effect=Unreachable("target")):
        found = library.verify()
        for read in (lambda: list(found), lambda: found.summary):
            with pytest.raises(Unreachable):
                read()


def test_the_steps_of_a_migration_use_the_same_stores(applied: Migration) -> None:
    with applied.opened() as library, patch.object(Connections, "store", autospec=True, side_effect=opened) as stores:
        assert library.verify().summary.ok
        assert library.verify().summary.ok
    assert stores.call_count == 2  # the source and the target


def test_a_rollback_of_an_apply_that_was_stopped_early_finds_the_rest_unchanged(applied: Migration) -> None:
    whole = applied.journal.read_bytes().splitlines(keepends=True)
    applied.run("rollback", "--yes")
    applied.journal.write_bytes(b"".join(whole[: len(whole) // 3]))
    assert "every offset is as it was before" in applied.run("rollback", "--yes", "--force")
