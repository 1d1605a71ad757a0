"""``offsetmgr migrate``: moves groups from one store to another, and back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.migration import WrittenPlan, applicable_options, write_plan_file, write_reverse_plan_file
from offsetmgr.app.ui import Interrupted
from offsetmgr.cli import migrate_mirror, migrate_output, migrate_status
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, fail_if, report_and_exit_code
from offsetmgr.cli.followup_commands import command_line, delete_groups_command
from offsetmgr.cli.many_clusters import one_cluster
from offsetmgr.cli.migrate_mirror import IfAhead, parse_renames
from offsetmgr.cli.migrate_output import (
    end_of_planning,
    exit_if_interrupted,
    note_expiry,
    option_text,
    plan_writer,
    print_next_step,
)
from offsetmgr.cli.options import (
    AcceptUnseen,
    AllowRewind,
    FormatOption,
    GroupFlags,
    PlanPath,
    PlanScope,
    Reason,
    Rename,
    SideConfigs,
    SourceStore,
    TargetStore,
    TopicsOption,
    TranslateOption,
    WaitEmpty,
    Yes,
    file_to_write,
    flag,
    opt,
    seconds_option,
)
from offsetmgr.cli.render import PLANNED_WRITE, OutputFormat, note, progress, write_rows
from offsetmgr.cli.terminal import confirm
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, JournalError, OffsetMgrError, UsageError
from offsetmgr.core.model import DELETES_OFFSETS, KEEPS_ACTIVE_OFFSETS
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.partition_map import read_map
from offsetmgr.migration.plan import Action, AheadPolicy, GroupScope, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, summary_of
from offsetmgr.migration.plan_run import PlanRun, open_plan, open_renewed, undo_command
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.renewal import finish_renewal, renew
from offsetmgr.migration.waves import read_waves

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.model import LogRange, TopicPartition
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.log_checks import OutsideLogChecks
    from offsetmgr.migration.finalize import GroupGate
    from offsetmgr.migration.finalize_groups import GroupFinalizeReport
    from offsetmgr.migration.journaled_writer import Report
    from offsetmgr.migration.plan import GroupScope
    from offsetmgr.migration.plan_file import PlanFile
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.rollback import RollbackPreview
    from offsetmgr.migration.verify import MigrationVerifier


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Move groups between stores, and back.")


_ONE_BEHIND: Final = (
    "note    every offset is exactly one behind the end of its log. If the consumers have processed everything,"
    " they commit the last processed offset, and would process it again: plan with --shift 1"
)


@app.command("plan")
@connected
@one_cluster("a plan has one source and one target")
def plan_command(
    connect: ConnectFlags,
    from_: SourceStore,
    to: TargetStore,
    output: Annotated[
        Path | None,
        opt("--output -o", "FILE", "Where to write the plan.", callback=file_to_write),
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
        int,
        opt(
            "--shift",
            "N",
            "Add N to each copied offset. 1 is for clients that commit the last processed offset.",
        ),
    ] = 0,
    onto_existing: Annotated[
        bool, flag("--onto-existing", "Allow --rename to a group that the target already has.")
    ] = False,
    partition_map: Annotated[
        Path | None,
        opt("--partition-map", "FILE", "Confirmed replacements for byte positions of Kafka 0.7."),
    ] = None,
    translate: TranslateOption = None,
    draft_partition_map: Annotated[
        Path | None,
        opt(
            "--draft-partition-map",
            "FILE",
            "Write a draft of such a map instead of a plan.",
            callback=file_to_write,
        ),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
    configs: SideConfigs,
) -> None:
    """Decide which offsets a migration writes, and save them as a plan; nothing else is changed.

    The plan does not change later: apply writes exactly the plan's offsets, and writes an offset only if the target's
    offset has not changed since the plan was made.
    """
    if (output is None) is (draft_partition_map is None):
        raise UsageError("migrate plan", "needs either --output FILE or --draft-partition-map FILE")
    table = None if waves is None else read_waves(waves)
    if table and not (groups.group or groups.all_groups):
        groups = groups._replace(group=list(table.patterns()))
    rewind = AheadPolicy.REWIND if allow_rewind else if_ahead
    if allow_rewind and if_ahead is not None:
        raise UsageError("--allow-rewind", "means the same as --if-ahead rewind", "give one of them")
    options = PlanOptions(
        rewind, clamp, tuple(topic or ()), groups.selection(), parse_renames(rename), onto_existing, shift
    ).for_source(from_)
    sides = SourceAndTarget(connect, from_, to, *connect.of_sides(*configs))
    options = applicable_options(sides, options)
    if draft_partition_map is not None:
        _draft_map(sides, options, draft_partition_map)
        return
    assert output is not None  # either the draft map or the plan file is given
    confirmed = None if partition_map is None else read_map(partition_map)
    written = write_plan_file(
        sides,
        options,
        output,
        partition_map=confirmed,
        translate=translate,
        waves=table,
        shown=lambda plans, count: progress(plans, "groups planned", count),
        window=ObservationWindow(window_s, waiting=connect.waits.for_commits),
    )
    header, summary, digest = written.header, written.summary, written.sha256
    if written.is_empty:
        output.unlink()
        where = f"groups {', '.join(groups.group)}" if groups.group else count_of(written.groups, "group")
        raise _nothing_to_plan(sides.source.uri, where, topic or [])
    plan = PlanFile(output)
    migrate_output.show_plan_header(header)
    migrate_output.show_expiry(header, summary, header.created_at, header.clock)
    migrate_output.show_plan_summary(summary)
    if format is OutputFormat.TABLE:
        migrate_output.show_waves(plan)
        migrate_output.show_attention(plan)
    if format is not OutputFormat.TABLE or sum(summary.actions.values()) <= migrate_output.SHOWN:
        write_rows(migrate_output.STEP_COLUMNS, migrate_output.step_rows(plan.groups()), format)
    if written.one_behind and not shift:
        note(_ONE_BEHIND)
    note(f"plan written to {output} (sha256 {digest[:16]}...); nothing was changed")
    if rejected := summary.actions[Action.REFUSE_BYTE_POSITION]:
        note(
            f"next: run the same command with --draft-partition-map FILE instead of --output, confirm that file, then "
            f"add --partition-map FILE: {count_of(rejected, 'byte position')} of Kafka 0.7 cannot be planned without it"
        )
    options_again = connect.repeated_options(*configs)
    end_of_planning(summary, f"next: {command_line('migrate', 'apply', output, options=options_again)}")


def _nothing_to_plan(source: str, where: str, topics: list[str]) -> GroupNotFound:
    return GroupNotFound(
        f"nothing to plan in {source}",
        f"no offset is committed in the {where} there" + (f" for topic {', '.join(topics)}" if topics else ""),
        "check the names, and the chroot of a zookeeper:// URI",
    )


def _draft_map(sides: SourceAndTarget, options: PlanOptions, path: Path) -> None:
    from offsetmgr.migration.partition_map_draft import MapDraft, write_draft

    cluster = sides.cluster()
    names = Planner(sides.source, sides.target, options, SystemClock(), cluster).selected_groups()
    draft, failed = MapDraft(), list[OffsetMgrError]()
    for found in progress(sides.source.scan(names), "reading", len(names)):
        failed += [one for one in (found.error, *found.errors.values()) if one is not None]
        draft.add(found, [tp for tp in found.offsets if options.selects(tp)])
    counts = None if cluster is None else cluster.topics(draft.topics())
    write_draft(path, draft.encode(sides.source.uri, counts))
    note(f"draft written to {path}; nothing was changed")
    note(
        'next: correct it, set "confirmed_by" to your name, then: '
        "offsetmgr migrate plan ... --partition-map FILE -o PLAN"
    )
    exit_with(report_and_exit_code(failed))


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


app.registered_commands += migrate_status.app.registered_commands


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
    """Read both sides again and compare them with the plan; exit 1 on any difference.

    Groups of the source that are not in the plan are listed, unless an option limits the groups.
    """
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
    watched = ObservationWindow(window_s, waiting=connect.waits.for_commits)
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
        note(
            f"  ! {error.what.removeprefix('finalize ')}: {error.why}"
            + (f" ({for_command_line(error.hint)})" if error.hint else "")
        )
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


app.registered_commands += migrate_mirror.app.registered_commands
