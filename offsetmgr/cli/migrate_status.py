"""``offsetmgr migrate status``: shows the state of every group of a migration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer

from offsetmgr.cli import migrate_output
from offsetmgr.cli.migrate_options import GroupArguments, PlanPath, WaveOption
from offsetmgr.cli.options import FormatOption
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.fleet import GroupStatus, counts, group_statuses, select_groups
from offsetmgr.migration.plan_run import open_plan

app = typer.Typer()

COLUMNS: Final = (
    Column("group"),
    Column("target_group", detail=True),
    Column("wave", right=True, optional=True),
    Column("owner", optional=True),
    Column("state"),
    Column("since", time=True),
    Column("known", detail=True),
    Column("evidence", optional=True),
    Column("blocked_by", optional=True),
    Column("next", optional=True),
)


@app.command("status")
def status_command(
    plan_path: PlanPath,
    groups: GroupArguments = None,
    wave: WaveOption = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the state of every group in words, with its obstacle and the next command.

    The state comes from the plan and the journal. No server is contacted.
    """
    plan, state = open_plan(plan_path)
    found = group_statuses(plan, state, select_groups(plan, groups or (), wave or ()))
    if format is OutputFormat.TABLE:
        migrate_output.show_plan_header(plan.header)
    write_rows(COLUMNS, [_row(one) for one in found], format)
    if format is OutputFormat.TABLE:
        for line in summary_lines(found):
            note(line)
        if state.refreshed_at is not None:
            note(f"the offsets in the target were renewed on {migrate_output.moment(state.refreshed_at)}")


def _row(one: GroupStatus) -> Sequence[object]:
    names = one.group, one.target_group, one.wave, one.owner or None
    known = one.known.value, one.evidence or None
    return *names, one.state.value, one.since, *known, one.blocked_by or None, one.next_command or None


def summary_lines(found: Sequence[GroupStatus]) -> list[str]:
    """Returns one line for each wave, with the number of groups in each state."""
    lines = []
    for wave, states, blocked in counts(found):
        named = ", ".join(f"{count} {state.value}" for state, count in sorted(states.items()))
        label = "no wave" if wave is None else f"wave {wave}"
        total = count_of(states.total(), "group")
        lines.append(f"{label}: {total}: {named}" + (f"; {blocked} blocked" if blocked else ""))
    return lines
