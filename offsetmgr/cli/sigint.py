"""Handles Ctrl-C before a command has begun, while its modules are imported: the process ends with one line and exit
code 130.

Imports few modules and none of ours, since imports before `install` can still be interrupted.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def install() -> None:
    """Active until `uninstall`. An ignored Ctrl-C, as in a shell's background jobs, stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def uninstall() -> None:
    """The command begins: from here on Ctrl-C raises an exception, which the command can handle."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Ends at once: an exception during an import may be lost, or leave a half-initialized module."""
    os.write(2, b"interrupted: nothing was done\n")
    os._exit(130)
