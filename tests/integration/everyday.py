"""Helpers for tests of the everyday commands: `Cli` runs a command; the functions name and read a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-c", "from offsetmgr.cli.app import main; main()")
TIMED = (sys.executable, str(Path(__file__).parents[1] / "timed_command.py"))


class Cli:
    """Runs ``offsetmgr`` with empty settings and with its own state directory."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("OFFSETMGR_")}
        self.environ |= {"XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")}

    def __call__(
        self, *arguments: str, code: int = 0, timeout: float = 240, program: Sequence[str] = COMMAND
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*program, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=self.environ,
            check=False,
        )
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done

    def timed(self, *arguments: str, code: int = 0) -> tuple[subprocess.CompletedProcess[str], float]:
        """Runs a command. Also returns its duration in seconds, which the command measures itself."""
        took = self._home / "took"
        done = self(*arguments, code=code, program=(*TIMED, str(took)))
        return done, float(took.read_text(encoding="ascii"))

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        found = json.loads(self(*arguments, "--format", "json", code=code).stdout)
        assert isinstance(found, list)
        return found


def named_store(flags: list[str]) -> str:
    """The name of the store that these flags select, as the command prints it."""
    return {"--store": "dual:", "--zookeeper": f"zookeeper://{flags[1]}"}.get(flags[0], f"kafka://{flags[1]};")


def inner_store(cli: Cli, flags: list[str], image: Path) -> list[str]:
    """The flags of the store to which a file of before-images belongs."""
    if "--store" not in flags:
        return flags
    config = tomllib.loads((Path(cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml").read_text())
    return ["--store", config["store"]["both"][image.stem.rpartition(".")[2]]]


def committed(cli: Cli, flags: list[str], group: str) -> dict[int, int]:
    rows = cli.rows("offsets", "get", "--group", group, *flags)
    return {row["partition"]: row["offset"] for row in rows}


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is false after {seconds:g} s"
