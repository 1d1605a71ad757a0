"""Signal handlers of commands: the first Ctrl-C during bulk work requests a clean stop, the second one interrupts it.

SIGTERM and SIGHUP count as Ctrl-C. When a terminal is lost, both the kernel and the shell may send SIGHUP, so commands
ignore it after the first one. A process that was started with SIGHUP ignored, as under ``nohup``, still ignores it. At
a SIGHUP, a manager only prints a line, because it runs until it is stopped.

After a command has written everything, and while it prints its results, the first Ctrl-C has no effect. Otherwise the
completed command would exit as interrupted.
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
_hangup_received: Final = threading.Event()
Handlers: TypeAlias = Mapping[signal.Signals, Any]
"""The handler of each signal, as used by ``signal.signal``."""


@contextmanager
def stop_on_signal(what: str) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal has requested a stop. ``what`` tells the user when the command
    will stop.

    If the block ends without an exception or a requested stop, `ignore_first_signal` applies for the rest of the
    command.
    """
    requested = False

    def request_stop(number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        if number == signal.SIGHUP:
            ignore_hangups()
        if requested:
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        requested = True
        _print_line(f"stopping: {what} (again to interrupt at once)")

    before = _current_handlers()
    _set_handlers(dict.fromkeys(SIGNALS, request_stop))
    done = False
    try:
        yield lambda: requested
        done = not requested
    finally:
        if done:
            ignore_first_signal(before)
        else:
            _set_handlers(before)


def ignore_first_signal(before: Handlers | None = None) -> None:
    """From here on, ignores the first Ctrl-C or SIGTERM.

    The next signal is handled by its handler in ``before``, or by the present handler if ``before`` is `None`.
    """
    before = before or _current_handlers()

    def ignore_once(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            ignore_hangups()
        _set_handlers(before)
        _print_line("ending (again to interrupt at once)")

    _set_handlers(
        {number: ignore_once for number, handler in _current_handlers().items() if handler is not signal.SIG_IGN}
    )


def raise_on_termination_signals() -> None:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, unless the process was started with them ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            _set_handlers({number: _interrupt})


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        ignore_hangups()
    raise KeyboardInterrupt


def hangup_received() -> bool:
    """Whether a SIGHUP that counts as Ctrl-C has arrived."""
    return _hangup_received.is_set()


def ignore_hangups() -> None:
    """Ignores SIGHUP from here on."""
    _hangup_received.set()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def print_hangups() -> None:
    """Makes SIGHUP only print a line, even in a process that was started with it ignored."""

    def print_line(_number: int, _frame: FrameType | None) -> None:
        _print_line("SIGHUP does nothing")

    signal.signal(signal.SIGHUP, print_line)


@contextmanager
def preserved_signal_handlers() -> Iterator[None]:
    """Restores the signal handlers at the end of the block."""
    before = _current_handlers()
    try:
        yield
    finally:
        _set_handlers(before)


def _current_handlers() -> Handlers:
    return {number: signal.getsignal(number) for number in SIGNALS}


def _set_handlers(handlers: Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # Python allows it only there
        for number, handler in handlers.items():
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _print_line(line: str) -> None:
    try:
        note(line)
    except RuntimeError:  # the signal arrived during a write to stderr, which is not reentrant
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())
