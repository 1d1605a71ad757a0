"""``offsetmgr doctor``: checks every configured endpoint and this machine."""

from __future__ import annotations

from collections import Counter
from typing import Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.options import FormatOption, GroupsOption
from offsetmgr.cli.render import NAME_RANK, Column, OutputFormat, fail_if, note, write_rows
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.check_result import CheckResult, CheckStatus

app = typer.Typer(rich_markup_mode=None)

CHECKS: Final = (
    Column("result"),
    Column("check", rank=NAME_RANK),
    Column("endpoint", rank=NAME_RANK),
    Column("detail"),
    Column("fix", optional=True),
)


@command(app, "doctor", many=True)
def doctor(connect: ConnectFlags, group: GroupsOption = None, output: FormatOption = OutputFormat.TABLE) -> None:
    """Check that every configured server can be used: reachable, release, login, permissions, clock; and this machine.

    It only reads: it changes nothing in Kafka, in ZooKeeper or on this machine. The exit code is 1 if a check failed.
    --group checks the permissions on these groups and their phases, instead of the permissions on some existing groups
    and the phases of groups whose migration is not finished.
    """
    from offsetmgr.app import doctor as app

    results = app.doctor(connect, group or ())
    rows = [_row(one) for one in results]
    if output.for_people:  # one long text is wrapped at the width of the terminal, two are not
        table = [(*names, f"{text}; fix: {fix}" if fix else text) for *names, text, fix in rows]
        write_rows(CHECKS[:-1], table, output)
    else:
        write_rows(CHECKS, rows, output)
    counts = Counter(one.status for one in results)
    note(", ".join(f"{counts[status]} {status.value}" for status in CheckStatus if counts[status]))
    fail_if(counts[CheckStatus.FAILED])


def _row(one: CheckResult) -> tuple[str | None, ...]:
    return one.status.value, one.check, one.endpoint, for_command_line(one.detail), for_command_line(one.fix) or None
