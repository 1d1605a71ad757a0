"""Ctrl-C during the work of a migration, and while it prints its results."""

import fcntl
import io
import os
import shlex
import signal
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr.cli.app import run
from offsetmgr.core.errors import Unreachable
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.testing.memory import MemoryStore

BATCH = 100
"""The groups that are written together."""


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@dataclass
class InterruptedStore(MemoryStore):
    """A store that sends Ctrl-C to this process after the write of ``after`` groups."""

    after: int = 0
    written: int = 0
    times: int = 1
    fails: bool = False

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        if self.fails:
            raise Unreachable("target", "no answer")
        for result in super().edit(edits):
            self.written += 1
            if self.written == self.after:
                for _ in range(self.times):
                    interrupt()
            yield result


def planned(directory: Path, groups: int, **stops: Any) -> tuple[Migration, InterruptedStore]:
    store = InterruptedStore("target", **stops)
    migration = Migration(directory, target=store)
    for number in range(groups):
        commit(migration.source, f"g{number}", 5)
    migration.plan()
    return migration, store


def test_a_stop_before_the_last_group_is_an_interruption(tmp_path: Path) -> None:
    migration, store = planned(tmp_path, BATCH + 1, after=1)
    shown = migration.run("apply", "--yes", code=130)
    assert "stopping: " in shown and "interrupted: " in shown.splitlines()[-1]
    assert len(migration.target_offsets()) == store.written == BATCH
    assert sorted(migration.states().values()).count("applied") == BATCH
    assert migration.edits()[-1]["outcome"] == "interrupted"
    migration.run("apply", "--yes")
    assert len(migration.target_offsets()) == BATCH + 1


@pytest.mark.parametrize("groups", [1, BATCH, BATCH + 1])
def test_a_stop_after_the_last_group_is_no_interruption(groups: int, tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, groups, after=groups)
    assert "interrupted" not in migration.run("apply", "--yes")
    assert set(migration.states().values()) == {"applied"}


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, 3, after=1, times=2)
    assert migration.run("apply", "--yes", code=130).endswith("\ninterrupted: stopped before the end\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    migration.run("apply", "--yes")
    assert len(migration.target_offsets()) == 3


@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_a_command_that_was_stopped_before_its_first_write_exits_with_130(command, tmp_path, monkeypatch):
    migration, store = planned(tmp_path, 1)
    if command == "rollback":
        migration.run("apply", "--yes")
    before, lock = dict(store.data), fcntl.flock

    def locked(*arguments: Any) -> None:
        lock(*arguments)
        interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", locked)  # the run locks the journal before it writes anything
        output = migration.run(command, "--yes", code=130).splitlines()
    assert output[-1] == "interrupted: this run wrote nothing; run the same command again"
    assert not any(line.startswith("stopping") for line in output)
    assert store.data == before
    migration.run(command, "--yes")


class Reader(io.StringIO):
    """Standard error, read by someone who presses Ctrl-C when a text appears."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.awaited = text

    def write(self, text: str) -> int:
        if self.awaited and self.awaited in text:
            self.awaited = ""
            interrupt()
        return super().write(text)


def read(migration: Migration, awaited: str, *command: object) -> tuple[int, str]:
    with migration.stores(), redirect_stderr(Reader(awaited)) as shown:
        code = run([str(word) for word in command])
    return code, shown.getvalue()


def test_ctrl_c_during_the_report_does_not_interrupt_completed_work_and_stays_ignored_if_it_was(tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, 1)
    ignored, _ = planned(tmp_path / "ignored", 1)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    code, shown = read(ignored, "will be written", "migrate", "apply", ignored.path, "--yes")
    assert (code, "ending" in shown, "interrupted" in shown) == (0, False, False)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, handler)
    code, shown = read(migration, "1 offset written", "migrate", "apply", migration.path, "--yes")
    assert (code, "interrupted" in shown) == (0, False)
    assert "\nending (again to interrupt at once)\n" in shown
    assert f"\nnext: offsetmgr migrate verify {shlex.quote(str(migration.path))}\n" in shown


def test_after_failed_work_ctrl_c_interrupts_the_report(tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, 1, fails=True)
    with pytest.raises(KeyboardInterrupt):
        read(migration, "error: ", "migrate", "apply", migration.path, "--yes")


def test_a_mirror_with_once_that_is_stopped_early_is_interrupted(tmp_path: Path) -> None:
    migration, store = planned(tmp_path, 1)
    store.broken["g0", ORDERS[0]] = Unreachable("target", "no answer")
    sides = ("--from", "memory:source", "--to", "memory:target")
    mirror = ("migrate", "mirror", *sides, "--all-groups", "--once", "--yes")
    code, shown = read(migration, "1 failing", *mirror)
    assert (code, shown.endswith("\ninterrupted: some offsets were not copied yet\n")) == (130, True)
    store.broken.clear()
    migration.command(*mirror)
    assert migration.target_offsets() == {"g0": {ORDERS[0]: 5}}
