"""`Terminal`: notes, progress, clean stops and prompts of the command line, and the options of commands that change
production."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from offsetmgr.app.ui import Declined, Interrupted, Ui
from offsetmgr.cli.options import BeforeImage, Execute, FormatOption, Reason, Yes
from offsetmgr.cli.render import COLLECTOR, Meter, OutputFormat, note, progress
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import printable

# Signal handlers of commands: in a `stop_on_signal` block, the first Ctrl-C requests a clean stop, and the second
# Ctrl-C interrupts the command. SIGTERM and SIGHUP have the same effect as Ctrl-C. When a terminal is lost, both the
# kernel and the shell may send SIGHUP, so commands ignore every SIGHUP after the first. A process that was started
# with SIGHUP ignored, for example with ``nohup``, ignores every SIGHUP. A manager only prints a line at a SIGHUP,
# because a manager continues to run when its terminal is lost. After a command has completed its writes, the first
# Ctrl-C has no effect. Otherwise, a command that has completed its writes would return the exit code of an
# interrupted command if Ctrl-C arrived during the output of its results.

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


T = TypeVar("T")
_TERMINAL_INTERVAL_S: Final = 3.0
_FILE_INTERVAL_S: Final = 30.0


class ChangeFlags(NamedTuple):
    """The options of a command that changes production."""

    execute: Execute = False
    yes: Yes = False
    reason: Reason = None


class RunFlags(NamedTuple):
    """The options of `ChangeFlags`, of a command that prints a table."""

    execute: Execute = False
    yes: Yes = False
    reason: Reason = None
    output: FormatOption = OutputFormat.TABLE


class EditFlags(NamedTuple):
    """The options of a command that edits offsets: those of `RunFlags` and ``--before-image``."""

    execute: Execute = False
    yes: Yes = False
    before_image: BeforeImage = None
    output: FormatOption = OutputFormat.TABLE
    reason: Reason = None


class Terminal(Ui):
    """Prints notes and progress on stderr, and asks on stdin. ``yes`` is the option ``--yes``, and ``context`` the
    selected context, which the questions name.

    Prints at most one repeated note every 3 s, or every 30 s if stderr is not a terminal, and none if the command reads
    several clusters."""

    def __init__(self, *, yes: bool = False, context: str | None = None) -> None:
        self.yes, self.context = yes, context
        self._next = 0.0

    def confirm(self, question: str) -> None:
        confirm(question if self.context is None else f"context {self.context}: {question}", yes=self.yes)

    def note(self, text: str, *, warning: bool = False, repeated: bool = False) -> None:
        if repeated:
            now = time.monotonic()
            if now < self._next or COLLECTOR.get() is not None:
                return
            self._next = now + (_TERMINAL_INTERVAL_S if sys.stderr.isatty() else _FILE_INTERVAL_S)
        note(f"warning: {for_command_line(text)}" if warning else text)

    def reads(self, text: str, *, warning: bool = True) -> None:
        self.note(text, warning=warning)

    def progress(self, items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
        return progress(items, what, total)

    def meter(self, what: str, unit: int = 1) -> Callable[[int, int | None], None]:
        return Meter(what, unit).show

    def stop(
        self, what: str, has_begun: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[Callable[[], bool]]:
        return stop_on_signal(what, has_begun)


def confirm(question: str, *, yes: bool) -> None:
    """Asks the user the question, unless ``yes`` is true.

    Raises `Declined` if the answer is no. Raises `UsageError` if stdin is not a terminal, or if stdin ends before the
    user has answered.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(question.rstrip("?"), "stdin is not a terminal, so the prompt cannot be answered", "add --yes")
    answer = ""
    try:
        sys.stderr.write(f"{printable(question)} [y/N] ")
        sys.stderr.flush()
        with suppress(OSError):  # the terminal may be gone
            answer = sys.stdin.readline()
        if not answer:
            ignore_hangups()  # a lost terminal can still send SIGHUP
    except KeyboardInterrupt as error:
        if hangup_received() or not sys.stdin.isatty():
            raise _unanswered(question) from error
        sys.stderr.write("\n")
        raise Interrupted("nothing was done") from error
    if not answer:
        raise _unanswered(question)
    if answer.strip().lower() not in ("y", "yes"):
        raise Declined


def _unanswered(question: str) -> UsageError:
    why = "no answer was given (end of input), so nothing was done"
    return UsageError(question.rstrip("?"), why, "answer y or n, or add --yes")
