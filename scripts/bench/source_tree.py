"""Checkouts of offsetmgr, so that a benchmark can run an earlier commit and this tree on the same servers."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Tree:
    """A checkout of offsetmgr."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        # Without PYTHONSAFEPATH Python would import offsetmgr from the current directory.
        return {**os.environ, "PYTHONPATH": str(self.path), "PYTHONSAFEPATH": "1"}

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in codes:
            sys.exit(f"{' '.join(command)} exited {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def seconds(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> float:
        """The duration of an offsetmgr command, from start to exit."""
        started = time.perf_counter()
        self.run("-m", "offsetmgr", *arguments, codes=codes)
        return time.perf_counter() - started

    def compile(self) -> None:
        """Compiles all modules, as pip does when it installs a package."""
        compileall.compile_dir(self.path / "offsetmgr", quiet=2)


@contextmanager
def checkout(revision: str, directory: Path) -> Iterator[Tree]:
    """A checkout of an earlier commit, removed afterwards."""
    path = directory / "old"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], check=True)
    try:
        yield Tree(path)
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)
