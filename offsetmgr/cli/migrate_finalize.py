"""``offsetmgr migrate finalize``: ends a migration. The command first verifies the offsets again, and checks for
members that commit to the source alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.cli import migrate_output
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.migrate_options import PlanPath, PlanScope, SideConfigs
from offsetmgr.cli.migrate_rollback import late_deletion_note
from offsetmgr.cli.options import AcceptUnseen, Reason, Yes, flag, seconds_option
from offsetmgr.cli.plan_execution import exit_if_interrupted, note_expiry, option_text, plan_writer
from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.plan_file import summary_of
from offsetmgr.migration.plan_run import PlanRun, open_plan

if TYPE_CHECKING:
    from offsetmgr.migration.finalize import GroupGate
    from offsetmgr.migration.finalize_groups import GroupFinalizeReport
    from offsetmgr.migration.journaled_writer import Report
    from offsetmgr.migration.plan import GroupScope
    from offsetmgr.migration.plan_file import PlanFile
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.verify import MigrationVerifier

app = typer.Typer()


@app.command("finalize")
@connected
def finalize_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    delete_source: Annotated[bool, flag("--delete-source", "Also delete the copied offsets from the source.")] = False,
    window_s: Annotated[float, seconds_option("--window", "Maximum time to watch live members.")] = 60.0,
    accept_idle: Annotated[
        bool, flag("--accept-idle", "Accept partitions without traffic if no message can be lost.")
    ] = False,
    accept_refused: Annotated[bool, flag("--accept-refused", "Ignore the partitions that the plan refused.")] = False,
    accept_unseen: AcceptUnseen = False,
    yes: Yes = False,
    reason: Reason = None,
    *,
    configs: SideConfigs,
) -> None:
    """End a migration: verify again, check for members that commit to the source alone, and record the end in the
    journal.

    For each group, the output names what was checked, and whether the result was seen in commits or registrations,
    inferred, or accepted by --accept-idle. A consumer that neither registers nor joins a group is visible only by its
    commits during --window.

    With GROUP or --wave, each of these groups is checked by itself: those that pass are finalized, and the command
    names the others. Without them, the whole plan passes or fails, unless single groups were finalized or rolled back
    before.

    With --delete-source, the command also deletes the source's offsets; the journal keeps their before-images. A group
    that may have offsets in Kafka which this login may not see keeps them all, unless --accept-unseen. To go back after
    the deletion, create a plan in the other direction (migrate rollback --reverse-plan).
    """
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.finalize import finalize
    from offsetmgr.migration.finalize_groups import finalize_groups
    from offsetmgr.migration.group_observer import ObservationWindow
    from offsetmgr.migration.verify_rules import Status

    plan, state = open_plan(plan_path)
    sides = SourceAndTarget.of_plan(connect, plan.header, *connect.of_sides(*configs))
    verifier = sides.verifier(plan, state)
    only = scope.select(plan)
    if only is None and (state.finalized or state.undo.done or state.undo.written) and not state.is_rolled_back:
        only = frozenset(group.group for group in plan.groups() if not state.is_group_rolled_back(group.group))
    verifier.only = only
    options = option_text(connect.repeated_options(*configs))
    if delete_source or state.finalized_at is None:
        _confirm(plan, only, delete_source=delete_source, yes=yes)
    watched = ObservationWindow(window_s, waiting=LockWait().for_commits)
    gate = sides.member_gate(plan, delete_source, EvidenceThresholds(accept_idle=accept_idle), watched)
    accept = (Status.REFUSED,) if accept_refused else ()
    if only is not None:
        with plan_writer(plan, PlanRun("delete", only, reason or ""), verifier.source) as (writer, state):
            remover = writer if delete_source else None
            each = finalize_groups(verifier, state, writer.journal, gate, remover, accept, accept_unseen=accept_unseen)
            writer.incomplete = bool(each.blocked or each.kept)
        _warn(sides, plan, state, only, options, each.finalized)
        _show_groups(each, verifier)
        return
    with plan_writer(plan, PlanRun("delete", reason=reason or ""), verifier.source) as (writer, state):
        remover = writer if delete_source else None
        done = finalize(verifier, state, writer.journal, gate, remover, accept, accept_unseen=accept_unseen)
        writer.incomplete = bool(done.kept)
    _warn(sides, plan, state, only, options, done.gates)
    if state.finalized_at is not None:
        note(f"finalized already, on {migrate_output.moment(state.finalized_at)}")
    else:
        migrate_output.show_gates(done.gates)
        left = f", {done.left_out} left out because the plan refused them" if done.left_out else ""
        verified = count_of(done.verified, "partition")
        note(f"finalized: {verified} verified{left}; {migrate_output.gates_text(done.gates)}")
    fail_if(done.deleted is not None and not _show_deleted(done.deleted, done.kept, verifier))


def _confirm(plan: PlanFile, only: GroupScope | None, *, delete_source: bool, yes: bool) -> None:
    if delete_source:
        actions = summary_of(plan, only).actions
        count = sum(n for action, n in actions.items() if action != "target-only")
        confirm(f"after the checks, remove up to {count_of(count, 'offset')} from {plan.header.source.uri}?", yes=yes)
    else:
        scope = count_of(len(only) if only is not None else plan.summary.groups, "group")
        confirm(f"after the checks, record in the journal that the migration of {scope} has ended?", yes=yes)


def _warn(
    sides: SourceAndTarget,
    plan: PlanFile,
    state: MigrationState,
    only: GroupScope | None,
    options: str,
    gates: Iterable[GroupGate],
) -> None:
    """Prints the groups whose members left the last phase after they had been finalized, and when the copied offsets of
    groups without consumers expire."""
    copied: dict[str, int | None] = {}
    live = {gate.group for gate in gates if gate.live}
    for group in plan.groups_of(only):
        later = state.phase_after_end(group.group, plan.header.end)
        if later is not None and later.phase is not None:
            went_back = f"{later.phase.value} on {migrate_output.moment(later.at)}"
            note(f"warning: group {group.group}: its members went back to phase {went_back}, after it was finalized")
        if not group.error and group.group not in state.phases and group.group not in live:
            copied[group.target_group] = plan.header.expiry_of(state.copied_at(group))
    if any(copied.values()) and (cluster := sides.cluster()) is not None:
        described = cluster.describe_groups(list(copied))
        idle = (at for name, at in copied.items() if not getattr(described.get(name), "members", ()))
        note_expiry(plan.path, idle, options, watched=True)


def _show_groups(each: GroupFinalizeReport, verifier: MigrationVerifier) -> None:
    """Prints the result of each group. Raises `Exit` with code 1 if a group was not finalized, or if an offset was not
    deleted."""
    for name in each.earlier[: migrate_output.SHOWN]:
        note(f"  {name}: finalized already")
    migrate_output.show_gates(each.finalized)
    for error in list(each.blocked.values())[: migrate_output.SHOWN]:
        note(f"  ! {error.what.removeprefix('finalize ')}: {error.why}" + (f" ({error.hint})" if error.hint else ""))
    left = f", {each.left_out} left out because the plan refused them" if each.left_out else ""
    finalized = count_of(len(each.finalized), "group")
    members = f"; {migrate_output.gates_text(each.finalized)}" if each.finalized else ""
    note(f"finalized: {finalized}, {count_of(each.verified, 'partition')} verified{left}{members}")
    if each.blocked:
        note(f"NOT finalized: {count_of(len(each.blocked), 'group')}; the journal has the reasons (migrate status)")
    deleted = each.deleted is None or _show_deleted(each.deleted, each.kept, verifier)
    fail_if(each.blocked or not deleted)


def _show_deleted(deleted: Report, kept: Sequence[str], verifier: MigrationVerifier) -> bool:
    """Prints the result of the deletion. Returns whether every offset was deleted."""
    migrate_output.show_report(deleted, "removed from the source")
    if late := late_deletion_note(verifier.source):
        note(f"warning: {late}")
    for line in kept:
        note(f"  ! kept in the source: {line}")
    exit_if_interrupted(deleted)
    return not kept and deleted.ok
