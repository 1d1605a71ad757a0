"""Signal handlers of commands: in a `stop_on_signal` block, the first Ctrl-C requests a clean stop, and the second
Ctrl-C interrupts the command.

SIGTERM and SIGHUP have the same effect as Ctrl-C. When a terminal is lost, both the kernel and the shell may send
SIGHUP, so commands ignore every SIGHUP after the first. A process that was started with SIGHUP ignored, for example
with ``nohup``, ignores every SIGHUP. A manager only prints a line at a SIGHUP, because a manager continues to run when
its terminal is lost.

After a command has completed its writes, the first Ctrl-C has no effect. Otherwise, a command that has completed its
writes would return the exit code of an interrupted command if Ctrl-C arrived during the output of its results.
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
"""The handler of each signal, as passed to ``signal.signal``."""


@contextmanager
def stop_on_signal(what: str, has_begun: Callable[[], bool] = lambda: True) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal has requested a stop. ``what`` is the part of the message that
    describes when the command will stop. As long as ``has_begun`` returns False, the command has changed nothing, and
    the first Ctrl-C interrupts it.

    If the block ends without an exception and no stop was requested, calls `ignore_first_signal` for the rest of the
    command.
    """
    requested = False

    def request_stop(number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        if number == signal.SIGHUP:
            ignore_hangups()
        if requested and number == signal.SIGHUP:
            return
        if requested or not has_begun():
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
    """After this call, the first Ctrl-C or SIGTERM has no effect, except that a line is printed.

    ``before`` contains the handlers for all later signals. If ``before`` is `None`, the handlers that were installed
    before this call handle all later signals.
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
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt. A signal that was ignored when the process was started stays
    ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            _set_handlers({number: _interrupt})


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        ignore_hangups()
    raise KeyboardInterrupt


def hangup_received() -> bool:
    """Whether a SIGHUP has arrived, and was handled like Ctrl-C."""
    return _hangup_received.is_set()


def ignore_hangups() -> None:
    """Ignores SIGHUP after this call."""
    _hangup_received.set()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def print_hangups() -> None:
    """Makes SIGHUP only print a line, even if the process was started with SIGHUP ignored."""

    def print_line(_number: int, _frame: FrameType | None) -> None:
        _print_line("SIGHUP does nothing")

    signal.signal(signal.SIGHUP, print_line)


@contextmanager
def preserved_signal_handlers() -> Iterator[None]:
    """At the end of the block, restores the signal handlers from before the block."""
    before = _current_handlers()
    try:
        yield
    finally:
        _set_handlers(before)


def _current_handlers() -> Handlers:
    return {number: signal.getsignal(number) for number in SIGNALS}


def _set_handlers(handlers: Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # Python sets signal handlers only in the main thread
        for number, handler in handlers.items():
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _print_line(line: str) -> None:
    try:
        note(line)
    except RuntimeError:  # the signal interrupted a write to stderr, and such a write is not reentrant
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())
