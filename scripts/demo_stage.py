"""Helpers of the chapters of `scripts/demo spark`: output, checks, topics, and child processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

STARTED: Final = time.monotonic()
BOLD, DIM, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


def chapter(text: str) -> None:
    print(f"\n{BOLD}== {text}{PLAIN}  {DIM}[{time.monotonic() - STARTED:.0f} s]{PLAIN}", flush=True)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def check(right: bool, what: str) -> None:
    if not right:
        sys.exit(f"the demo failed: {what}")


def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
        done.result(60)


@contextmanager
def script(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a script with its output in a file. At the end of the block its remaining processes are killed, with the
    JVM."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def offsetmgr(*arguments: str, expect: int = 0, show: bool = True) -> str:
    """Runs an offsetmgr command, prints it with its output, and returns its stdout.

    Ends the demo if its exit code is not ``expect``.
    """
    command = [sys.executable, "-m", "offsetmgr", *arguments]
    if show:
        print(f"\n{BOLD}$ offsetmgr {shlex.join(arguments)}{PLAIN}", flush=True)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    what = f"offsetmgr {shlex.join(arguments)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    check(done.returncode == expect, what)
    if show:
        for line in done.stdout.splitlines():
            say(line)
    return done.stdout
