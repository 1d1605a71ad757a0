"""The output of ``offsetmgr runbook bounce --test-command``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import typer

from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.bounce_plan import BounceSpec
from offsetmgr.migration.command_test import CommandTest, run_command_tests
from offsetmgr.migration.group_observer import GroupView

_COLUMNS = ("group", "member", "host", "status", "seconds", "command")


def show_command_tests(
    view: GroupView, specs: Iterable[BounceSpec], template: str, log: Path, output: OutputFormat
) -> None:
    """Runs the test command for each member of each group and prints the results. Raises `Exit` with code 1 if a test
    failed."""
    found: list[CommandTest] = []
    for spec in specs:
        for one in run_command_tests(view, spec, template, log):
            found.append(one)
    rows = [(t.group, t.member, t.host, t.status, round(t.duration_s, 1), t.command) for t in found]
    if output is OutputFormat.JSON:
        print(json.dumps([dict(zip(_COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        write_rows([Column(name, right=name == "seconds") for name in _COLUMNS], rows, output)
    failed = sum(t.status != "ok" for t in found)
    note(f"{count_of(len(found), 'member')} tested, {failed} failed; nothing was restarted")
    if failed:
        note(f"the output of the commands is in {log}")
        raise typer.Exit(FAILED)
