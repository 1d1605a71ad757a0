"""Ctrl-C and a hangup while a command or a manager imports its modules."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


AT_START = ["offsetmgr.cli.app", "typer", "offsetmgr.config.connection", "offsetmgr.cli.offsets"]


@pytest.mark.parametrize("module", [*AT_START, "offsetmgr.groups.lag", "offsetmgr.stores.snapshot"])
def test_ctrl_c_while_a_command_is_imported_is_one_line(module: str, tmp_path: Path) -> None:
    done = interrupted_at_import(module, tmp_path)
    end = "nothing was done" if module in AT_START else "stopped before the end"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"interrupted: {end}\n")


@pytest.mark.parametrize("module", ["offsetmgr.server.network.socket_server", "offsetmgr.server.manager_process"])
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
