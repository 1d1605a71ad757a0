"""A watchdog process, which kills the servers of a program that dies without stopping them, for example by SIGKILL.

`Watchdog` starts one watchdog process for all servers of a program. The watchdog process reads lines ``+PID STARTED``
and ``-PID STARTED`` (the fields of `ProcessRef`) from its standard input. The end of this input means that the program
has ended. Linux's parent-death signal is not suitable, because the kernel sends this signal as soon as the *thread*
that started the child ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

from offsetmgr.sandbox.process_ref import ProcessRef


class Watchdog:
    """The program's side of the watchdog: starts the watchdog process, and sends a line to it for each process group
    that the watchdog process must kill when this program ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._watched: set[ProcessRef] = set()

    def add(self, leader: ProcessRef) -> None:
        """Adds the process group of ``leader`` to the process groups that the watchdog kills when this program ends."""
        with self._lock:
            if self._owner != os.getpid():  # a fork: the servers started before the fork belong to the parent
                self._process, self._owner, self._watched = None, os.getpid(), set()
            self._watched.add(leader)
            self._send(f"+{leader.pid} {leader.started}\n")

    def remove(self, leader: ProcessRef) -> None:
        """Removes a process group that has ended."""
        with self._lock:
            if self._owner == os.getpid():
                self._watched.discard(leader)
                self._send(f"-{leader.pid} {leader.started}\n")

    def _send(self, line: str) -> None:
        if self._process is None or self._process.poll() is not None:
            # The watchdog gets this process's import path, because a new interpreter's default import path may differ.
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; from offsetmgr.sandbox import watchdog; watchdog.watch()"
            )
            # Start the watchdog in a separate session, so that Ctrl-C at the terminal does not end it before the
            # servers are stopped.
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            line = "".join(f"+{leader.pid} {leader.started}\n" for leader in self._watched)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def watch() -> None:
    """Runs the watchdog process: waits until the program has ended, and kills its remaining servers."""
    watched: set[ProcessRef] = set()
    for line in sys.stdin:
        pid, _, started = line[1:].rstrip("\n").partition(" ")
        leader = ProcessRef(int(pid), started)
        if line.startswith("+"):
            watched.add(leader)
        else:
            watched.discard(leader)
    for leader in watched:
        leader.signal_group(signal.SIGKILL)
