"""A process whose children cut a log, or copy it, each killing itself (SIGKILL) at another step.

Arguments: ``cut|copy LOG FOLDER MOMENT``. The children work in ``FOLDER/N`` on copies of the directory of ``LOG``, and
die at the ``N``-th call by which anything is changed: ``before`` it, ``after`` it, or in the middle of it (``torn``,
where it writes). Prints how many there were: the last child came to its end.
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


def deadly(name: str, real: Callable[..., Any], mine: int, moment: str, count: itertools.count[int]) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        if next(count) != mine:
            return real(*arguments, **options)
        if moment == "torn" and name == "write":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif moment == "after":
            real(*arguments, **options)
        die()
        return None

    return call


def work(command: str, log: Path) -> None:
    cut = truncation_point(scan_segments(unflushed(log.parent, segments_in(log.parent))))
    assert cut.examined.segment.log.name == log.name
    if command == "cut":
        truncate_in_place(cut)
    else:
        copy_directory(cut, log.parent.with_name("repaired"))


def main(command: str, log: Path, directory: Path, moment: str) -> None:
    for step in itertools.count():
        own = directory / str(step) / log.parent.name
        shutil.copytree(log.parent, own)
        child = os.fork()
        if child == 0:
            count = itertools.count()
            for name in STEPS:
                setattr(os, name, deadly(name, getattr(os, name), step, moment, count))
            work(command, own / log.name)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            sys.stdout.write(f"{step}\n")
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
