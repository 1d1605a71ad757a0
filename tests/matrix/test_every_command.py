"""Every command with its help in a closed pipe, with a mistyped option, and with a mistyped name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from offsetmgr.cli.root import REGISTRY, SINGLE_COMMANDS, root

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

OFFSETMGR = (sys.executable, "-m", "offsetmgr")


def commands() -> list[tuple[str, str]]:
    top: Any = typer.main.get_command(root)
    return [
        (group, name)
        for group in REGISTRY
        if group not in SINGLE_COMMANDS
        for name in top.get_command(None, group).commands
    ]


def offsetmgr(*arguments: str) -> tuple[int, str, list[str]]:
    done = subprocess.run([*OFFSETMGR, *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_in_a_pipe_and_typos(command: tuple[str, str]) -> None:
    line = f"{' '.join((*OFFSETMGR, *command))} --help | head -1; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    usage, code = piped.stdout.splitlines()
    assert usage.startswith("Usage: ")
    assert code in ("0", "141")
    assert piped.stderr == ""

    code_of_typo, stdout, stderr = offsetmgr(*command, "--no-such-opton")
    assert (code_of_typo, stdout) == (2, "")
    assert stderr[0].startswith("error: No such option: --no-such-opton")
    assert stderr[1:] == [f"hint: see offsetmgr {' '.join(command)} --help"]

    code_of_typo, stdout, stderr = offsetmgr(command[0], f"{command[1]}x")
    assert (code_of_typo, stdout) == (2, "")
    assert stderr[0].startswith(f"error: No such command '{command[1]}x'. Did you mean ")
