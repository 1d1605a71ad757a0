"""`Terminal`: notes, progress, clean stops and prompts of the command line, and the options of commands that change
production."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Final, NamedTuple, TypeVar

from offsetmgr.app.ui import Declined, Interrupted, Ui
from offsetmgr.cli.options import BeforeImage, Execute, FormatOption, Reason, Yes
from offsetmgr.cli.output_collector import COLLECTOR
from offsetmgr.cli.render import Meter, OutputFormat, note, progress
from offsetmgr.cli.stop_signals import hangup_received, ignore_hangups, stop_on_signal
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import printable

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
