"""Ctrl-C before a command has begun, while its modules are imported: the process ends in one line, with exit code 130.

Imports nothing of ours and little else, since all that is imported before `watch` is called can still be interrupted.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def watch() -> None:
    """Goes until `begin`. A Ctrl-C that is ignored, as in a shell's background jobs, stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begin() -> None:
    """The command begins: from here on Ctrl-C is an exception, which it can answer."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    """At once: an exception in the middle of an import may be lost, or leave half a module behind."""
    os.write(2, b"interrupted: nothing was done\n")
    os._exit(130)
