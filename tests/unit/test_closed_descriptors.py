"""Commands whose stdin, stdout or stderr is closed: no prompt can be answered, and no error is an internal one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = f'{shlex.quote(sys.executable)} -c "from offsetmgr.cli.app import main; main()"'
FROM = "g,t,0,100\ng,t,1,200\nempty,t,0,1\n"

PROMPTS = {
    "set": "offsets set --group g --topic t:0 --to-offset 150",
    "delete of offsets": "offsets delete --group g --all-topics",
    "import": "offsets import in.csv --group g",
    "delete of a group": "groups delete --group g",
    "copy": "groups copy g other",
    "rename": "groups rename g other",
}
"""Commands that ask before they change a file; the other commands that ask need servers."""


def shell(directory: Path, command: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OFFSETMGR_")}
    environ |= {"XDG_CONFIG_HOME": str(directory / "config"), "XDG_STATE_HOME": str(directory / "state")}
    return subprocess.run(
        ["sh", "-c", f"{COMMAND} {command}"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "store.csv").write_text(FROM)
    (tmp_path / "in.csv").write_text("g,t,0,150\n")
    return tmp_path


@pytest.mark.parametrize("command", PROMPTS.values(), ids=PROMPTS.keys())
def test_a_prompt_without_stdin_is_refused_and_names_the_flag(directory: Path, command: str) -> None:
    done = shell(directory, f"{command} --store file:store.csv --execute <&-")
    assert done.returncode == 2, done.stderr
    assert "stdin is not a terminal" in done.stderr and "hint: add --yes" in done.stderr
    assert "internal" not in done.stderr
    assert (directory / "store.csv").read_text() == FROM


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_command_works_without_stdin_or_stderr(directory: Path, closed: str) -> None:
    done = shell(
        directory, f"offsets set --group g --topic t:0 --to-offset 150 --store file:store.csv --execute --yes {closed}"
    )
    assert done.returncode == 0, done.stderr
    assert "g,t,0,150" in (directory / "store.csv").read_text().splitlines()
    listed = shell(directory, f"offsets get --group g --store file:store.csv --format csv {closed}")
    assert listed.returncode == 0 and "g,t,0,committed,150" in listed.stdout


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_without_stdout_changes_nothing(directory: Path, closed: str) -> None:
    done = shell(
        directory, f"offsets set --group g --topic t:0 --to-offset 150 --store file:store.csv --execute --yes {closed}"
    )
    assert done.returncode == 1
    expected = "" if "2>&-" in closed else "error: cannot write the output: Bad file descriptor\n"
    assert done.stderr == expected
    assert (directory / "store.csv").read_text() == FROM
    assert shell(directory, f"--help {closed}").stderr == expected


def test_only_the_prompt_reads_stdin() -> None:
    package = Path(__file__).parents[2] / "offsetmgr" / "cli"
    reading = {p.name for p in package.glob("*.py") if "sys.stdin" in p.read_text() or "input(" in p.read_text()}
    assert reading == {"confirm.py", "stdout.py"}
