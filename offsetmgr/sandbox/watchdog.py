"""Kills the servers of a program that dies without stopping them, as a test run does on SIGKILL.

Started as a process of its own by `Watchdog`; one serves all servers of a program. It reads lines ``+PID`` and
``-PID`` (process groups) from its standard input, whose end means that the program is gone, however it died. A
parent-death signal would not do: it is sent when the *thread* that started the child ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


class Watchdog:
    """The program's side: tells a watchdog process which process groups to end with us."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def add(self, group: int) -> None:
        """The process group is to be killed when this program dies."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """The process group has ended."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                # A session of its own: a Ctrl-C at the terminal must not end it before the servers are stopped.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._owner = os.getpid()
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


def _watch() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _watch()
