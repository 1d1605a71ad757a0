"""``offsetmgr migrate apply``: writes a plan's offsets."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.cli import migrate_output
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import Interrupted, fail_if
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.migrate_options import PlanPath, PlanScope, SideConfigs
from offsetmgr.cli.options import Reason, WaitEmpty, Yes, flag
from offsetmgr.cli.plan_execution import exit_if_interrupted, plan_writer, print_next_step
from offsetmgr.cli.render import note
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.migration.plan_file import PlanFile, summary_of
from offsetmgr.migration.plan_run import PlanRun, open_plan, undo_command

app = typer.Typer()


@app.command("apply")
@connected
def apply_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    yes: Yes = False,
    reason: Reason = None,
    wait_empty_s: WaitEmpty = 0.0,
    refresh: Annotated[
        bool,
        flag(
            "--refresh",
            "Write nothing new: commit the Kafka offsets of the plan's groups again, so that they do not expire.",
        ),
    ] = False,
    accept_stale: Annotated[
        bool,
        flag("--accept-stale", "Write the offsets of a plan older than a day, although the source has moved on."),
    ] = False,
    *,
    configs: SideConfigs,
) -> None:
    """Write the offsets of a plan. After an interruption, run the same command again to continue.

    With --group or --wave, the command writes only these groups of the plan, and leaves the others as they are. If the
    plan is older than a day, the command first compares the source: it writes nothing if the offsets of a group have
    moved on, and `migrate renew` plans such groups again.
    """
    from offsetmgr.migration.apply import apply, check_endpoint, require_comparison
    from offsetmgr.migration.renewal import reject_stale

    plan, state = open_plan(plan_path)
    only = scope.select(plan)
    sides = SourceAndTarget.of_plan(connect, plan.header, *connect.of_sides(*configs))
    target = sides.target
    check_endpoint("target", plan.header.target, target)
    require_comparison(plan)
    if refresh and only is not None:
        raise UsageError("--refresh", "renews all groups of the plan", "leave out --group, --wave and --exclude-group")
    if refresh:
        confirm(f"commit the present offsets of the plan's groups in {plan.header.target.uri} again?", yes=yes)
        _refresh(sides, plan, reason or "")
        return
    migrate_output.show_plan_header(plan.header)
    migrate_output.show_expiry(plan.header, plan.summary, SystemClock().now_ms(), sides.clock_difference())
    migrate_output.show_plan_summary(plan.summary)
    migrate_output.show_attention(plan)
    logs = sides.logs()
    options = connect.repeated_options(*configs)
    if plan.header.cluster_id is not None and logs is None:
        note("log ranges are not checked again; to check them, add the --bootstrap-server that the plan was made with")
    if state.apply.opened and not state.is_rolled_back:
        note(f"an earlier run completed {count_of(len(state.apply.done), 'group')}; this one continues")
    if not accept_stale:
        reject_stale(plan, state, sides.source, only, _renewal_hint(plan, (*scope.words(), *options)))
    planned = summary_of(plan, only)
    if only is not None:
        note(f"only {count_of(planned.groups, 'group')} of the plan: {list_of(sorted(only), migrate_output.SHOWN)}")
    if planned.writes:
        confirm(f"write {count_of(planned.writes, 'offset')} to {plan.header.target.uri}?", yes=yes)
    run = PlanRun("apply", only, reason or "", options)
    earlier = bool(state.apply.written)
    with plan_writer(plan, run, target, wait_empty_s) as (writer, state):
        report = apply(plan, state, writer, lambda: logs)
    followups = (*scope.words(), *options)
    migrate_output.show_report(report, "written")
    print_next_step(report, f"next: {command_line('migrate', 'verify', plan_path, options=followups)}")
    if planned.refused or planned.failed_groups:
        partitions = count_of(planned.refused, "partition")
        note(f"the plan itself refused {partitions} and {count_of(planned.failed_groups, 'group')}")
    if report.written:
        note(f"undo: {command_line('migrate', 'rollback', plan_path, options=followups)}")
        if earlier:
            note(f"undo of this run alone: {shlex.join(undo_command(str(plan_path), writer, run))}")
    elif report.skipped and report.ok:
        note("nothing was left to write; to copy offsets that were deleted or have expired since, create a new plan")
    exit_if_interrupted(report)
    fail_if(not report.ok or planned.failed_groups or planned.refused)


def _renewal_hint(plan: PlanFile, options: tuple[str, ...]) -> str:
    """Returns the hint for a plan whose source has changed."""
    renew = command_line("migrate", "renew", plan.path, "-o", "FILE", options=options)
    return f"plan them again: {renew}; or write the old offsets with --accept-stale"


def _refresh(sides: SourceAndTarget, plan: PlanFile, reason: str) -> None:
    from offsetmgr.migration.refresh import renew_retention

    with (
        sides.legacy_members() as members,
        plan_writer(plan, PlanRun("refresh", reason=reason), sides.target) as (writer, state),
    ):
        report = renew_retention(plan, state, sides.target, writer.journal, members, writer.stop, writer.on_lock_wait)
    migrate_output.show_refresh(report, plan.header, SystemClock().now_ms(), sides.clock_difference())
    if report.interrupted:
        raise Interrupted("the journal records the renewed groups; run the same command again to renew all")
    fail_if(not report.ok)
