"""``offsetmgr migrate apply|status``: writes a plan's offsets, and shows the state of a migration."""

from __future__ import annotations

from typing import Annotated

import typer

from offsetmgr.cli import migrate_view as view
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.errors import Interrupted
from offsetmgr.cli.migrate_options import PlanPath, WaitEmpty
from offsetmgr.cli.migration_stores import FromConfig, SourceAndTarget, ToConfig
from offsetmgr.cli.options import (
    ConnectFlags,
    Format,
    Yes,
    connected,
)
from offsetmgr.cli.plan_work import _end_if_interrupted, _open_plan, _say_next, _work
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import PlanError
from offsetmgr.migration.plan_file import PlanFile

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
            help="Write nothing new: commit again what the plan's groups hold in Kafka, so that it does not expire.",
        ),
    ] = False,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """Write the offsets of a plan; run it again after an interruption, and it continues."""
    from offsetmgr.migration.apply import apply, check_endpoint

    plan, state = _open_plan(plan_path)
    sides = SourceAndTarget.of_plan(connect, plan.header, from_command_config, to_command_config)
    target = sides.target
    check_endpoint("target", plan.header.target, target)
    if plan.header.compared is None:
        why = "it was made by an older offsetmgr, which did not compare the Kafka clusters of both sides"
        raise PlanError(f"plan {plan_path}", why, "make a new plan")
    if refresh:
        confirm(f"commit again what the plan's groups hold in {plan.header.target.uri}?", yes=yes)
        _refresh(sides, plan)
        return
    view.show_plan_header(plan.header)
    view.show_expiry(plan.header, plan.summary, SystemClock().now_ms())
    view.show_plan_summary(plan.summary)
    view.show_attention(plan)
    logs = sides.logs()
    if plan.header.cluster_id is not None and logs is None:
        note("logs are not asked again: the plan was checked against a cluster that only --bootstrap-server names")
    if state.apply.opened and not state.undo.may_have_written:
        note(f"an earlier run completed {view.counted(len(state.apply.done), 'group')}; this one continues")
    if plan.summary.writes:
        confirm(f"write {view.counted(plan.summary.writes, 'offset')} to {plan.header.target.uri}?", yes=yes)
    with _work(plan, "apply", target, wait_empty) as (executor, state):
        report = apply(plan, state, executor, lambda: logs)
    view.show_report(report, "written")
    _say_next(report, f"next: offsetmgr migrate verify {plan_path}")
    if plan.summary.refused or plan.summary.failed_groups:
        partitions = view.counted(plan.summary.refused, "partition")
        note(f"the plan itself refused {partitions} and {view.counted(plan.summary.failed_groups, 'group')}")
    if report.written:
        note(f"undo: offsetmgr migrate rollback {plan_path}")
    elif report.skipped and report.ok:
        note("nothing was left to write; offsets that were deleted or have expired since the copy need a new plan")
    _end_if_interrupted(report)
    if not report.ok or plan.summary.failed_groups or plan.summary.refused:
        raise typer.Exit(1)


def _refresh(sides: SourceAndTarget, plan: PlanFile) -> None:
    from offsetmgr.migration.refresh import renew_retention

    with sides.old_members() as members, _work(plan, "refresh", sides.target) as (executor, state):
        report = renew_retention(plan, state, sides.target, executor.journal, members, executor.stop, executor.waiting)
    view.show_refresh(report, plan.header, SystemClock().now_ms())
    if report.interrupted:
        raise Interrupted("renewed groups are recorded; the same command renews all")
    if not report.ok:
        raise typer.Exit(1)


@app.command("status")
def status_command(plan_path: PlanPath, format: Format = OutputFormat.TABLE) -> None:
    """Show the state of a migration, from its plan and journal alone, without contacting a server."""
    plan, state = _open_plan(plan_path)
    found = view.describe_state(plan, state)
    if format is OutputFormat.TABLE:
        view.show_plan_header(plan.header)
        view.show_plan_summary(plan.summary)
        for name in ("created_at", "last_at", "finalized_at", "refreshed_at"):
            found[name] = None if found[name] is None else view.moment(found[name])
        write_rows((Column("what"), Column("value")), found.items(), format)
    else:
        write_rows([Column(name) for name in found], [tuple(found.values())], format)
