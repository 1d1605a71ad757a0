"""The entry point ``offsetmgr``: runs one command line, and handles the failures of commands."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from offsetmgr.cli.errors import BROKEN_PIPE, FAILED, INTERRUPTED, report
from offsetmgr.cli.render import set_wide
from offsetmgr.cli.root import root
from offsetmgr.cli.terminal import (
    SIGNALS,
    ignore_first_signal,
    preserved_signal_handlers,
    raise_on_termination_signals,
)
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# Streams for stdout and stderr. If writing to stdout fails, for example because the disk is full, the stream raises
# `FileFailure`. If the terminal of stdout is lost, output to this terminal is dropped, and the command continues.
# Output that cannot be written to stderr is dropped too. Files and pipes get UTF-8 in every locale. A terminal with
# another encoding gets escapes for the characters that its encoding does not have, so that names of groups cannot
# make a command fail.

_BUFFER: Final = 64 * 1024


class _Descriptor(io.FileIO):
    """The descriptor of stdout. A write to a closed pipe raises `BrokenPipeError`. Any other failed write raises
    `FileFailure`, except that output to a lost terminal is dropped."""

    def __init__(self, descriptor: int, *, terminal: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._terminal = terminal

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._terminal and error.errno == errno.EIO:
                return memoryview(data).nbytes
            raise FileFailure("cannot write the output", error.strerror or str(error)) from error


class _Messages(io.FileIO):
    """The descriptor of stderr. Drops output that cannot be written."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def replace_streams() -> None:
    """Replaces ``sys.stdout`` and ``sys.stderr`` with the streams of this module.

    If stdin or stderr is closed, opens the null device in its place. Otherwise a file that is opened later would get
    the descriptor of stdin or stderr, and messages could be written to that file. Stdin is replaced before stderr,
    because an opened file gets the lowest free descriptor. Raises `FileFailure` if stdout is closed.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    else:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Messages(sys.stderr.fileno(), "w", closefd=False)),
            encoding=sys.stderr.encoding,
            errors=sys.stderr.errors,
            line_buffering=True,
        )
    if sys.stdout is None:
        raise FileFailure("cannot write the output", os.strerror(errno.EBADF))
    before = sys.stdout
    terminal = before.isatty()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(before.fileno(), terminal=terminal), _BUFFER),
        encoding=before.encoding if terminal else "utf-8",
        errors=before.errors if not terminal or before.encoding.lower() in ("utf-8", "utf8") else "backslashreplace",
        line_buffering=terminal,
    )


def discard_output() -> None:
    """Redirects stdout to the null device, so that the interpreter can flush stdout at exit without an error."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


COMPLETE: Final = "__complete"
"""The first argument with which the completion scripts call offsetmgr."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line, prints its errors, and returns its exit code. Restores the signal handlers."""
    with preserved_signal_handlers():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    """Like `run`, but does not restore the signal handlers that the command has replaced."""
    if arguments[:1] == [COMPLETE]:
        from offsetmgr.cli.completion import complete

        return complete(arguments[1:])
    arguments, debug = _strip_flag(arguments, "--debug")
    arguments, wide = _strip_flag(arguments, "--wide")
    set_wide(wide)
    try:
        _reject_dry_run_with_execute(arguments)
        command = typer.main.get_command(root)
        with command.make_context("offsetmgr", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        discard_output()
        return BROKEN_PIPE
    except SystemExit:
        raise
    except BaseException as error:  # every failure of a command is handled here
        if type(error).__name__ == "NoArgsIsHelpError":  # the message of this error is the help text
            print(getattr(error, "format_message", lambda: "")(), file=sys.stderr)
            return 2
        if isinstance(error, typer.Abort):
            return report(KeyboardInterrupt(), debug=debug)
        return report(error, debug=debug)
    return 0


def _strip_flag(arguments: Sequence[str], flag: str) -> tuple[list[str], bool]:
    """Returns the arguments without the flag, and whether the flag was among them. Every command accepts ``--debug``
    and ``--wide``, although no command declares these options."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    remaining = [a for a in arguments[:end] if a != flag]
    return [*remaining, *arguments[end:]], len(remaining) != end


def _reject_dry_run_with_execute(arguments: Sequence[str]) -> None:
    """Raises `UsageError` if both --dry-run and --execute are given. The option parser would silently use the last of
    the two."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if {"--dry-run", "--execute"} <= set(arguments[:end]):
        raise UsageError("--dry-run and --execute", "are both given", "only one of them; without any it is a dry run")


def main() -> None:
    """Runs the process's command line and exits with its code."""
    # The thread of a client library needs only microseconds for each response, but it waits for the interpreter lock
    # while the main thread builds rows. With Python's default switch interval of 5 ms, the server would be idle during
    # this wait.
    sys.setswitchinterval(0.0002)
    code = FAILED
    try:
        replace_streams()
        raise_on_termination_signals()
        code = _run(sys.argv[1:])
        ignore_first_signal(dict.fromkeys(SIGNALS, signal.SIG_DFL))
        if not code:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        code = BROKEN_PIPE
    except FileFailure as failure:
        code = report(failure)
    except KeyboardInterrupt:  # a second Ctrl-C, while the command reports the first
        code = INTERRUPTED
    if code:
        _flush_or_discard()
    # At exit the interpreter searches all objects for reference cycles. The search takes three times as long as all
    # other work at exit. Freezing the objects avoids this search. The objects do not need to be finalized.
    gc.freeze()
    sys.exit(code)


def _flush_or_discard() -> None:
    """Writes the remaining output of a failed command. If the output cannot be written, drops it without a message,
    because the failure of the command was already reported."""
    try:
        sys.stdout.flush()
    except (OSError, OffsetMgrError, AttributeError):
        discard_output()
