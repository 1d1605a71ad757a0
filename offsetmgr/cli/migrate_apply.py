"""``offsetmgr migrate apply|status``: writes a plan's offsets, and shows the state of a migration."""

from __future__ import annotations

from typing import Annotated

import typer

from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.cli import migrate_output
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import Interrupted
from offsetmgr.cli.migrate_options import FromConfig, PlanPath, ToConfig
from offsetmgr.cli.options import FormatOption, WaitEmpty, Yes
from offsetmgr.cli.plan_execution import exit_if_interrupted, plan_writer, print_next_step
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import open_plan

app = typer.Typer()


@app.command("apply")
@connected
def apply_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    yes: Yes = False,
    wait_empty: WaitEmpty = 0.0,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="Write nothing new: commit the Kafka offsets of the plan's groups again, so that they do not expire.",
        ),
    ] = False,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """Write the offsets of a plan. After an interruption, run the same command again to continue."""
    from offsetmgr.migration.apply import apply, check_endpoint, require_comparison

    plan, state = open_plan(plan_path)
    sides = SourceAndTarget.of_plan(
        connect, plan.header, connect.connection(from_command_config), connect.connection(to_command_config)
    )
    target = sides.target
    check_endpoint("target", plan.header.target, target)
    require_comparison(plan)
    if refresh:
        confirm(f"commit the present offsets of the plan's groups in {plan.header.target.uri} again?", yes=yes)
        _refresh(sides, plan)
        return
    migrate_output.show_plan_header(plan.header)
    migrate_output.show_expiry(plan.header, plan.summary, SystemClock().now_ms())
    migrate_output.show_plan_summary(plan.summary)
    migrate_output.show_attention(plan)
    logs = sides.logs()
    if plan.header.cluster_id is not None and logs is None:
        note("log ranges are not checked again; to check them, add the --bootstrap-server that the plan was made with")
    if state.apply.opened and not state.undo.may_have_written:
        note(f"an earlier run completed {count_of(len(state.apply.done), 'group')}; this one continues")
    if plan.summary.writes:
        confirm(f"write {count_of(plan.summary.writes, 'offset')} to {plan.header.target.uri}?", yes=yes)
    with plan_writer(plan, "apply", target, wait_empty) as (writer, state):
        report = apply(plan, state, writer, lambda: logs)
    migrate_output.show_report(report, "written")
    print_next_step(report, f"next: offsetmgr migrate verify {plan_path}")
    if plan.summary.refused or plan.summary.failed_groups:
        partitions = count_of(plan.summary.refused, "partition")
        note(f"the plan itself refused {partitions} and {count_of(plan.summary.failed_groups, 'group')}")
    if report.written:
        note(f"undo: offsetmgr migrate rollback {plan_path}")
    elif report.skipped and report.ok:
        note("nothing was left to write; to copy offsets that were deleted or have expired since, create a new plan")
    exit_if_interrupted(report)
    if not report.ok or plan.summary.failed_groups or plan.summary.refused:
        raise typer.Exit(1)


def _refresh(sides: SourceAndTarget, plan: PlanFile) -> None:
    from offsetmgr.migration.refresh import renew_retention

    with sides.legacy_members() as members, plan_writer(plan, "refresh", sides.target) as (writer, state):
        report = renew_retention(plan, state, sides.target, writer.journal, members, writer.stop, writer.waiting)
    migrate_output.show_refresh(report, plan.header, SystemClock().now_ms())
    if report.interrupted:
        raise Interrupted("the journal records the renewed groups; run the same command again to renew all")
    if not report.ok:
        raise typer.Exit(1)


@app.command("status")
def status_command(plan_path: PlanPath, format: FormatOption = OutputFormat.TABLE) -> None:
    """Show the state of a migration, from its plan and journal alone, without contacting a server."""
    plan, state = open_plan(plan_path)
    found = migrate_output.describe_state(plan, state)
    if format is OutputFormat.TABLE:
        migrate_output.show_plan_header(plan.header)
        migrate_output.show_plan_summary(plan.summary)
        for name in ("created_at", "last_at", "finalized_at", "refreshed_at"):
            found[name] = None if found[name] is None else migrate_output.moment(found[name])
        write_rows((Column("what"), Column("value")), found.items(), format)
    else:
        write_rows([Column(name) for name in found], [tuple(found.values())], format)
