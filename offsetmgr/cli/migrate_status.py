"""``offsetmgr migrate status``: shows the state of every group of a migration."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from offsetmgr.app.plan_text import expiry_notes, scope_line, time_text
from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.migrate_output import option_text
from offsetmgr.cli.options import PlanPath, PlanScope, SideConfigs, file_to_write, opt, seconds_option
from offsetmgr.cli.render import (
    Column,
    OutputFormat,
    note,
    rows_of,
    separate_tables,
    table_width,
    write_rows,
    write_text,
)
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.document import to_html, to_markdown
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.app.migrate import FleetStatus, GroupStatus

app = typer.Typer()


class StatusFormat(StrEnum):
    """The values of ``--format``."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


COLUMNS: Final = (
    Column("group"),
    Column("target_group", detail=True),
    Column("wave", right=True, optional=True),
    Column("owner", optional=True, rank=2),
    Column("state"),
    Column("since", time=True, rank=12, get="since_ms"),
    Column("known", optional=True, rank=11),
    Column("evidence", detail=True),
    Column("expires", time=True, optional=True, rank=13, get="expires_ms"),
    Column("blocked_by", optional=True),
    Column("next", optional=True, command=True),
)


@command(app, "status", one="the plan names the servers of one migration", watch=True)
def status_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    window_s: Annotated[
        float | None,
        seconds_option("--window", "Ask the servers too, and watch the members' commits for up to this time."),
    ] = None,
    format: Annotated[
        StatusFormat, opt("--format", None, "Output format; markdown and html write one page instead of rows.")
    ] = StatusFormat.TABLE,
    output: Annotated[
        Path | None,
        opt("--output -o", "FILE", "Write the page to FILE, and replace it.", callback=file_to_write),
    ] = None,
    *,
    configs: SideConfigs,
) -> None:
    """Show the state of every group in words, with its obstacle and the next command.

    The state comes from the plan, the journal, and the state files of bounces that are not finished. With --window, it
    also comes from the servers, for finalized groups too: the phase of live members, and the partitions that do not
    verify.
    """
    from offsetmgr.app import migrate

    is_page = format in (StatusFormat.MARKDOWN, StatusFormat.HTML)
    if output is not None and not is_page:
        raise UsageError("--output", "is for a page", "add --format html or --format markdown")
    of_plan, of_members = option_text(connect.repeated_options(*configs)), option_text(connect.repeated_options())

    def next_command(one: GroupStatus) -> str | None:
        bounces = one.next.call is not None and one.next.call.verb == "runbook bounce"
        return one.next.command_line(of_members if bounces else of_plan) or None

    sides = None if window_s is None else connect.sides(configs)  # only the servers need the settings
    found = migrate.status(connect, plan_path, scope.selection(), window_s=window_s, sides=sides)
    if is_page:
        _write_page(found, format, output)
        return
    _write_rows(found, next_command, OutputFormat(format.value))
    dates = (one.expires_ms for one in found.groups)
    for text in expiry_notes(plan_path, dates, connect.repeated_options(*configs), watched=found.watched):
        connect.ui.note(text, warning=True)


def _write_rows(found: FleetStatus, next_command: Callable[[GroupStatus], str | None], output: OutputFormat) -> None:
    known, last = COLUMNS[:-1], COLUMNS[-1]
    of_groups = zip(rows_of(known, found.groups), found.groups, strict=True)
    # The id of a group may be empty.
    rows = [
        (*row[:2], *(None if value == "" else value for value in row[2:]), next_command(one)) for row, one in of_groups
    ]
    if output is not OutputFormat.TABLE:
        write_rows(COLUMNS, rows, output)
        return
    note(scope_line(found.plan, found.summary))
    if table_width() is not None:  # a terminal is too narrow for both long columns
        write_rows(known, [row[:-1] for row in rows], output)
        if steps := [(row[0], row[-1]) for row in rows if row[-1]]:
            separate_tables()
            write_rows((COLUMNS[0], last), steps, output)
    else:
        write_rows(COLUMNS, rows, output)
    for one in found.waves():
        label = "no wave" if one.wave is None else f"wave {one.wave}"
        blocked = f"; {one.blocked} blocked" if one.blocked else ""
        note(f"{label}: {count_of(one.states.total(), 'group')}: {one.text}{blocked}")
    if found.restart_note:
        note(found.restart_note)
    if found.state.refreshed_at is not None:
        note(f"the offsets in the target were renewed on {time_text(found.state.refreshed_at)}")


def _write_page(found: FleetStatus, format: StatusFormat, output: Path | None) -> None:
    render = to_html if format is StatusFormat.HTML else to_markdown
    page = render(*found.page(SystemClock().now_ms()))
    if output is None:
        write_text(page.rstrip("\n"))
        return
    replace_file(output, lambda out: out.write(page.encode()), overwrite=True)
    note(f"wrote {output}")
