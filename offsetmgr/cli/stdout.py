"""Standard output whose failures are told from all others: a full disk or a closed descriptor is no bug of ours.

What is written to a terminal that was lost is dropped, and the work goes on. So is what cannot be written to stderr.
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
    """The descriptor of stdout. A write that fails is a `FileFailure`, a reader that went away a `BrokenPipeError`."""

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
    """The descriptor of stderr. What cannot be written is dropped."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def take_over() -> None:
    """Puts such streams in the place of ``sys.stdout`` and ``sys.stderr``.

    Raises `FileFailure` where the process has no stdout: before anything is done, since a file opened later would get
    its descriptor. For the same reason the null device takes the place of a closed stdin (first, since it gets the
    lowest free descriptor) and of a closed stderr.
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


def forget() -> None:
    """Points stdout at nothing, so that the interpreter's last flush does not complain about what it cannot write."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
