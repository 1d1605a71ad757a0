"""``offsetmgr migrate renew``: plans the groups of a plan again that apply has not begun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.cli import migrate_output
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.many_clusters import one_cluster
from offsetmgr.cli.migrate_options import PlanPath, PlanScope, SideConfigs
from offsetmgr.cli.migrate_plan import IfAhead
from offsetmgr.cli.options import file_to_write, opt
from offsetmgr.cli.plan_execution import end_of_planning
from offsetmgr.cli.render import note
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import open_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.renewal import finish_renewal, renew

app = typer.Typer()


@app.command("renew")
@connected
@one_cluster("the plan names the servers of one migration")
def renew_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    output: Annotated[
        Path,
        opt("--output -o", "FILE", "Where to write the new plan.", callback=file_to_write),
    ],
    scope: PlanScope,
    if_ahead: IfAhead = None,
    *,
    configs: SideConfigs,
) -> None:
    """Plan the groups again that apply has not begun, with their present offsets, in a new plan.

    A migration of many groups takes weeks, and the offsets of a plan get old. The new plan keeps the waves, the owners,
    and the states of the groups that were applied: the command copies the journal. The old plan is replaced, and its
    commands name the new plan. The command writes no offset.
    """
    options = (*scope.words(), *connect.repeated_options(*configs))
    following = f"next: {command_line('migrate', 'apply', output, options=options)}"
    if finish_renewal(PlanFile(plan_path), output):
        note(f"an earlier run had written {output} and was killed; it is complete now, and {plan_path} is replaced")
        note(following)
        return
    plan, _ = open_plan(plan_path)
    only = scope.select(plan)
    sides = SourceAndTarget.of_plan(connect, plan.header, *connect.of_sides(*configs))
    with sides.legacy_members() as members:
        options_now = replace(plan.header.options, if_ahead=if_ahead or plan.header.options.if_ahead)
        planner = Planner(
            sides.source, sides.target, options_now, SystemClock(), sides.cluster(), members,
            translate=plan.header.translate,
        )  # fmt: skip
        done = renew(plan, planner, output, only)
    migrate_output.show_plan_header(done.header)
    migrate_output.show_expiry(done.header, done.summary, done.header.created_at, done.header.clock)
    migrate_output.show_plan_summary(done.summary)
    migrate_output.show_waves(PlanFile(output))
    again, kept = count_of(done.renewed, "group"), count_of(done.kept, "group")
    note(f"planned {again} again; {kept} kept; {plan_path} is replaced")
    end_of_planning(done.summary, following)
