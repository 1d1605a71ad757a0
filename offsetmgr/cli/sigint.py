"""Handles Ctrl-C before a command has begun, while its modules are imported: the process ends with one line and exit
code 130.

This module imports few modules, and none of offsetmgr, because Ctrl-C during these imports is not handled yet.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def install() -> None:
    """Ends the process at Ctrl-C, until `uninstall`.

    A process that ignores Ctrl-C, such as a shell's background job, goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def uninstall() -> None:
    """Makes Ctrl-C raise `KeyboardInterrupt` again, which a command can handle."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Ends the process at once. An exception during an import might be lost, or leave a half-initialized module."""
    os.write(2, b"interrupted: nothing was done\n")
    os._exit(130)
