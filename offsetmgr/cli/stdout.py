"""Streams for stdout and stderr that report a full disk or a closed descriptor as an error of the environment.

If the terminal is lost, output to it is dropped and the command continues. Output that stderr does not accept is
dropped too.
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
    """The descriptor of stdout. A failed write raises `FileFailure`, a closed pipe `BrokenPipeError`."""

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
    """Replaces ``sys.stdout`` and ``sys.stderr`` with these streams.

    Raises `FileFailure` if stdout is closed, because a file that is opened later would get the descriptor of stdout,
    and output would be written to that file. For the same reason, the null device replaces a closed stdin or stderr.
    Stdin is replaced first, because an opened file gets the lowest free descriptor.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process
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
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=terminal,
    )


def discard_output() -> None:
    """Points stdout at the null device, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
