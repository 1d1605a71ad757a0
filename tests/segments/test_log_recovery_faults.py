"""A recovery that a full disk, a kill or a change of the log interrupts loses nothing."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from damaged_log import JUNK, NEWEST, SOUND, tree
from processes import on_a_full_disk, run_command


@pytest.mark.parametrize("how", ["--in-place", "--to"])
def test_a_full_disk_is_one_clear_error_and_nothing_is_lost(log_dir, log, tmp_path, how) -> None:
    log.write_bytes(SOUND + 9 * JUNK)
    before = tree(log_dir)
    out = [] if how == "--in-place" else [str(tmp_path / "out")]

    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ("log", "recover", str(log_dir), how, *out, "--execute", "--yes")
    done = run_command(*command, environ=environ, program=on_a_full_disk(2), code=1)

    assert tree(log_dir) == before
    assert ": File too large\nhint: " in done.stderr
    assert "free disk space" in done.stderr
    assert tree(tmp_path / "out") == {}


def run_killed_at_each_step(command: str, log: Path, directory: Path, moment: str) -> int:
    """Returns the number of steps of a recovery. See `killed_recovery`."""
    script = Path(__file__).with_name("killed_recovery.py")
    arguments = [sys.executable, str(script), command, str(log), str(directory), moment]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_a_cut_killed_at_any_step_leaves_the_old_log_or_the_new_one_and_the_copy(log, tmp_path, offsetmgr, moment):
    steps = run_killed_at_each_step("cut", log.parent, tmp_path / "dead", moment)

    outcomes = []
    for step in range(steps + 1):
        directory = tmp_path / "dead" / str(step) / "orders-0"
        mine, copy = directory / log.name, directory / f"{log.name}.cut-from-{len(SOUND)}"
        was_cut = mine.read_bytes() == SOUND
        if was_cut:
            assert copy.read_bytes() == JUNK
        else:
            assert mine.read_bytes() == SOUND + JUNK
        outcomes.append(was_cut)
        assert offsetmgr("log", "recover", directory, "--in-place", "--execute", "--yes").code == 0
        assert (mine.read_bytes(), copy.read_bytes()) == (SOUND, JUNK)
        assert not (directory / f"{NEWEST}.index").exists()
    assert steps >= 8
    assert outcomes == sorted(outcomes)
    assert outcomes.count(True) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_a_cut_in_an_older_segment_killed_at_any_step_loses_nothing_and_leaves_no_hole(
    older, log, tmp_path, offsetmgr, moment
) -> None:
    old, new = older.read_bytes(), log.read_bytes()
    at = len(old) // 4
    steps = run_killed_at_each_step("cut", older.parent, tmp_path / "dead", moment)

    for step in range(steps + 1):
        directory = tmp_path / "dead" / str(step) / "orders-0"
        found = tree(directory)
        newer_exists = f"{NEWEST}.log" in found
        assert found[f"{NEWEST}.log" if newer_exists else f"{NEWEST}.log.cut-from-0"] == new
        if found[older.name] == old[:at]:
            assert (found[f"{older.name}.cut-from-{at}"], newer_exists) == (old[at:], False)
        else:
            assert found[older.name] == old
        assert offsetmgr("log", "recover", directory, "--in-place", "--execute", "--yes").code == 0
        after = tree(directory)
        logs = {name: data for name, data in after.items() if ".log" in name}
        assert logs == {older.name: old[:at], f"{older.name}.cut-from-{at}": old[at:], f"{NEWEST}.log.cut-from-0": new}
    assert steps >= 10


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_a_copy_killed_at_any_step_is_complete_or_absent(log, tmp_path, offsetmgr, moment) -> None:
    before = tree(log.parent)
    steps = run_killed_at_each_step("copy", log.parent, tmp_path / "dead", moment)

    for step in range(steps + 1):
        directory = tmp_path / "dead" / str(step)
        log_copy, repaired, again = directory / "orders-0", directory / "repaired" / "orders-0", directory / "again"
        assert tree(log_copy) == before
        if not repaired.exists():
            assert offsetmgr("log", "recover", log_copy, "--to", again, "--execute").code == 0
            repaired = again / "orders-0"
        assert tree(repaired)[log.name] == SOUND
        assert set(tree(repaired)) == set(before) - {f"{NEWEST}.index", f"{NEWEST}.timeindex"}
    assert steps >= 12


def test_a_log_that_has_changed_since_it_was_examined_is_not_cut(log, offsetmgr, monkeypatch) -> None:
    def confirm_later() -> str:
        with log.open("ab") as more:
            more.write(b"more")
        return "y\n"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=confirm_later))

    done = offsetmgr("log", "recover", log, "--in-place", "--execute")

    assert (done.code, log.read_bytes()) == (1, SOUND + JUNK + b"more")
    assert f"error: file {log}: has changed since it was examined\nhint: run the same command again" in done.err
