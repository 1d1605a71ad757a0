"""Helpers for tests of the everyday commands: `Cli` runs a command; the functions name and read a store."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processes import own_environment, run_command


class Cli:
    """Runs ``offsetmgr`` with empty settings and with its own state directory."""

    def __init__(self, home: Path) -> None:
        self.environ = own_environment(home)

    def __call__(
        self, *arguments: str, code: int | None = 0, program: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, code=code, environ=self.environ, program=program)

    def timed(self, *arguments: str, code: int = 0) -> tuple[subprocess.CompletedProcess[str], float]:
        """Runs a command. Also returns the duration in seconds."""
        began = time.monotonic()
        return self(*arguments, code=code), time.monotonic() - began

    def rows(self, *arguments: str, code: int | None = 0) -> list[dict[str, Any]]:
        found = json.loads(self(*arguments, "--format", "json", code=code).stdout)
        assert isinstance(found, list)
        return found

    def planned(self, *arguments: str) -> dict[str, Any]:
        """Plans the migration of one partition. Returns its row. A plan that refuses it must end with code 1."""
        done = run_command("migrate", "plan", *arguments, "--format", "json", code=None, environ=self.environ)
        row: dict[str, Any]
        (row,) = json.loads(done.stdout)
        assert done.returncode == row["action"].startswith("refuse-"), done.stderr
        return row


def named_store(flags: list[str]) -> str:
    """The name of the store that these flags select, as the command prints it."""
    return {"--store": "dual:", "--zookeeper": f"zookeeper://{flags[1]}"}.get(flags[0], f"kafka://{flags[1]};")


def committed(cli: Cli, flags: list[str], group: str) -> dict[int, int]:
    rows = cli.rows("offsets", "get", "--group", group, *flags)
    return {row["partition"]: row["offset"] for row in rows}
