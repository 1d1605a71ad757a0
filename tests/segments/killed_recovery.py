"""Runs ``log recover --execute`` in child processes, and kills each child (SIGKILL) at another step.

Arguments: ``cut|copy LOG DIRECTORY MOMENT``. Child ``N`` repairs a copy of ``LOG``, a partition's directory, in
``DIRECTORY/N``. It dies at the ``N``-th call that changes a file: ``before`` the call, ``after`` it, or in the middle
of a write (``torn``). Prints the number of these calls; the last child runs to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offsetmgr.cli.app import run

STEPS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "ftruncate")


def kill_at_call(name: str, real: Callable[..., Any], fatal_call: int, moment: str, count: itertools.count[int]) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        if next(count) != fatal_call:
            return real(*arguments, **options)
        if moment == "torn" and name == "write":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif moment == "after":
            with contextlib.suppress(OSError):  # as for a directory that exists already
                real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    return call


def repair(command: str, log: Path, *options: str) -> int:
    target = ["--in-place"] if command == "cut" else ["--to", str(log.parent / "repaired")]
    return run(["log", "recover", str(log), *target, *options])


def main(command: str, log: Path, directory: Path, moment: str) -> None:
    steps, sys.stdout = sys.stdout, sys.stderr
    assert repair(command, log) == 0  # a dry run, which imports the modules of the command
    for step in itertools.count():
        copied = directory / str(step) / log.name
        shutil.copytree(log, copied)
        for name in ("meta.properties", ".lock"):  # faster than a scan of all processes
            (copied.parent / name).touch()
        child = os.fork()
        if child == 0:
            os.environ["XDG_STATE_HOME"] = str(copied.parent / "state")
            count = itertools.count()
            for name in STEPS:
                setattr(os, name, kill_at_call(name, getattr(os, name), step, moment, count))
            os._exit(repair(command, copied, "--execute", "--yes"))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            steps.write(f"{step}\n")
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
