"""Ctrl-C in the middle of bulk work: the first one asks it to stop cleanly, the second one interrupts it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from offsetmgr.cli.render import note


@contextmanager
def stopping(what: str) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether to stop; SIGTERM counts as Ctrl-C. ``what`` names what is being ended."""
    asked = False

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        line = f"stopping: {what} (again to interrupt at once)"
        try:
            note(line)
        except RuntimeError:  # the signal came in the middle of writing to stderr, which cannot be entered twice
            with contextlib.suppress(OSError):
                os.write(2, f"\n{line}\n".encode())

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
