"""A program in a pseudo-terminal: the test types, and reads what the terminal shows."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

CONTROL: Final = re.compile(
    rb"\x1b\[[0-9;?<>=]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|[\x07\x0f\x0e]"
)
"""Control sequences: colours, movements of the cursor, titles of windows."""


def start_on_terminal(
    command: Sequence[str], size: tuple[int, int] = (40, 80), before: str = "", **options: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program with its own controlling terminal of ``size`` rows and columns. Returns the process and the
    terminal's other end. ``before``: a shell command that runs first."""
    ours, theirs = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    # The shell acquires the terminal. Python code between fork and exec can hang, because tests have threads.
    shell = ["bash", "-c", f': <"$0"; {before or ":"}; exec "$@"', os.ttyname(theirs), *command]
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(shell, start_new_session=True, **streams, **options)
    os.close(theirs)
    return process, ours


class Terminal:
    """Runs a program in a pseudo-terminal with the given number of columns. ``close`` kills the program."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, columns: int = 80, rows: int = 40) -> None:
        self._process, self._descriptor = start_on_terminal(command, (rows, columns), env=env)
        self.raw = b""
        self.ended = False

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        os.close(self._descriptor)
        self._process.wait()

    def type(self, text: str) -> None:
        """Types the text. Only output after this call is in `text`."""
        self.raw = b""
        os.write(self._descriptor, text.encode())

    @property
    def text(self) -> str:
        """The output since the last call of `type`, without control sequences."""
        return CONTROL.sub(b"", self.raw).decode(errors="replace").replace("\r\n", "\n")

    def read(self, seconds: float) -> bool:
        """Reads output that arrives within the time. Returns False if none has arrived, or the program has ended."""
        if self.ended or not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        try:
            found = os.read(self._descriptor, 65536)
        except OSError:
            found = b""
        self.ended = not found
        self.raw += found
        return bool(found)

    def wait_for(self, text: str, seconds: float = 120) -> str:
        """Reads until the output contains ``text``, and returns the output."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline and not self.ended, f"no {text!r} in {self.text!r}"
            self.read(0.1)
        return self.text

    def settle(self, quiet_s: float = 1.5) -> str:
        """Reads until no output has arrived for the time, and returns the output."""
        while self.read(quiet_s):
            pass
        return self.text

    def exit_code(self) -> int:
        """Reads until the program ends, and returns its exit code (minus the signal's number if a signal killed it)."""
        while not self.ended:
            self.read(30)
        return self._process.wait()
