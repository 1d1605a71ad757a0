"""Ctrl-C before a command begins, during its work, and while it prints its results."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.cli import migrate_output
from offsetmgr.cli.app import run
from offsetmgr.cli.stop_signals import ignore_first_signal, preserved_signal_handlers, stop_on_signal
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Guard
from offsetmgr.migration import plan_run
from offsetmgr.migration.journal import Journal
from offsetmgr.migration.journaled_writer import BATCH_GROUPS, GroupWrite, JournaledWriter, Report
from offsetmgr.migration.plan import Action, PlanStep
from offsetmgr.migration.progress import MigrationState
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.memory import MemoryStore

ORDERS = TopicPartition("orders", 0)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    with preserved_signal_handlers():
        yield


# --- during the imports -------------------------------------------------------------------------------

SIGNAL_AT_IMPORT = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupter())
from offsetmgr.cli.entry import main
main()
"""


def interrupted_at_import(module: str, directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "x.csv").write_text("g,t,0,5\n")
    command = [sys.executable, "-c", SIGNAL_AT_IMPORT.format(module=module, number=signal.SIGINT.value)]
    arguments = ["offsets", "get", "--all-groups", "--store", f"file:{directory}/x.csv"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "module", ["offsetmgr.cli.app", "typer", "offsetmgr.config.connection", "offsetmgr.cli.offsets"]
)
def test_ctrl_c_while_a_command_is_imported_is_one_line(module: str, tmp_path: Path) -> None:
    done = interrupted_at_import(module, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted: nothing was done\n")


@pytest.mark.parametrize("module", ["offsetmgr.groups.selection", "offsetmgr.stores.snapshot"])
def test_ctrl_c_while_a_command_imports_its_modules_is_one_line(module: str, tmp_path: Path) -> None:
    done = interrupted_at_import(module, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted: stopped before the end\n")


@pytest.mark.parametrize("module", ["offsetmgr.server.network.limits", "offsetmgr.server.process.manager_process"])
@pytest.mark.parametrize("nohup", [False, True])
def test_a_hangup_while_a_manager_starts_is_one_line(module: str, nohup: bool) -> None:
    code = SIGNAL_AT_IMPORT.format(module=module, number=signal.SIGHUP.value)
    if nohup:
        code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{code}"
    arguments = ["manager", "serve", "--bootstrap-server", "127.0.0.1:1", "--listen", "0.0.0.0:0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("SIGHUP does nothing\nerror: --listen 0.0.0.0:0")


def test_without_ctrl_c_the_console_script_runs_the_command(tmp_path: Path) -> None:
    done = interrupted_at_import("a.module.without.importers", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["g", "t", "0", "committed", "5"]


def test_importing_the_command_line_keeps_the_signal_handlers() -> None:
    code = "import signal, offsetmgr.cli.app; assert signal.getsignal(2) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- during the work ----------------------------------------------------------------------------------


def run_apply(directory: Path, groups: int, stop_after: int) -> Report:
    """Runs an apply over this number of groups, with a stop request after ``stop_after`` written groups."""
    written: list[object] = []
    step = PlanStep(ORDERS, Action.COPY, None, None, OffsetAndMetadata(5))
    tasks = [GroupWrite(f"g{n}", f"g{n}", (step,), Guard.LOCK) for n in range(groups)]
    with Journal(directory / "journal", plan_sha256="0" * 64, clock=SystemClock()) as journal:
        return JournaledWriter(
            "apply", MemoryStore(), journal, SystemClock(), lambda: len(written) >= stop_after, written.append
        ).run(tasks)


def test_a_stop_before_the_last_group_is_an_interruption(tmp_path: Path) -> None:
    report = run_apply(tmp_path, groups=BATCH_GROUPS + 1, stop_after=1)
    assert (report.written, report.interrupted, report.ok) == (BATCH_GROUPS, True, False)
    assert not MigrationState.read(tmp_path / "journal", "0" * 64).apply.complete


@pytest.mark.parametrize("groups", [1, BATCH_GROUPS, BATCH_GROUPS + 1])
def test_a_stop_after_the_last_group_is_no_interruption(groups: int, tmp_path: Path) -> None:
    report = run_apply(tmp_path, groups, stop_after=groups)
    assert (report.written, report.interrupted, report.ok) == (groups, False, True)
    assert MigrationState.read(tmp_path / "journal", "0" * 64).apply.complete


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of one group from one snapshot file to another."""
    with SnapshotStore(tmp_path / "here.avro") as here, SnapshotStore(tmp_path / "there.avro") as there:
        here.commit("g", {ORDERS: OffsetAndMetadata(5)})
        there.commit("other", {ORDERS: OffsetAndMetadata(7)})
    plan = tmp_path / "plan.json"
    uris = [f"file:{tmp_path / name}" for name in ("here.avro", "there.avro")]
    assert run(["migrate", "plan", "--from", uris[0], "--to", uris[1], "--all-groups", "-o", str(plan)]) == 0
    return plan


def interrupted_before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Sends Ctrl-C just before this function is called."""
    original = getattr(owner, name)

    def call(*arguments: object, **named: object) -> object:
        interrupt()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_a_command_that_was_stopped_before_its_end_exits_with_130(
    command: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "rollback":
        assert run(["migrate", "apply", str(plan), "--yes"]) == 0
    with monkeypatch.context() as patch:
        interrupted_before(patch, plan_run, "JournaledWriter")
        assert run(["migrate", command, str(plan), "--yes"]) == 130
    output = capsys.readouterr().err.splitlines()
    assert output[-1] == "interrupted: this run wrote nothing; run the same command again"
    assert not any(line.startswith("stopping") for line in output)

    assert run(["migrate", command, str(plan), "--yes"]) == 0


def test_ctrl_c_during_the_report_does_not_interrupt_completed_work(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_before(monkeypatch, migrate_output, "show_report")

    assert run(["migrate", "apply", str(plan), "--yes"]) == 0

    output = capsys.readouterr().err
    assert "\nending (again to interrupt at once)\n" in output
    assert f"\nnext: offsetmgr migrate verify {shlex.quote(str(plan))}\n" in output
    assert "interrupted" not in output


def test_a_mirror_with_once_that_is_stopped_early_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uris = [f"file:{tmp_path / name}" for name in ("here.avro", "there.avro")]
    mirror = ["migrate", "mirror", "--from", uris[0], "--to", uris[1], "--all-groups", "--once", "--yes"]

    with monkeypatch.context() as patch:
        interrupted_before(patch, migrate_output, "MirrorLine")
        patch.setattr("offsetmgr.migration.mirror.Mirror._still_watching", lambda _self: True)
        assert run(mirror) == 130
    assert capsys.readouterr().err.endswith("\ninterrupted: some offsets were not copied yet\n")

    assert run(mirror) == 0


# --- signal handlers ----------------------------------------------------------------------------------


def test_after_stopped_work_ctrl_c_interrupts_again() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signal("the work ends") as stop:
        interrupt()
        assert stop()
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_completed_work_the_first_ctrl_c_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    with stop_on_signal("the work ends"):
        pass
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert capsys.readouterr().err == "ending (again to interrupt at once)\n"


def test_after_failed_work_no_ctrl_c_is_ignored() -> None:
    with pytest.raises(ZeroDivisionError), stop_on_signal("the work ends"):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_first_signal()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
