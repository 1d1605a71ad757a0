"""``offsetmgr migrate verify``: compares both sides with the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.cli import migrate_output
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.many_clusters import one_cluster
from offsetmgr.cli.migrate_options import PlanPath, PlanScope, SideConfigs
from offsetmgr.cli.options import FormatOption, flag
from offsetmgr.cli.render import OutputFormat, note, progress, write_rows
from offsetmgr.migration.plan_run import open_plan

app = typer.Typer()


@app.command("verify")
@connected
@one_cluster("the plan names the servers of one migration")
def verify_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    all_rows: Annotated[bool, flag("--all", "List equal partitions too.")] = False,
    format: FormatOption = OutputFormat.TABLE,
    *,
    configs: SideConfigs,
) -> None:
    """Read both sides again and compare them with the plan; exit 1 on any difference."""
    from offsetmgr.migration.verify_rules import Status

    plan, state = open_plan(plan_path)
    verifier = SourceAndTarget.of_plan(connect, plan.header, *connect.of_sides(*configs)).verifier(plan, state)
    verifier.only = scope.select(plan)
    checked = progress(verifier.results(), "partitions verified")
    everything = all_rows or format is not OutputFormat.TABLE
    # After a rollback, nearly all planned offsets are missing in the target, as intended. The command counts these
    # offsets, and lists them only with --all.
    unlisted = {Status.EQUAL, Status.MISSING} if state.is_rolled_back else {Status.EQUAL}
    rows = (migrate_output.verify_row(v) for v in checked if everything or v.status not in unlisted)
    first = next(rows, None)
    if first is not None or everything:
        write_rows(migrate_output.VERIFY_COLUMNS, _with_first(first, rows), format)
    migrate_output.show_verify_summary(verifier.summary)
    if state.is_rolled_back:
        note("this plan was rolled back: the target holds its old offsets again, so it differs from the plan")
    elif Status.SOURCE_AHEAD in verifier.summary.counts:
        options = (*scope.words(), *connect.repeated_options(*configs))
        status = command_line("migrate", "status", plan_path, options=options)
        note(
            "hint: consumers still commit to the source. Bounce them to dual and verify again, or stop them and make a "
            f"new plan. {status} prints the next command of each group"
        )
    fail_if(not verifier.summary.ok)


def _with_first(first: tuple[Any, ...] | None, rest: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    if first is not None:
        yield first
        yield from rest
