"""Repairs a log in child processes, and kills each child (SIGKILL) at another step.

Arguments: ``cut|copy LOG DIRECTORY MOMENT``. Child ``N`` repairs a copy of the directory of ``LOG`` in
``DIRECTORY/N``. It dies at the ``N``-th call that changes a file: ``before`` the call, ``after`` it, or in the middle
of a write (``torn``). Prints the number of these calls; the last child runs to its end.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offsetmgr.segments.partition import segments_in
from offsetmgr.segments.repair import copy_directory, truncate_in_place
from offsetmgr.segments.truncation import scan_segments, truncation_point, unflushed

STEPS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "ftruncate")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(name: str, real: Callable[..., Any], fatal_call: int, moment: str, count: itertools.count[int]) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        if next(count) != fatal_call:
            return real(*arguments, **options)
        if moment == "torn" and name == "write":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif moment == "after":
            real(*arguments, **options)
        die()
        return None

    return call


def repair(command: str, log: Path) -> None:
    cut = truncation_point(scan_segments(unflushed(log.parent, segments_in(log.parent))))
    assert cut.examined.segment.log.name == log.name
    if command == "cut":
        truncate_in_place(cut)
    else:
        copy_directory(cut, log.parent.with_name("repaired"))


def main(command: str, log: Path, directory: Path, moment: str) -> None:
    for step in itertools.count():
        copied = directory / str(step) / log.parent.name
        shutil.copytree(log.parent, copied)
        child = os.fork()
        if child == 0:
            count = itertools.count()
            for name in STEPS:
                setattr(os, name, kill_at_call(name, getattr(os, name), step, moment, count))
            repair(command, copied / log.name)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            sys.stdout.write(f"{step}\n")
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
