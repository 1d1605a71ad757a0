"""Reports failures: one line with the failure and its cause, one line with the remedy, and the exit code.

Only this module turns exceptions into text and exit codes: 0 done; 1 failed, partly failed, or a check found a
difference; 2 wrong usage; 130 interrupted. Tracebacks are printed only with ``--debug``.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from typing import Final

import typer

from offsetmgr.app.ui import Declined, Interrupted
from offsetmgr.cli.render import COLLECTOR, WATCHED_OUTPUT, coloured_message
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.errors import OffsetMgrError, PartialFailure, SparkError, UsageError

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""The exit code that a shell reports for a process that SIGPIPE killed: 128 + 13."""


def report(error: BaseException, *, debug: bool = False) -> int:
    """Prints ``error`` on stderr, and returns its exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt):
        error = error.__cause__  # Ctrl-C arrived while C code, for example librdkafka, called Python
    if isinstance(error, KeyboardInterrupt):
        remaining = for_command_line(error.remaining) if isinstance(error, Interrupted) else "stopped before the end"
        _print_line(f"interrupted: {remaining}")
        return INTERRUPTED
    if isinstance(error, Declined):
        _print_line("nothing was done")
        return FAILED
    if isinstance(error, OffsetMgrError):
        return _report_offsetmgr_error(error)
    if (message := _command_line_message(error)) is not None:
        _print_line(f"error: {message}")
        _print_line(f"hint: {_command_line_hint(error)}")
        return USAGE
    if isinstance(error, UnicodeEncodeError) and (argument := _argument_without_encoding()) is not None:
        _print_line(f"error: argument {argument!a}: is not valid UTF-8")
        _print_line("hint: a terminal with the encoding UTF-8 sends valid arguments")
        return USAGE
    _print_line(f"error: internal: {type(error).__name__}: {_one_line(str(error))}")
    _print_line("hint: this is a bug in offsetmgr; run the command again with --debug for the traceback")
    return FAILED


def report_and_exit_code(errors: Iterable[OffsetMgrError]) -> int:
    """Prints the errors of a command that also prints results. Identical errors and hints are printed once. With
    ``--watch``, prints the time with each error, and no hints. Returns 1 if there are errors, else 0."""
    failed = list(errors)
    if (collector := COLLECTOR.get()) is not None:
        collector.errors += failed
        return FAILED if failed else 0
    watched = WATCHED_OUTPUT.get()
    for text in dict.fromkeys(worded(error) for error in failed):
        _print_line(f"error: {text}" if watched is None else f"error: {watched.time}: {text}")
    if watched is not None:
        return FAILED if failed else 0
    for hint in dict.fromkeys(_one_line(for_command_line(error.hint)) for error in failed if error.hint):
        _print_line(f"hint: {hint}")
    return FAILED if failed else 0


def worded(error: OffsetMgrError) -> str:
    """Returns the text of an error for the command line, in one line."""
    return _one_line(error.text.command_line())


def exit_with(code: int) -> None:
    """Ends the command, unless the exit code is 0."""
    if code:
        raise typer.Exit(code)


def fail_if(failed: object) -> None:
    """Ends the command with exit code 1 if ``failed`` is true."""
    exit_with(FAILED if failed else 0)


def _report_offsetmgr_error(error: OffsetMgrError) -> int:
    _print_line(f"error: {worded(error)}")
    if isinstance(error, PartialFailure):
        for partition, failure in sorted(error.failures.items()):
            _print_line(f"  {partition}: {worded(failure)}")
    if error.hint:
        _print_line(f"hint: {_one_line(for_command_line(error.hint))}")
    elif isinstance(error, SparkError) and error.__cause__ is not None:
        _print_line("hint: --debug shows the complete error")
    return USAGE if isinstance(error, UsageError) else FAILED


def _command_line_message(error: BaseException) -> str | None:
    """Returns the text of an error from the option parser, or None for any other error.

    The error is recognized by its attributes, not by its class, because some versions of typer contain their own copy
    of click.
    """
    format_message = getattr(error, "format_message", None)
    return _one_line(format_message()) if callable(format_message) else None


def _command_line_hint(error: BaseException) -> str:
    """Returns the hint for an error from the option parser. The parser reads the name of a group as options if the name
    begins with ``-``; for such an error the hint contains the forms that the command accepts."""
    context = getattr(error, "ctx", None)
    hint = f"see {getattr(context, 'command_path', 'offsetmgr')} --help"
    if type(error).__name__ != "NoSuchOption" or getattr(error, "option_name", "--").startswith("--"):
        return hint
    parameters = getattr(getattr(context, "command", None), "params", ())
    forms = []
    if any("--group" in parameter.opts for parameter in parameters):
        forms.append("--group=-NAME")
    if any("GROUP" in (getattr(parameter, "metavar", None) or "").split("]")[0] for parameter in parameters):
        forms.append("-- -NAME at the end of the command")
    return f"for a group whose name begins with -: {', or '.join(forms)}; {hint}" if forms else hint


def _argument_without_encoding() -> str | None:
    """Returns the first argument of the command line whose bytes are not valid UTF-8."""
    return next((argument for argument in sys.argv if any("\ud800" <= c <= "\udfff" for c in argument)), None)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_line(text: str) -> None:
    print(coloured_message(text, sys.stderr), file=sys.stderr)
