"""``offsetmgr migrate rollback``: restores before-images, or writes a reverse plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.written_plan import WrittenPlan, write_reverse_plan_file
from offsetmgr.cli import migrate_output
from offsetmgr.cli.columns import PLANNED_WRITE
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.followup_commands import command_line, delete_groups_command
from offsetmgr.cli.migrate_options import PlanPath, PlanScope, SideConfigs
from offsetmgr.cli.migrate_plan import IfAhead
from offsetmgr.cli.options import Reason, WaitEmpty, Yes, file_to_write, flag, opt
from offsetmgr.cli.plan_execution import end_of_planning, exit_if_interrupted, plan_writer, print_next_step
from offsetmgr.cli.render import OutputFormat, note, progress, write_rows
from offsetmgr.core.errors import JournalError, UsageError
from offsetmgr.core.model import DELETES_OFFSETS, KEEPS_ACTIVE_OFFSETS
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.plan import Action, GroupScope
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import PlanRun, open_renewed
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.model import LogRange, TopicPartition
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.log_checks import OutsideLogChecks
    from offsetmgr.migration.journaled_writer import Report
    from offsetmgr.migration.rollback import RollbackPreview

app = typer.Typer()


@app.command("rollback")
@connected
def rollback_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    yes: Yes = False,
    reason: Reason = None,
    force: Annotated[
        bool, flag("--force", "Restore before-images even if the offset has changed since apply.")
    ] = False,
    reverse_plan: Annotated[
        Path | None,
        opt(
            "--reverse-plan",
            "FILE",
            "After a cutover: write a plan that copies the present offsets back.",
            callback=file_to_write,
        ),
    ] = None,
    allow_rewind: Annotated[
        bool,
        flag("--allow-rewind", "With --reverse-plan: also rewind offsets that were rewound in the target since."),
    ] = False,
    if_ahead: IfAhead = None,
    run: Annotated[
        str | None,
        opt("--run", "ID", "Undo only this run of migrate apply, by its id in offsetmgr edits list."),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Only show the offsets that would be restored or have changed since.")
    ] = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    configs: SideConfigs,
) -> None:
    """Restore what apply overwrote and remove what it created.

    With --run, only the offsets that this run of apply wrote are restored, and the other runs of the plan keep theirs.
    A group that was rolled back, even in part, is not applied again: make a new plan for it.

    Offsets are restored exactly: before it asks, the command warns of those that are outside their log now. If the plan
    was renewed, the command works on the new plan, which has the before-images of both.

    If a group already consumes from the target, restoring before-images would rewind it. Then use --reverse-plan, which
    creates a plan in the other direction, of the groups that --group or --wave selects.
    """
    from offsetmgr.migration.rollback import preview, restored_offsets, rollback

    sources = connect.of_sides(*configs)
    if reverse_plan is None and (allow_rewind or if_ahead is not None):
        option = "--allow-rewind" if allow_rewind else "--if-ahead"
        raise UsageError(option, "works only with --reverse-plan: a rollback restores the before-image")
    if reverse_plan is not None:
        _reject_options(force=force, wait_empty=wait_empty_s > 0, run=run, dry_run=dry_run)
        plan, state = _open(plan_path)
        back = SourceAndTarget.reversed(connect, plan.header, *sources)
        only = scope.select(plan)
        options = connect.repeated_options(*reversed(configs))  # the sides are exchanged
        write = partial(write_reverse_plan_file, back, plan, state, allow_rewind=allow_rewind, if_ahead=if_ahead)
        _plan_back(partial(write, only=only), reverse_plan, options)
        return
    plan, state = _open(plan_path)
    only = _with_run(state, scope.select(plan), run)
    sides = SourceAndTarget.of_plan(connect, plan.header, *sources)
    target = sides.target
    one_run = state.run(run) if run else None
    checks = _log_checks(sides)
    if dry_run:
        _show_preview(preview(plan, state, target, only, force=force, run=one_run), checks)
        return
    if state.apply.intents and state.finalized_at is None:
        applied = f"the run {run} of migrate apply" if run else f"{plan.path} was applied"
        note(f"restores {plan.header.target.uri} to what it held before {applied}")
        migrate_output.show_weaknesses(
            found.text for found in target.weaknesses() if found.subject == KEEPS_ACTIVE_OFFSETS
        )
        note("partitions whose offset has changed since are " + ("overwritten (--force)" if force else "refused"))
        checks.count(restored_offsets(plan, state, only, one_run))
        _show_warnings(checks)
        started = len(state.apply.intents.keys() & only) if only is not None else len(state.apply.intents)
        confirm(f"roll back {count_of(started, 'group')}?", yes=yes)
    operation = PlanRun("undo", only, reason or "", undoes_run=run or "")
    with plan_writer(plan, operation, target, wait_empty_s) as (writer, state):
        try:
            report = rollback(plan, state, writer, force=force, run=state.run(run) if run else None)
        except JournalError:  # the journal records no writes; the comparison with the target shows whether that is true
            _compare_others(plan, state, target, only)
            raise
    followups = _FollowupOptions(
        connect.repeated_options(*configs),
        connect.undo_options(target, configs.to_command_config),
    )
    _show_result(report, plan, state, target, only, run, followups)


def _open(path: Path) -> tuple[PlanFile, MigrationState]:
    """Opens the plan. If it was renewed, prints a note and opens the newest plan."""
    plan, state = open_renewed(path)
    if plan.path != path:
        note(
            f"{path} was renewed: this command works on {plan.path}, with every group that was applied with either plan"
        )
    return plan, state


def _reject_options(**given: object) -> None:
    """Raises `UsageError` if an option is given that has no effect with --reverse-plan."""
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name.replace('_', '-')}", "has no effect with --reverse-plan, which writes only a plan"
            )


class _FollowupOptions(NamedTuple):
    """The connection options of the commands that the user may run next: those of the plan, and edits of the
    target."""

    of_plan: tuple[str, ...]
    of_target: tuple[str, ...]


def _show_result(
    report: Report,
    plan: PlanFile,
    state: MigrationState,
    target: OffsetStore,
    only: GroupScope | None,
    run: str | None,
    followups: _FollowupOptions,
) -> None:
    """Prints the result. Raises `Exit` with code 1 if an offset differs from its before-image."""
    migrate_output.show_report(report, "restored")
    if report.failed:
        back = command_line("migrate", "rollback", plan.path, "--reverse-plan", "FILE", options=followups.of_plan)
        note(f"if a group already consumes from the target: {back}")
    if report.ok and not report.groups:
        groups = "every group in the journal" if only is None else "these groups"
        note(f"an earlier run rolled back {groups}; nothing was done")
    differing = 0 if report.interrupted else _compare_others(plan, state, target, only)
    if report.groups and not differing and not report.closed:
        print_next_step(report, f"rolled back: every offset is as it was before{' this run' if run else ''}")
        if report.ok:
            _note_empty_groups(plan, state, target, followups.of_target)
        if report.ok and (late := late_deletion_note(target)) and (created := sum(_created(plan, state))):
            note(f"warning: apply created {count_of(created, 'offset')} there, and rollback deleted them. {late}")
    exit_if_interrupted(report)
    fail_if(not report.ok or differing)


def _with_run(state: MigrationState, only: GroupScope | None, run: str | None) -> GroupScope | None:
    """Returns the groups of ``only`` that the run of apply has changed; all groups of ``only`` without a run."""
    from offsetmgr.migration.rollback import groups_of_run

    if run is None:
        return only
    changed = groups_of_run(state.run(run))
    if not changed:
        raise UsageError(f"--run {run}", "this run of `migrate apply` wrote nothing, so there is nothing to undo")
    chosen = changed if only is None else changed & only
    if not chosen:
        raise UsageError(f"--run {run}", "this run has changed none of these groups", "leave out --group and --wave")
    return chosen


def _log_checks(sides: SourceAndTarget) -> OutsideLogChecks:
    """Returns the checks of the offsets that a rollback restores. They have the log ranges if brokers are known."""
    from offsetmgr.groups.log_checks import OutsideLogChecks

    def log_ranges(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        logs = sides.logs()
        return {} if logs is None else logs.log_ranges(partitions)

    return OutsideLogChecks(log_ranges)


def _show_warnings(checks: OutsideLogChecks) -> None:
    for text in checks.warnings():
        note(f"warning: {text}")


def _show_preview(found: Iterable[RollbackPreview], checks: OutsideLogChecks) -> None:
    """Prints what a rollback would restore. Raises `Exit` with code 1 if an offset would not be restored."""
    rows = list(found)
    checks.load((one.tp, one.before) for one in rows if one.before is not None)

    def note_of(one: RollbackPreview) -> str | None:
        return one.problem or (checks.note(one.tp, one.before) if one.before is not None else "") or None

    write_rows(
        PLANNED_WRITE, [(one.group, *one.tp, one.now, one.before, note_of(one)) for one in rows], OutputFormat.TABLE
    )
    bad = sum(bool(one.problem) for one in rows)
    restored = sum(not one.problem and one.now == one.before for one in rows)
    others = f"; {restored:,} {'is' if restored == 1 else 'are'} restored already" if restored else ""
    refused = f", and refuse {bad:,}" if bad else ""
    _show_warnings(checks)
    changes = count_of(len(rows) - bad - restored, "offset")
    note(f"dry run: would restore {changes}{refused}{others}; nothing was changed")
    fail_if(bad)


def _created(plan: PlanFile, state: MigrationState) -> Iterator[int]:
    """Yields for each group the number of offsets that ``migrate apply`` created, or may have created, in the
    target."""
    for group in plan.groups():
        if group.group in state.apply.intents:
            applied = state.partitions(state.apply, group.group)
            yield sum(step.target is None and step.tp in applied.written | applied.in_doubt for step in group.writes())


def _note_empty_groups(plan: PlanFile, state: MigrationState, target: OffsetStore, options: Sequence[str]) -> None:
    """Prints the groups that had no offset before ``migrate apply``, and exist without an offset now, with the command
    that removes them."""
    from offsetmgr.groups.edits import groups_left_without_offsets

    created = {
        group.target_group
        for group in plan.groups()
        if group.group in state.apply.intents and all(step.target is None for step in group.steps)
    }
    if empty := groups_left_without_offsets(target, sorted(created)):
        note(
            f"{count_of(len(empty), 'group')} that had no offset before {'is' if len(empty) == 1 else 'are'} empty now"
        )
        note(f"to remove: {delete_groups_command(plan.header.target.uri, empty, options)}")


def late_deletion_note(store: OffsetStore) -> str:
    """Returns a note if the store does not delete offsets at once, else an empty string."""
    return next((found.text for found in store.weaknesses() if found.subject == DELETES_OFFSETS), "")


def _compare_others(plan: PlanFile, state: MigrationState, target: OffsetStore, only: GroupScope | None) -> int:
    """Reads from the target the offsets that the journal does not record as written, and compares them with the plan's
    before-images.

    Prints the differences and returns their number.
    """
    from offsetmgr.migration.rollback import differences, unrecorded_writes

    others = sum(1 for _ in unrecorded_writes(plan, state, only))
    if not others:
        return 0
    started = len(state.apply.intents)
    note(f"the journal records {started:,} of the plan's {plan.summary.groups:,} groups as started")
    count = 0
    for found in progress(differences(plan, state, target, only), "comparing"):
        count += 1
        if count <= migrate_output.SHOWN:
            before, now = ("no offset" if n is None else n for n in (found.before, found.now))
            why = str(found.error) if found.error else f"holds {now}, and held {before} before the plan was applied"
            note(f"  ! {found.group}{f' {found.tp}' if found.tp else ''}: {why}")
    compared = f"compared, in {count_of(others, 'group')}, the offsets that the journal does not record as written"
    if not count:
        note(f"{compared}: every offset is as it was before")
        return 0
    if count > migrate_output.SHOWN:
        note(f"  ! and {count - migrate_output.SHOWN:,} more")
    note(f"{compared}: {count_of(count, 'offset')} differ from their before-images; they were not changed")
    note(
        "hint: the journal may be truncated or older than the last apply; restore a complete copy and roll back again, "
        "or restore a snapshot of the target"
    )
    return count


def _plan_back(write: Callable[..., WrittenPlan], output: Path, options: Sequence[str]) -> None:
    """Writes the reverse plan. ``options`` are the connection options of the commands that execute it."""
    written = write(output, shown=lambda plans, count: progress(plans, "groups planned", count))
    header, summary = written.header, written.summary
    migrate_output.show_plan_header(header)
    migrate_output.show_expiry(header, summary, header.created_at, header.clock)
    migrate_output.show_plan_summary(summary)
    migrate_output.show_attention(PlanFile(output))
    note(f"reverse plan written to {output}; nothing was changed")
    following = f"next: {command_line('migrate', 'apply', output, options=options)}"
    end_of_planning(summary, following, failed=summary.actions[Action.REFUSE_LOST])
