"""Runs commands of offsetmgr in this process, for tests without servers."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import typer

from offsetmgr.cli.app import root, run

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of all errors of typer's command-line parser."""


class Output(NamedTuple):
    """The standard output and the standard error of a command."""

    stdout: str
    stderr: str


def command(*arguments: object, code: int | None = 0) -> Output:
    """Runs a command, which must end with the exit code (None: any)."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        found = run([str(one) for one in arguments])
    assert code in (None, found), f"exit code {found}\n{out.getvalue()}\n{err.getvalue()}"
    return Output(out.getvalue(), err.getvalue())


def rows(*arguments: object, code: int | None = 0) -> Any:
    """Runs a command with ``--format json``, and returns what it prints."""
    return json.loads(command(*arguments, "--format", "json", code=code).stdout)


def parse(arguments: list[str]) -> None:
    """Parses a command line as the program does, without running the command. Raises `USAGE_ERROR`."""
    group: Any = typer.main.get_command(root)
    context = None
    name = "offsetmgr"
    while True:
        context = group.make_context(name, list(arguments), parent=context)
        if not hasattr(group, "resolve_command"):
            return
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, group, arguments = group.resolve_command(context, rest)
