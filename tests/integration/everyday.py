"""What the tests of the everyday commands share: `Cli`, and what a store is called."""

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
    """Runs ``offsetmgr`` with a state directory of its own and nothing else in its settings."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("OFFSETMGR_")}
        self.environ |= {"XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")}

    def __call__(
        self, *arguments: str, code: int = 0, timeout: float = 60, program: Sequence[str] = COMMAND
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
        """And the seconds that it took by its own clock."""
        took = self._home / "took"
        done = self(*arguments, code=code, program=(*TIMED, str(took)))
        return done, float(took.read_text(encoding="ascii"))

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        found = json.loads(self(*arguments, "--format", "json", code=code).stdout)
        assert isinstance(found, list)
        return found


def named_store(flags: list[str]) -> str:
    """How the store of these flags is named in what is said of it."""
    return {"--store": "dual:", "--zookeeper": f"zookeeper://{flags[1]}"}.get(flags[0], f"kafka://{flags[1]};")


def inner_store(cli: Cli, flags: list[str], image: Path) -> list[str]:
    """The flags of the store whose before-images a file holds."""
    if "--store" not in flags:
        return flags
    config = tomllib.loads((Path(cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml").read_text())
    return ["--store", config["store"]["both"][image.stem.rpartition(".")[2]]]


def committed(cli: Cli, flags: list[str], group: str) -> dict[int, int]:
    rows = cli.rows("offsets", "get", "--group", group, *flags)
    return {row["partition"]: row["offset"] for row in rows}


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "not within the time given"
