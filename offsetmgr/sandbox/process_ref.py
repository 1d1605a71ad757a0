"""`ProcessRef`: a process identified by pid *and* start time, so that no signal reaches a later process with its
pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from offsetmgr.core.atomic_file import start_time
from offsetmgr.core.errors import SandboxError

POLL_S = 0.05
"""Seconds between two checks of a condition."""


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Waits for up to ``timeout_s`` seconds until the condition holds; returns whether it does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process, distinguished from later processes with the same pid. ``started`` is an opaque text for the start
    time."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """Returns the process that has this pid now; ``started`` is empty if it has already ended."""
        return cls(pid, start_time(pid))

    def alive(self) -> bool:
        """Returns whether the process still runs. A zombie does not run."""
        return bool(self.started) and start_time(self.pid) == self.started

    def stopped(self) -> bool:
        """Returns whether all threads of the process are stopped, for example by SIGSTOP."""
        return set(_states(self.pid)) == {"T"}

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process group of this process, if the process still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self, timeout_s: float = 15.0) -> bool:
        """Sends SIGTERM, and sends SIGKILL if the process still runs after ``timeout_s`` seconds. Returns whether
        SIGTERM sufficed."""
        self.signal_group(signal.SIGCONT)
        self.signal_group(signal.SIGTERM)
        if wait_until(lambda: not self.alive(), timeout_s):
            return True
        self.signal_group(signal.SIGKILL)
        if not wait_until(lambda: not self.alive(), 10.0):
            raise SandboxError(f"cannot stop process {self.pid}", "it still runs 10 s after SIGKILL")
        return False


def _states(pid: int) -> list[str]:
    """Returns the state of each thread of a process, or of the whole process on systems without /proc."""
    if not Path("/proc/self/stat").exists():
        said = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
        ).stdout
        return [state[0] for state in said.split()]
    states = []
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            states.append(file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0])
    return states
