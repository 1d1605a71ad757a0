"""`start_time` distinguishes a process from later processes with the same pid."""

from __future__ import annotations

import subprocess
from pathlib import Path


def start_time(pid: int) -> str:
    """Returns a text that distinguishes the process with this pid from all earlier and later processes with the same
    pid. The text is empty if no process with this pid runs."""
    try:
        # Of the fields after the command's closing parenthesis, the 1st is the state and the 20th is the start time
        # (ticks since boot).
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return "" if Path("/proc/self/stat").exists() else _start_time_from_ps(pid)
    return "" if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def _start_time_from_ps(pid: int) -> str:
    """Like `start_time`, for systems without /proc."""
    answer = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    ).stdout.split(maxsplit=1)
    return "" if len(answer) < 2 or answer[0].startswith("Z") else answer[1].strip()
