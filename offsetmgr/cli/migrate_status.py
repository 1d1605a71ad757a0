"""``offsetmgr migrate status``: shows the state of every group of a migration."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.plan_text import scope_line, time_text
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.many_clusters import one_cluster
from offsetmgr.cli.migrate_output import note_expiry, option_text
from offsetmgr.cli.options import PlanPath, PlanScope, SideConfigs, file_to_write, opt, seconds_option
from offsetmgr.cli.render import Column, OutputFormat, note, separate_tables, write_rows, write_text
from offsetmgr.cli.table_fit import table_width
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.fleet import (
    RESTART_VARIABLE,
    CommandOptions,
    GroupStatus,
    counts,
    group_statuses,
)
from offsetmgr.migration.plan_file import PlanFile, summary_of
from offsetmgr.migration.plan_run import open_plan
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.runbook_commands import EXAMPLE_RESTART

if TYPE_CHECKING:
    from offsetmgr.migration.fleet_bounce import OpenBounce
    from offsetmgr.migration.plan import GroupScope

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
    Column("since", time=True, rank=12),
    Column("known", optional=True, rank=11),
    Column("evidence", detail=True),
    Column("expires", time=True, optional=True, rank=13),
    Column("blocked_by", optional=True),
    Column("next", optional=True, command=True),
)


@app.command("status", cls=WatchCommand)
@connected
@one_cluster("the plan names the servers of one migration")
def status_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    window_s: Annotated[
        float | None,
        seconds_option("--window", "Ask the servers too, and watch the members' commits for up to this time."),
    ] = None,
    watch: Watch = None,
    count: Count = None,
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
    is_page = format in (StatusFormat.MARKDOWN, StatusFormat.HTML)
    options = CommandOptions(
        option_text(connect.repeated_options(*configs)),
        option_text(connect.repeated_options()),
    )
    if output is not None and not is_page:
        raise UsageError("--output", "is for a page", "add --format html or --format markdown")

    def once() -> int:
        plan, state = open_plan(plan_path)
        only = scope.select(plan)
        live = None
        if window_s is not None:
            from offsetmgr.migration.group_observer import ObservationWindow

            sides = SourceAndTarget.of_plan(connect, plan.header, *connect.of_sides(*configs))
            note(f"asking the servers, and watching live members for up to {window_s:g} s")
            watched = ObservationWindow(window_s, waiting=connect.waits.for_commits)
            live = sides.fleet_view(plan, state, watched).observe(only)
        found = group_statuses(plan, state, only, live, None if is_page else options, _open_bounces(plan, only))
        if is_page:
            _write_page(plan, found, format, output, watched=live is not None)
        else:
            _write_rows(plan, state, only, found, OutputFormat(format.value))
            note_expiry(plan.path, (one.expires_ms for one in found), options.plan, watched=live is not None)
        return 0

    watch_command(once, watch, count)


def _open_bounces(plan: PlanFile, only: GroupScope | None) -> dict[str, OpenBounce]:
    """Returns the open bounces of the groups, by their names in the plan."""
    from offsetmgr.migration.fleet_bounce import open_bounces

    to_zookeeper = plan.header.target.kind == "zookeeper"
    names = {one.target_group if to_zookeeper else one.group: one.group for one in plan.groups_of(only)}
    return {names[name]: found for name, found in open_bounces(names, plan.header).items()}


def _write_rows(
    plan: PlanFile,
    state: MigrationState,
    only: GroupScope | None,
    found: Sequence[GroupStatus],
    output: OutputFormat,
) -> None:
    if output is OutputFormat.TABLE:
        note(scope_line(plan, summary_of(plan, only)))
    if output is OutputFormat.TABLE and table_width() is not None:  # a terminal is too narrow for both long columns
        write_rows(COLUMNS[:-1], [_row(one)[:-1] for one in found], output)
        if steps := [(one.group, one.next_command) for one in found if one.next_command]:
            separate_tables()
            write_rows((COLUMNS[0], COLUMNS[-1]), steps, output)
    else:
        write_rows(COLUMNS, [_row(one) for one in found], output)
    if output is OutputFormat.TABLE:
        for line in summary_lines(found):
            note(line)
        if any(RESTART_VARIABLE in one.next_command for one in found):
            note(f"{RESTART_VARIABLE} is the command that restarts one member, as in: RESTART='{EXAMPLE_RESTART}'")
        if state.refreshed_at is not None:
            note(f"the offsets in the target were renewed on {time_text(state.refreshed_at)}")


def _write_page(
    plan: PlanFile, found: Sequence[GroupStatus], format: StatusFormat, output: Path | None, *, watched: bool
) -> None:
    from offsetmgr.core.document import to_html, to_markdown
    from offsetmgr.migration.fleet_page import fleet_parts, fleet_title

    render = to_html if format is StatusFormat.HTML else to_markdown
    page = render(fleet_title(plan), fleet_parts(plan, found, SystemClock().now_ms(), watched=watched))
    if output is None:
        write_text(page.rstrip("\n"))
        return
    replace_file(output, lambda out: out.write(page.encode()), overwrite=True)
    note(f"wrote {output}")


def _row(one: GroupStatus) -> Sequence[object]:
    names = one.group, one.target_group, one.wave, one.owner or None
    known = one.known.value, one.evidence or None
    blocked = one.blocked_by or None
    return *names, one.state.value, one.since_ms, *known, one.expires_ms, blocked, one.next_command or None


def summary_lines(found: Sequence[GroupStatus]) -> list[str]:
    """Returns one line for each wave, with the number of groups in each state."""
    lines = []
    for wave, states, blocked in counts(found):
        named = ", ".join(f"{count} {state.value}" for state, count in sorted(states.items()))
        label = "no wave" if wave is None else f"wave {wave}"
        total = count_of(states.total(), "group")
        lines.append(f"{label}: {total}: {named}" + (f"; {blocked} blocked" if blocked else ""))
    return lines
