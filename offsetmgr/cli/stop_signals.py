"""Ctrl-C during bulk work: the first one requests a clean stop, the second one interrupts it.

SIGTERM and SIGHUP count as Ctrl-C. A lost terminal may send SIGHUP more than once (the kernel does, and the shell), so
it is ignored after the first one. A SIGHUP that is ignored from the start, as under ``nohup``, stays ignored. A
manager, which runs until it is stopped, only logs it.

After the work, while results are being printed, the first one has no effect: a command that completed its work does not
end as an interrupted one.
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

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_hung_up: Final = threading.Event()
Handlers: TypeAlias = Mapping[signal.Signals, Any]
"""The handler of each signal, as used by ``signal.signal``."""


@contextmanager
def stopping(what: str) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether to stop. ``what`` names the work that is being ended.

    If the work completes (the block raises nothing), `ending` applies for the rest of the command.
    """
    asked = False

    def ask(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP:
            ignore_hangups()
        if asked:
            if number == signal.SIGHUP:
                return
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
    """The work is complete: the first Ctrl-C or SIGTERM from here on is ignored, and the next one has the handler
    ``before`` (None: the present handler)."""
    before = before or _now()

    def let_pass(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            ignore_hangups()
        _restore(before)
        _say("ending (again to interrupt at once)")

    _restore({number: let_pass for number, handler in _now().items() if handler is not signal.SIG_IGN})


def answer_as_ctrl_c() -> None:
    """From here on SIGTERM and SIGHUP raise KeyboardInterrupt, unless the process was started with them ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            _restore({number: _interrupt})


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        ignore_hangups()
    raise KeyboardInterrupt


def hung_up() -> bool:
    """Whether a SIGHUP that counts as Ctrl-C has arrived."""
    return _hung_up.is_set()


def ignore_hangups() -> None:
    """Ignores SIGHUP from here on."""
    _hung_up.set()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def only_tell_hangups() -> None:
    """From here on SIGHUP only prints a line, even in a process that was started with it ignored."""

    def tell(_number: int, _frame: FrameType | None) -> None:
        _say("SIGHUP does nothing")

    signal.signal(signal.SIGHUP, tell)


@contextmanager
def signals_as_before() -> Iterator[None]:
    """Restores the signal handlers at the end of the block."""
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
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _say(line: str) -> None:
    try:
        note(line)
    except RuntimeError:  # the signal arrived during a write to stderr, which is not reentrant
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())
