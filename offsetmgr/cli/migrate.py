"""``offsetmgr migrate``: moves groups from one store to another, and back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from offsetmgr.app.plan_text import SHOWN, time_text
from offsetmgr.cli import migrate_mirror, migrate_output, migrate_status
from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.errors import exit_with, fail_if, report_and_exit_code
from offsetmgr.cli.migrate_mirror import IfAhead, parse_renames
from offsetmgr.cli.migrate_output import end_of_planning, exit_if_interrupted, print_next_step
from offsetmgr.cli.options import (
    AcceptUnseen,
    AllowRewind,
    FormatOption,
    GroupFlags,
    PlanPath,
    PlanScope,
    Rename,
    SideConfigs,
    SourceStore,
    StepFlags,
    TargetStore,
    TopicsOption,
    TranslateOption,
    WaitEmpty,
    file_to_write,
    flag,
    opt,
    seconds_option,
)
from offsetmgr.cli.render import PLANNED_WRITE, OutputFormat, note, rows_of, write_rows
from offsetmgr.core.advice import Advice, Argument, for_command_line
from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import deletion_of

if TYPE_CHECKING:
    from offsetmgr.app.migrate import FinalizeReport, RenewedPlan, RollbackPlan, RollbackReport, WrittenPlan

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Move groups between stores, and back.")

_ONE_BEHIND: Final = (
    "note    every offset is exactly one behind the end of its log. If the consumers have processed everything,"
    " they commit the last processed offset, and would process it again: plan with --shift 1"
)


def command_line(*words: object, options: Sequence[str] = ()) -> str:
    """Returns the command line of ``words`` (text, numbers or paths), followed by ``options``."""
    return shlex.join(("offsetmgr", *map(str, words), *options))


@command(app, "plan", one="a plan has one source and one target")
def plan_command(
    connect: ConnectFlags,
    from_: SourceStore,
    to: TargetStore,
    output: Annotated[
        Path | None, opt("--output -o", "FILE", "Where to write the plan.", callback=file_to_write)
    ] = None,
    *,
    groups: GroupFlags,
    waves: Annotated[
        Path | None,
        opt("--waves", "FILE", "CSV or JSON with group, wave and owner; without --group, it also selects the groups."),
    ] = None,
    topic: TopicsOption = None,
    rename: Rename = None,
    clamp: Annotated[bool, flag("--clamp", "Move offsets outside the log to its nearest end.")] = False,
    if_ahead: IfAhead = None,
    allow_rewind: AllowRewind = False,
    window_s: Annotated[
        float,
        seconds_option("--window", "Maximum time to watch commits, if the target is ahead without other evidence."),
    ] = 0.0,
    shift: Annotated[
        int, opt("--shift", "N", "Add N to each copied offset. 1 is for clients that commit the last processed offset.")
    ] = 0,
    onto_existing: Annotated[
        bool, flag("--onto-existing", "Allow --rename to a group that the target already has.")
    ] = False,
    partition_map: Annotated[
        Path | None, opt("--partition-map", "FILE", "Confirmed replacements for byte positions of Kafka 0.7.")
    ] = None,
    translate: TranslateOption = None,
    draft_partition_map: Annotated[
        Path | None,
        opt("--draft-partition-map", "FILE", "Write a draft of such a map instead of a plan.", callback=file_to_write),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
    configs: SideConfigs,
) -> None:
    """Decide which offsets a migration writes, and save them as a plan; nothing else is changed.

    The plan does not change later: apply writes exactly the plan's offsets, and writes an offset only if the target's
    offset has not changed since the plan was made.
    """
    from offsetmgr.app import migrate

    if (output is None) is (draft_partition_map is None):
        raise UsageError("migrate plan", "needs either --output FILE or --draft-partition-map FILE")
    selects_waves = waves is not None and not (groups.group or groups.all_groups)
    selection = GroupFlags(all_groups=True, exclude_group=groups.exclude_group) if selects_waves else groups
    if allow_rewind and if_ahead is not None:
        raise UsageError("--allow-rewind", "means the same as --if-ahead rewind", "give one of them")
    rewind = AheadPolicy.REWIND if allow_rewind else if_ahead
    options = migrate.PlanOptions(
        rewind, clamp, tuple(topic or ()), selection.selection(), parse_renames(rename), onto_existing, shift
    )
    sides = connect.sides(configs)
    inputs = migrate.PlanInputs(partition_map, waves, selects_waves, translate, window_s)
    if draft_partition_map is not None:
        draft = draft_partition_map
        failed = migrate.draft_partition_map(connect, from_, to, draft, options, sides=sides, inputs=inputs)
        note(f"draft written to {draft_partition_map}; nothing was changed")
        note(
            'next: correct it, set "confirmed_by" to your name, then: '
            "offsetmgr migrate plan ... --partition-map FILE -o PLAN"
        )
        exit_with(report_and_exit_code(failed))
        return
    assert output is not None  # either the draft map or the plan file is given
    written = migrate.plan(connect, from_, to, output, options, sides=sides, inputs=inputs)
    summary = written.file.summary
    _describe(written, whole=format is OutputFormat.TABLE)
    if format is not OutputFormat.TABLE or sum(summary.actions.values()) <= SHOWN:
        write_rows(migrate_output.STEP_COLUMNS, migrate_output.step_rows(written.file.groups()), format)
    if written.one_behind and not shift:
        note(_ONE_BEHIND)
    note(f"plan written to {output} (sha256 {written.file.sha256[:16]}...); nothing was changed")
    if rejected := summary.actions["refuse-byte-position"]:
        note(
            f"next: run the same command with --draft-partition-map FILE instead of --output, confirm that file, then "
            f"add --partition-map FILE: {count_of(rejected, 'byte position')} of Kafka 0.7 cannot be planned without it"
        )
    end_of_planning(summary, f"next: {command_line('migrate', 'apply', output, options=sides.options)}")


def _describe(written: WrittenPlan | RenewedPlan, *, whole: bool = True) -> None:
    """Prints what a new plan does; see `plan_lines`."""
    from offsetmgr.app.plan_text import plan_lines

    for line in plan_lines(written.file, whole=whole):
        note(line)


@command(app, "apply")
def apply_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    flags: StepFlags,
    wait_empty_s: WaitEmpty = 0.0,
    refresh: Annotated[
        bool,
        flag(
            "--refresh",
            "Write nothing new: commit the Kafka offsets of the plan's groups again, so that they do not expire.",
        ),
    ] = False,
    accept_stale: Annotated[
        bool, flag("--accept-stale", "Write the offsets of a plan older than a day, although the source has moved on.")
    ] = False,
    *,
    configs: SideConfigs,
) -> None:
    """Write the offsets of a plan. After an interruption, run the same command again to continue.

    With --group or --wave, the command writes only these groups of the plan, and leaves the others as they are. If the
    plan is older than a day, the command first compares the source: it writes nothing if the offsets of a group have
    moved on, and `migrate renew` plans such groups again.
    """
    from offsetmgr.app import migrate

    sides, selection = connect.sides(configs), scope.selection()
    if refresh and selection != migrate.ALL:
        raise UsageError("--refresh", "renews all groups of the plan", "leave out --group, --wave and --exclude-group")
    if refresh:
        refreshed, expires = migrate.refresh(connect, plan_path, sides=sides, reason=flags.reason or "")
        migrate_output.show_refresh(refreshed, expires)
        if refreshed.interrupted:
            left = "the journal records the renewed groups; run the same command again to renew all"
            raise migrate.Interrupted(left)
        fail_if(not refreshed.ok)
        return
    report = migrate.apply(
        connect,
        plan_path,
        selection,
        sides=sides,
        reason=flags.reason or "",
        wait_empty_s=wait_empty_s,
        accept_stale=accept_stale,
    )
    followups, planned = (*selection.options, *sides.options), report.planned
    migrate_output.show_report(report, "written")
    print_next_step(report, f"next: {command_line('migrate', 'verify', plan_path, options=followups)}")
    if planned.refused or planned.failed_groups:
        partitions = count_of(planned.refused, "partition")
        note(f"the plan itself refused {partitions} and {count_of(planned.failed_groups, 'group')}")
    if report.written:
        note(f"undo: {command_line('migrate', 'rollback', plan_path, options=followups)}")
        if report.resumed:
            own = command_line("migrate", "rollback", plan_path, "--run", report.operation, options=sides.options)
            note(f"undo of this run alone: {own}")
    elif report.skipped and report.ok:
        note("nothing was left to write; to copy offsets that were deleted or have expired since, create a new plan")
    exit_if_interrupted(report)
    fail_if(not report.ok or planned.failed_groups or planned.refused)


@command(app, "renew", one="the plan names the servers of one migration")
def renew_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    output: Annotated[Path, opt("--output -o", "FILE", "Where to write the new plan.", callback=file_to_write)],
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
    from offsetmgr.app import migrate

    sides, selection = connect.sides(configs), scope.selection()
    following = f"next: {command_line('migrate', 'apply', output, options=(*selection.options, *sides.options))}"
    done = migrate.renew(connect, plan_path, output, selection, sides=sides, if_ahead=if_ahead)
    if done is None:
        note(f"an earlier run had written {output} and was killed; it is complete now, and {plan_path} is replaced")
        note(following)
        return
    _describe(done)
    again, kept = count_of(done.renewed, "group"), count_of(done.kept, "group")
    note(f"planned {again} again; {kept} kept; {plan_path} is replaced")
    end_of_planning(done.file.summary, following)


app.registered_commands += migrate_status.app.registered_commands


@command(app, "verify", one="the plan names the servers of one migration")
def verify_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    all_rows: Annotated[bool, flag("--all", "List equal partitions too.")] = False,
    format: FormatOption = OutputFormat.TABLE,
    *,
    configs: SideConfigs,
) -> None:
    """Read both sides again and compare them with the plan; exit 1 on any difference.

    Groups of the source that are not in the plan are listed, unless an option limits the groups.
    """
    from offsetmgr.app import migrate

    sides, selection = connect.sides(configs), scope.selection()
    checked = migrate.verify(connect, plan_path, selection, sides=sides)
    everything = all_rows or format is not OutputFormat.TABLE
    # After a rollback, nearly all planned offsets are missing in the target, as intended. The command counts these
    # offsets, and lists them only with --all.
    unlisted = {"equal", "missing"} if checked.is_rolled_back else {"equal"}
    listed = (one for one in checked if everything or one.status not in unlisted)
    first = next(listed, None)
    if first is not None or everything:
        found = () if first is None else chain((first,), listed)
        write_rows(migrate_output.VERIFY_COLUMNS, rows_of(migrate_output.VERIFY_COLUMNS, found), format)
    summary = checked.summary
    migrate_output.show_verify_summary(summary)
    if checked.is_rolled_back:
        note("this plan was rolled back: the target holds its old offsets again, so it differs from the plan")
    elif "source-ahead" in summary.counts:
        status = command_line("migrate", "status", plan_path, options=(*selection.options, *sides.options))
        note(
            "hint: consumers still commit to the source. Bounce them to dual and verify again, or stop them and make a "
            f"new plan. {status} prints the next command of each group"
        )
    fail_if(not summary.ok)


@command(app, "rollback")
def rollback_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    flags: StepFlags,
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
        bool, flag("--allow-rewind", "With --reverse-plan: also rewind offsets that were rewound in the target since.")
    ] = False,
    if_ahead: IfAhead = None,
    run: Annotated[
        str | None, opt("--run", "ID", "Undo only this run of migrate apply, by its id in offsetmgr edits list.")
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
    from offsetmgr.app import migrate

    sides, selection = connect.sides(configs), scope.selection()
    if reverse_plan is None and (allow_rewind or if_ahead is not None):
        option = "--allow-rewind" if allow_rewind else "--if-ahead"
        raise UsageError(option, "works only with --reverse-plan: a rollback restores the before-image")
    if reverse_plan is not None:
        _reject_options(force=force, wait_empty=wait_empty_s > 0, run=run, dry_run=dry_run)
        back = migrate.plan_reverse(
            connect, plan_path, reverse_plan, selection, sides=sides, allow_rewind=allow_rewind, if_ahead=if_ahead
        )
        _describe(back)
        note(f"reverse plan written to {reverse_plan}; nothing was changed")
        options = connect.repeated_options(*reversed(configs))  # the sides are exchanged
        following = f"next: {command_line('migrate', 'apply', reverse_plan, options=options)}"
        end_of_planning(back.file.summary, following, failed=back.file.summary.actions["refuse-lost"])
        return
    if dry_run:
        _show_preview(migrate.preview_rollback(connect, plan_path, selection, sides=sides, run=run, allow_rewind=force))
        return
    report = migrate.rollback(
        connect,
        plan_path,
        selection,
        sides=sides,
        run=run,
        allow_rewind=force,
        reason=flags.reason or "",
        wait_empty_s=wait_empty_s,
    )
    empty_options = connect.undo_options(report.target, configs.to_command_config)
    whole = selection == migrate.ALL and not run
    _show_rollback(report, sides.options, empty_options, all_groups=whole, one_run=bool(run))


def _reject_options(**given: object) -> None:
    """Raises `UsageError` if an option is given that has no effect with --reverse-plan."""
    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name.replace('_', '-')}", "has no effect with --reverse-plan, which writes only a plan"
            )


def _show_rollback(
    report: RollbackReport,
    options: Sequence[str],
    empty_options: Mapping[str, Argument],
    *,
    all_groups: bool,
    one_run: bool,
) -> None:
    """Prints the result. ``options`` are those of the next commands of the plan, ``empty_options`` those of edits of
    the target. Raises `Exit` with code 1 if an offset differs from its before-image."""
    migrate_output.show_report(report, "restored")
    if report.failed:
        back = command_line("migrate", "rollback", report.plan, "--reverse-plan", "FILE", options=options)
        note(f"if a group already consumes from the target: {back}")
    if report.nothing_to_do:
        groups = "every group in the journal" if all_groups else "these groups"
        note(f"an earlier run rolled back {groups}; nothing was done")
    for line in report.comparison():
        note(line)
    if report.groups and not report.differing and not report.closed:
        print_next_step(report, f"rolled back: every offset is as it was before{' this run' if one_run else ''}")
        if empty := report.empty_groups:
            are = "is" if len(empty) == 1 else "are"
            note(f"{count_of(len(empty), 'group')} that had no offset before {are} empty now")
            note(Advice("to remove: {}", deletion_of(report.target, empty, empty_options)))
        if report.late and report.created:
            created = count_of(report.created, "offset")
            note(f"warning: apply created {created} there, and rollback deleted them. {report.late}")
    exit_if_interrupted(report)
    fail_if(not report.ok)


def _show_preview(found: RollbackPlan) -> None:
    """Prints what a rollback would restore. Raises `Exit` with code 1 if an offset would not be restored."""
    rows = found.partitions
    write_rows(
        PLANNED_WRITE,
        [
            (one.group, *one.tp, one.now, one.before, for_command_line(one.problem) or found.log_note(one) or None)
            for one in rows
        ],
        OutputFormat.TABLE,
    )
    bad = sum(bool(one.problem) for one in rows)
    restored = sum(not one.problem and one.now == one.before for one in rows)
    others = f"; {restored:,} {'is' if restored == 1 else 'are'} restored already" if restored else ""
    refused = f", and refuse {bad:,}" if bad else ""
    for text in found.warnings:
        note(f"warning: {text}")
    changes = count_of(len(rows) - bad - restored, "offset")
    note(f"dry run: would restore {changes}{refused}{others}; nothing was changed")
    fail_if(bad)


@command(app, "finalize")
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
    *,
    flags: StepFlags,
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
    from offsetmgr.app import migrate

    rules = migrate.FinalizeRules(window_s, accept_idle, accept_refused, accept_unseen, delete_source)
    sides = connect.sides(configs)
    reason = flags.reason or ""
    report = migrate.finalize(connect, plan_path, scope.selection(), sides=sides, rules=rules, reason=reason)
    if report.finalized_at is not None:
        note(f"finalized already, on {time_text(report.finalized_at)}")
    else:
        _show_finalized(report)
    if (deleted := report.deleted) is not None:
        migrate_output.show_report(deleted, "removed from the source")
        if report.late:
            note(f"warning: {report.late}")
        for line in report.kept:
            note(f"  ! kept in the source: {for_command_line(line)}")
        exit_if_interrupted(deleted)
    fail_if(report.blocked or report.kept or not (deleted is None or deleted.ok))


def _show_finalized(report: FinalizeReport) -> None:
    """Prints the groups that were finalized, and those that were not."""
    for name in report.earlier[:SHOWN]:
        note(f"  {name}: finalized already")
    migrate_output.show_gates(report.gates)
    for group, error in list(report.blocked.items())[:SHOWN]:
        hint = for_command_line(error.hint)
        note(f"  ! {group}: {for_command_line(error.why)}" + (f" ({hint})" if hint else ""))
    left = f", {report.left_out} left out because the plan refused them" if report.left_out else ""
    groups = f"{count_of(len(report.gates), 'group')}, " if report.by_group else ""
    members = f"; {migrate_output.gates_text(report.gates)}" if report.gates or not report.by_group else ""
    note(f"finalized: {groups}{count_of(report.verified, 'partition')} verified{left}{members}")
    if report.blocked:
        note(f"NOT finalized: {count_of(len(report.blocked), 'group')}; the journal has the reasons (migrate status)")


app.registered_commands += migrate_mirror.app.registered_commands
