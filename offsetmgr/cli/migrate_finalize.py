"""``offsetmgr migrate finalize``: ends the dual phase. The command first verifies the offsets again, and proves that no
member writes only to the source."""

from __future__ import annotations

from typing import Annotated

import typer

from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.cli import migrate_output
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.migrate_options import FromConfig, PlanPath, ToConfig
from offsetmgr.cli.migrate_rollback import late_deletion_note
from offsetmgr.cli.options import Yes
from offsetmgr.cli.plan_execution import exit_if_interrupted, plan_writer
from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.plan_run import open_plan

app = typer.Typer()


@app.command("finalize")
@connected
def finalize_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="Also delete the copied offsets from the source.")
    ] = False,
    window: Annotated[
        float, typer.Option("--window", metavar="SECONDS", min=0, help="Maximum time to watch live members.")
    ] = 60.0,
    accept_idle: Annotated[
        bool, typer.Option("--accept-idle", help="Accept partitions without traffic if no message can be lost.")
    ] = False,
    accept_refused: Annotated[
        bool, typer.Option("--accept-refused", help="Ignore the partitions that the plan refused.")
    ] = False,
    yes: Yes = False,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """End the dual phase: verify again, prove that no member writes only to the source, and record the end in the
    journal.

    With --delete-source, the command also deletes the source's offsets; the journal keeps their before-images. To go
    back after the deletion, create a plan in the other direction (migrate rollback --reverse-plan).
    """
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.finalize import finalize
    from offsetmgr.migration.group_observer import ObservationWindow
    from offsetmgr.migration.verify import Status

    plan, state = open_plan(plan_path)
    sides = SourceAndTarget.of_plan(
        connect, plan.header, connect.connection(from_command_config), connect.connection(to_command_config)
    )
    verifier = sides.verifier(plan, state)
    if delete_source:
        count = sum(n for action, n in plan.summary.actions.items() if action != "target-only")
        confirm(f"after the checks, remove up to {count_of(count, 'offset')} from {plan.header.source.uri}?", yes=yes)
    gate = sides.member_gate(
        plan, delete_source, EvidenceThresholds(accept_idle=accept_idle), ObservationWindow(window)
    )
    accept = (Status.REFUSED,) if accept_refused else ()
    with plan_writer(plan, "delete", verifier.source) as (writer, state):
        done = finalize(verifier, state, writer.journal, gate, writer if delete_source else None, accept)
    if state.finalized_at is not None:
        note(f"finalized already, on {migrate_output.moment(state.finalized_at)}")
    else:
        migrate_output.show_gates(done.gates)
        left = f", {done.left_out} left out because the plan refused them" if done.left_out else ""
        verified = count_of(done.verified, "partition")
        note(f"finalized: {verified} verified{left}; no member commits to the source alone")
    if done.deleted is not None:
        migrate_output.show_report(done.deleted, "removed from the source")
        if late := late_deletion_note(verifier.source):
            note(f"warning: {late}")
        for line in done.kept:
            note(f"  ! kept in the source: {line}")
        exit_if_interrupted(done.deleted)
        if done.kept or not done.deleted.ok:
            raise typer.Exit(1)
