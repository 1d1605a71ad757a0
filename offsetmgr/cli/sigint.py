"""Handles Ctrl-C while the modules of a command are imported, before the command starts: the process prints one line
and ends with exit code 130.

This module imports few modules, and no module of offsetmgr, because Ctrl-C is not handled before these imports are
complete.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def install() -> None:
    """Makes Ctrl-C end the process at once. The effect lasts until `uninstall` is called.

    A process that was started with Ctrl-C ignored, such as a background job of a shell, continues to ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def uninstall() -> None:
    """Makes Ctrl-C raise `KeyboardInterrupt` again, so that a command can handle it."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Ends the process at once instead of raising an exception. An exception during an import could be lost, or could
    leave a partly initialized module."""
    os.write(2, b"interrupted: nothing was done\n")
    os._exit(130)
