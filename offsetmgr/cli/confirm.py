"""The confirmation prompt of commands that change production."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import NamedTuple

from offsetmgr.cli.errors import Declined, Interrupted
from offsetmgr.cli.options import BeforeImage, Execute, FormatOption, Reason, Yes
from offsetmgr.cli.render import OutputFormat
from offsetmgr.cli.stop_signals import hangup_received, ignore_hangups
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import printable


class RunFlags(NamedTuple):
    """The options of a command that changes production."""

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
