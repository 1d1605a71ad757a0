"""Streams for stdout and stderr. If writing to stdout fails, for example because the disk is full, the stream raises
`FileFailure`.

If the terminal of stdout is lost, output to this terminal is dropped, and the command continues. Output that cannot be
written to stderr is dropped too.

Files and pipes get UTF-8 in every locale. A terminal with another encoding gets escapes for the characters that its
encoding does not have, so that names of groups cannot make a command fail.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import FileFailure

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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
