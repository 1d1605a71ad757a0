"""The content of a log whose newest segment ends with invalid bytes, and commands that run in this process."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from offsetmgr.cli.app import run
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record

SOUND = b"".join(batch([Record(40 + n, None, b"k", b"v" * 90)]) for n in range(5))
JUNK = bytes(1000)
NEWEST = "00000000000000000040"


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.out)
        return rows


def command(*arguments: object) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return CommandResult(code, out.getvalue(), err.getvalue())


def tree(directory: Path) -> dict[str, bytes]:
    """Returns the content of every file below a directory, by path."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}
