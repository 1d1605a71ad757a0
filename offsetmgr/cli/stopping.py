"""Ctrl-C in the middle of bulk work: the first one asks it to stop cleanly, the second one interrupts it.

When all is done and only to be told, the first one changes nothing any more: a command that did its work does not end
as an interrupted one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

from offsetmgr.cli.render import note

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
Handlers: TypeAlias = Mapping[signal.Signals, Any]
"""What is done with each signal, as ``signal.signal`` takes and gives it."""


@contextmanager
def stopping(what: str) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether to stop; SIGTERM counts as Ctrl-C. ``what`` names what is being ended.

    Where the work comes to its end (the block raises nothing), `ending` goes for the rest of the command.
    """
    asked = False

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        _say(f"stopping: {what} (again to interrupt at once)")

    before = _now()
    _restore(dict.fromkeys(SIGNALS, ask))
    done = False
    try:
        yield lambda: asked
        done = not asked
    finally:
        if done:
            ending(before)
        else:
            _restore(before)


def ending(before: Handlers | None = None) -> None:
    """All is done: the first Ctrl-C or SIGTERM from here on is let pass, and the next one does what was done
    ``before`` (None: what is done now)."""
    before = before or _now()

    def let_pass(_signal: int, _frame: FrameType | None) -> None:
        _restore(before)
        _say("ending (again to interrupt at once)")

    _restore({number: let_pass for number, handler in _now().items() if handler is not signal.SIG_IGN})


@contextmanager
def signals_as_before() -> Iterator[None]:
    """What is done with signals in the block ends with it."""
    before = _now()
    try:
        yield
    finally:
        _restore(before)


def _now() -> Handlers:
    return {number: signal.getsignal(number) for number in SIGNALS}


def _restore(handlers: Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # another one may not, and no signal comes to it
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    try:
        note(line)
    except RuntimeError:  # the signal came in the middle of writing to stderr, which cannot be entered twice
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())
