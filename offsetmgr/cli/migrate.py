"""``offsetmgr migrate``: moves groups from one store to another, and back."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from offsetmgr.app.ui import Interrupted
from offsetmgr.cli import readiness
from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.options import (
    AcceptUnseen,
    AllowRewind,
    BeforeImage,
    Execute,
    FormatOption,
    GroupFlags,
    PlanPath,
    PlanScope,
    Rename,
    SideConfigs,
    SourceStore,
    StepFlags,
    TargetStore,
    TopicFlags,
    TranslateAuto,
    TranslationFlags,
    WaitEmpty,
    WatchedWindow,
    arg,
    command_group,
    file_to_write,
    flag,
    opt,
    parse_renames,
    seconds_option,
)
from offsetmgr.cli.render import (
    PARTITION,
    PLANNED_WRITE,
    WHOLE_RANK,
    Column,
    Meter,
    OutputFormat,
    exit_with,
    fail_if,
    note,
    report_and_exit_code,
    rows_of,
    separate_tables,
    table_width,
    write_rows,
    write_text,
)
from offsetmgr.core.advice import Advice, Argument, Invocation, for_command_line
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.cutover_options import CutoverOptions, ReverseReplicator
from offsetmgr.core.document import to_html, to_markdown, to_text
from offsetmgr.core.errors import Conflict, OffsetOutOfRange, RecreatedTopic, UnknownTopicOrPartition, UsageError
from offsetmgr.core.offset_store import AheadPolicy
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import deletion_of

if TYPE_CHECKING:
    from offsetmgr.app.migrate import (
        FleetStatus,
        GroupStatus,
        MirrorState,
        MirrorStatus,
        PlanFile,
        PlanStep,
        PlanSummary,
        Report,
        RollbackPlan,
        RollbackReport,
    )


app = command_group("Move groups between stores, and back.")

IfAhead = Annotated[
    AheadPolicy | None,
    opt(
        "--if-ahead",
        None,
        "For targets that are ahead. Default: keep those that were written last, and refuse the others.",
    ),
]


_ONE_BEHIND: Final = (
    "note    every offset is exactly one behind the end of its log. If the consumers have processed everything,"
    " they commit the last processed offset, and would process it again: plan with --shift 1"
)


def _notes(lines: Iterable[str]) -> None:
    """Prints each text in one line, even if it has the lines of a server's message."""
    for line in lines:
        note(" ".join(for_command_line(line).splitlines()))


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
    topics: TopicFlags,
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
    translate: TranslateAuto = None,
    translation: TranslationFlags,
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
        rewind, clamp, topics.selection(), selection.selection(), parse_renames(rename), onto_existing, shift
    )
    sides = connect.sides(configs)
    inputs = migrate.PlanInputs(partition_map, waves, selects_waves, translation.chosen(translate), window_s)
    if (draft := draft_partition_map) is not None:
        failed = migrate.draft_partition_map(connect, from_, to, draft, options, sides=sides, inputs=inputs)
        note(f"draft written to {draft}; nothing was changed")
        then = "offsetmgr migrate plan ... --partition-map FILE -o PLAN"
        note(f'next: correct it, set "confirmed_by" to your name, then: {then}')
        exit_with(report_and_exit_code(failed))
        return
    assert output is not None  # either the draft map or the plan file is given
    written = migrate.plan(connect, from_, to, output, options, sides=sides, inputs=inputs)
    summary = written.file.summary
    _notes(written.lines(whole=format.for_people))
    if not format.for_people or sum(summary.actions.values()) <= SHOWN:
        columns = STEP_COLUMNS if written.file.header.rules is None else TRANSLATED_COLUMNS
        write_rows(columns, step_rows(written.file), format)
    if written.one_behind and not shift:
        note(_ONE_BEHIND)
    note(f"plan written to {output} (sha256 {written.file.sha256[:16]}...); nothing was changed")
    if rejected := summary.actions["refuse-byte-position"]:
        note(
            f"next: run the same command with --draft-partition-map FILE instead of --output, confirm that file, then "
            f"add --partition-map FILE: {count_of(rejected, 'byte position')} of Kafka 0.7 cannot be planned without it"
        )
    end_of_planning(summary, Invocation("migrate apply", (str(output),), sides.arguments))


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
    if_unchanged: Annotated[
        bool, flag("--if-unchanged", "Compare the source of a newer plan, too, and write nothing if it has moved on.")
    ] = False,
    *,
    configs: SideConfigs,
) -> None:
    """Write the offsets of a plan. After an interruption, run the same command again to continue.

    With --group or --wave, the command writes only these groups of the plan, and leaves the others as they are. If the
    plan is older than a day, or between clusters, the command first compares the source: it writes nothing if the
    offsets of a group have moved on, and `migrate renew` plans such groups again.
    """
    from offsetmgr.app import migrate

    sides, selection = connect.sides(configs), scope.selection()
    step = migrate.StepScope(plan_path, selection, sides, flags.reason or "")
    if refresh and selection != migrate.ALL:
        raise UsageError("--refresh", "renews all groups of the plan", "leave out --group, --wave and --exclude-group")
    if refresh:
        refreshed = migrate.refresh(connect, step)
        _notes(refreshed.lines())
        if refreshed.interrupted:
            left = "the journal records the renewed groups; run the same command again to renew all"
            raise migrate.Interrupted(left)
        fail_if(not refreshed.ok)
        return
    report = migrate.apply(
        connect, step, wait_empty_s=wait_empty_s, accept_stale=accept_stale, if_unchanged=if_unchanged
    )
    plan, planned, followups = (str(plan_path),), report.planned, {**selection.arguments, **sides.arguments}
    _notes(report.lines("written"))
    print_next_step(report, Advice("next: {}", Invocation("migrate verify", plan, followups)))
    if planned.refused or planned.failed_groups:
        partitions = count_of(planned.refused, "partition")
        note(f"the plan itself refused {partitions} and {count_of(planned.failed_groups, 'group')}")
    if report.written:
        note(Advice("undo: {}", Invocation("migrate rollback", plan, followups)))
        if report.resumed:
            own = Invocation("migrate rollback", plan, {"run": report.operation, **sides.arguments})
            note(Advice("undo of this run alone: {}", own))
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
    following = Invocation("migrate apply", (str(output),), {**selection.arguments, **sides.arguments})
    done = migrate.renew(connect, migrate.StepScope(plan_path, selection, sides), output, if_ahead=if_ahead)
    if done is None:
        note(f"an earlier run had written {output} and was killed; it is complete now, and {plan_path} is replaced")
        note(Advice("next: {}", following))
        return
    _notes(done.lines())
    again, kept = count_of(done.renewed, "group"), count_of(done.kept, "group")
    note(f"planned {again} again; {kept} kept; {plan_path} is replaced")
    if done.tried:
        then = "Apply tries it again; if it still fails, make a new plan of this group"
        note(f"kept, although apply wrote nothing of it: {list_of(done.tried, SHOWN)}. {then}")
    end_of_planning(done.file.summary, following)


app.registered_commands += readiness.app.registered_commands

PAGES: Final = {"text": to_text, "markdown": to_markdown, "html": to_html}
PageFormat: Any = StrEnum("PageFormat", [*PAGES])  # type: ignore[misc] # not literals
StatusFormat: Any = StrEnum("StatusFormat", [*OutputFormat, *PAGES])  # type: ignore[misc] # not literals
"""The values of ``--format``: those of `OutputFormat`, and those of pages."""
PageFile = Annotated[
    Path | None, opt("--output -o", "FILE", "Write the page to FILE, and replace it.", callback=file_to_write)
]

COLUMNS: Final = (
    Column("group", get="name"),
    Column("target_group", detail=True),
    Column("wave", right=True, optional=True),
    Column("owner", optional=True, rank=2),
    Column("state"),
    Column("since", time=True, rank=12, get="since_ms"),
    Column("known", optional=True, rank=11),
    Column("evidence", detail=True),
    Column("expires", time=True, optional=True, rank=13, get="expires_ms"),
    Column("blocked_by", optional=True),
    Column("next", optional=True, command=True),
)


@command(app, "status", one="the plan names the servers of one migration", watch=True)
def status_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    scope: PlanScope,
    window_s: Annotated[
        float | None,
        seconds_option("--window", "Ask the servers too, and watch the members' commits for up to this time."),
    ] = None,
    format: Annotated[
        StatusFormat, opt("--format", None, "Output format; text, markdown and html write one page, not rows.")
    ] = StatusFormat(OutputFormat.TABLE),
    output: PageFile = None,
    *,
    configs: SideConfigs,
) -> None:
    """Show the state of every group in words, with its obstacle and the next command.

    The state comes from the plan, the journal, and the state files of bounces that are not finished. With --window, it
    also comes from the servers, for finalized groups too: the phase of live members, and the partitions that do not
    verify.
    """
    from offsetmgr.app import migrate

    page = PAGES.get(format)
    if output is not None and page is None:
        raise UsageError("--output", "is for a page", "add --format html, --format markdown or --format text")
    of_plan, of_members = (Invocation("", (), connect.repeated(*one)).options() for one in (configs, ()))

    def next_command(one: GroupStatus) -> str | None:
        bounces = one.next.call is not None and one.next.call.verb == "runbook bounce"
        return one.next.command_line(of_members if bounces else of_plan) or None

    sides = None if window_s is None else connect.sides(configs)  # only the servers need the settings
    found = migrate.status(connect, migrate.StepScope(plan_path, scope.selection(), sides), window_s=window_s)
    if page is not None:
        _write_page(page(*found.page(SystemClock().now_ms())), output)
        return
    _write_rows(found, next_command, OutputFormat(format))
    for text in found.expiry_texts(SystemClock().now_ms(), connect.repeated(*configs)):
        connect.ui.note(text, warning=True)


def _write_rows(found: FleetStatus, next_command: Callable[[GroupStatus], str | None], output: OutputFormat) -> None:
    known, last = COLUMNS[:-1], COLUMNS[-1]
    of_groups = zip(rows_of(known, found.groups), found.groups, strict=True)
    # The id of a group may be empty.
    rows = [
        (*row[:2], *(None if value == "" else value for value in row[2:]), next_command(one)) for row, one in of_groups
    ]
    if output.for_people:
        note(found.scope)
    if not output.for_people or table_width() is None:
        write_rows(COLUMNS, rows, output)
    else:  # a terminal is too narrow for both long columns
        write_rows(known, [row[:-1] for row in rows], output)
        if steps := [(row[0], row[-1]) for row in rows if row[-1]]:
            separate_tables()
            write_rows((COLUMNS[0], last), steps, output)
    if output.for_people:
        _notes(found.lines())


def _write_page(page: str, output: Path | None) -> None:
    if output is None:
        write_text(page.rstrip("\n"))
        return
    replace_file(output, lambda out: out.write(page.encode()), overwrite=True)
    note(f"wrote {output}")


@command(app, "report", one="a report is about one cluster")
def report_command(
    connect: ConnectFlags,
    plans: Annotated[
        list[Path] | None, arg("[PLAN]...", "The plans of the groups; without one, all groups of the stores.")
    ] = None,
    scope: PlanScope = PlanScope(),
    window_s: WatchedWindow = None,
    format: Annotated[PageFormat, opt("--format", None, "Format of the page.")] = PageFormat("text"),
    output: PageFile = None,
) -> None:
    """Write one page for the morning after a migration: the locations, the risks and the next commands of groups.

    The report locates the groups as groups where does, and adds what the plans and their journals record. It changes
    nothing. The exit code is 0 only if everything was read and no group is at risk, otherwise 1.
    """
    from offsetmgr.app import migrate

    found = migrate.report(connect, plans or (), scope.selection(), window_s=window_s)
    options = Invocation("", (), {**connect.given, **found.servers}).options()
    _write_page(PAGES[format](*found.page(options)), output)
    note(", ".join(f"{name}: {count:,}" for name, count in found.counts.items()))
    fail_if(not found.ok)


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
    checked = migrate.verify(connect, migrate.StepScope(plan_path, selection, sides))
    everything = all_rows or not format.for_people
    # After a rollback, nearly all planned offsets are missing in the target, as intended. The command counts these
    # offsets, and lists them only with --all.
    unlisted = {"equal", "missing"} if checked.is_rolled_back else {"equal"}
    listed = (one for one in checked if everything or one.status not in unlisted)
    first = next(listed, None)
    if first is not None or everything:
        found = () if first is None else chain((first,), listed)
        columns = TRANSLATED_VERIFY_COLUMNS if checked.is_translated else VERIFY_COLUMNS
        write_rows(columns, _worded_last(rows_of(columns, found)), format)
    summary = checked.summary
    _notes(summary.lines())
    if checked.is_rolled_back:
        note("this plan was rolled back: the target holds its old offsets again, so it differs from the plan")
    elif checked.is_translated and "source-ahead" in summary.counts:
        again = Invocation("migrate renew", (str(plan_path),), {"output": "FILE", **sides.arguments})
        note(Advice("hint: the groups went on in the source. Plan those again that were not applied: {}", again))
    elif "source-ahead" in summary.counts:
        text = (
            "hint: consumers still commit to the source. Bounce them to dual and verify again, or stop them and make a "
            "new plan. {} prints the next command of each group"
        )
        arguments = {**selection.arguments, **sides.arguments}
        note(Advice(text, Invocation("migrate status", (str(plan_path),), arguments)))
    fail_if(not summary.ok)


def _worded_last(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yields rows whose last cell may be an `Advice`."""
    return ((*row[:-1], for_command_line(row[-1])) for row in rows)


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

    sides = connect.sides(configs)
    step = migrate.StepScope(plan_path, scope.selection(), sides, flags.reason or "")
    if reverse_plan is None and (allow_rewind or if_ahead is not None):
        option = "--allow-rewind" if allow_rewind else "--if-ahead"
        raise UsageError(option, "works only with --reverse-plan: a rollback restores the before-image")
    if reverse_plan is not None:
        given = {"--force": force, "--wait-empty": wait_empty_s > 0, "--run": run, "--dry-run": dry_run}
        for name in filter(given.get, given):
            raise UsageError(name, "has no effect with --reverse-plan, which writes only a plan")
        back = migrate.plan_reverse(connect, step, reverse_plan, allow_rewind=allow_rewind, if_ahead=if_ahead)
        _notes(back.lines())
        note(f"reverse plan written to {reverse_plan}; nothing was changed")
        arguments = connect.repeated(*reversed(configs))  # the sides are exchanged
        following = Invocation("migrate apply", (str(reverse_plan),), arguments)
        end_of_planning(back.file.summary, following, failed=back.file.summary.actions["refuse-lost"])
        return
    if dry_run:
        _show_preview(migrate.preview_rollback(connect, step, run=run, allow_rewind=force))
        return
    report = migrate.rollback(connect, step, run=run, allow_rewind=force, wait_empty_s=wait_empty_s)
    _show_rollback(
        report, sides.arguments, connect.undo_options(report.target, configs.to_command_config), one_run=bool(run)
    )


def _show_rollback(
    report: RollbackReport, arguments: Mapping[str, Argument], of_edit: Mapping[str, Argument], *, one_run: bool
) -> None:
    """Prints the result. ``arguments`` are those of the next commands of the plan, ``of_edit`` those of edits of the
    target. Raises `Exit` with code 1 if an offset differs from its before-image."""
    _notes(report.lines("restored"))
    if report.failed:
        back = Invocation("migrate rollback", (str(report.plan),), {"reverse_plan": "FILE", **arguments})
        note(Advice("if a group already consumes from the target: {}", back))
    if report.nothing_to_do:
        groups = "every group in the journal" if report.whole else "these groups"
        note(f"an earlier run rolled back {groups}; nothing was done")
    _notes(report.comparison())
    if report.groups and not report.differing and not report.closed:
        print_next_step(report, f"rolled back: every offset is as it was before{' this run' if one_run else ''}")
        if empty := report.empty_groups:
            are = "is" if len(empty) == 1 else "are"
            note(f"{count_of(len(empty), 'group')} that had no offset before {are} empty now")
            note(Advice("to remove: {}", deletion_of(report.target, empty, of_edit)))
        if report.late and report.created:
            created = count_of(report.created, "offset")
            note(f"warning: apply created {created} there, and rollback deleted them. {report.late}")
    exit_if_interrupted(report)
    fail_if(not report.ok)


def _show_preview(found: RollbackPlan) -> None:
    """Prints what a rollback would restore. Raises `Exit` with code 1 if an offset would not be restored."""
    rows = found.partitions
    notes = (for_command_line(one.problem or one.note) or None for one in rows)
    shown = ((one.group, *one.tp, one.now, one.before, text) for one, text in zip(rows, notes, strict=True))
    write_rows(PLANNED_WRITE, shown, OutputFormat.TABLE)
    bad = sum(bool(one.problem) for one in rows)
    restored = sum(not one.problem and one.now == one.before for one in rows)
    others = f"; {restored:,} {'is' if restored == 1 else 'are'} restored already" if restored else ""
    refused = f", and refuse {bad:,}" if bad else ""
    _notes(f"warning: {text}" for text in found.warnings)
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
    step = migrate.StepScope(plan_path, scope.selection(), connect.sides(configs), flags.reason or "")
    report = migrate.finalize(connect, step, rules=rules)
    _notes(report.lines())
    if (deleted := report.deleted) is not None:
        _notes(deleted.lines("removed from the source"))
        if report.late:
            note(f"warning: {report.late}")
        _notes(Advice("  ! kept in the source: {}", line) for line in report.kept)
        exit_if_interrupted(deleted)
    fail_if(not report.ok)


@command(app, "mirror")
def mirror_command(
    connect: ConnectFlags,
    from_: SourceStore,
    to: TargetStore,
    groups: GroupFlags,
    topics: TopicFlags,
    rename: Rename = None,
    translate: TranslateAuto = None,
    translation: TranslationFlags = TranslationFlags(),
    if_ahead: IfAhead = None,
    once: Annotated[bool, flag("--once", "End as soon as nothing is left to copy.")] = False,
    interval_ms: Annotated[
        int | None,
        opt(
            "--interval",
            "MS",
            "Polling interval of a source without watches [default: 1000; 10000 with --translate auto].",
            min=50,
        ),
    ] = None,
    settle_ms: Annotated[
        int,
        opt(
            "--settle",
            "MS",
            "Before the first copy to a Kafka group: how long to watch the group for commits of other clients.",
            min=0,
        ),
    ] = 2000,
    window_s: Annotated[
        float,
        seconds_option(
            "--window", "Maximum time that --once watches live old consumers, or waits for records in the target."
        ),
    ] = 150.0,
    trust_zookeeper_only: Annotated[
        bool,
        flag(
            "--trust-zookeeper-only",
            "Accept groups with live old consumers without watching them. Use this only if these consumers "
            "commit only to ZooKeeper.",
        ),
    ] = False,
    before_image: BeforeImage = None,
    flags: StepFlags = StepFlags(),
    format: FormatOption = OutputFormat.TABLE,
    *,
    configs: SideConfigs,
) -> None:
    """Copy new offsets from a source to a target, forward only, until Ctrl-C (or, with --once, until nothing is left to
    copy).

    This is for consumers that cannot commit to both stores. On Kafka 0.9 and later, the mirror holds a lock on each
    group of the target, so no other client can commit to the group. If a consumer starts with the group, it takes the
    group over, and the mirror of that group ends. Kafka 0.8.2 has no group lock: there the mirror reads and compares
    just before each write, and reads again after it. While the mirror holds a group, a consumer that commits to both
    stores could not commit to Kafka. Therefore the mirror accepts a group with live old consumers only after it has
    seen each consumer that owns partitions commit only to ZooKeeper.

    With --translate auto, the target is another Kafka cluster. Every --interval, the mirror reads both logs from their
    ends back to the positions that moved; --max-read limits the bytes of a partition in each round. It stops a group to
    which another client commits in the target.
    """
    from offsetmgr.app import migrate

    options = migrate.PlanOptions(if_ahead, False, topics.selection(), groups.selection(), parse_renames(rename))
    shown = MirrorLine()
    settings = migrate.MirrorSettings(
        once,
        interval_ms,
        settle_ms,
        window_s,
        trust_zookeeper_only,
        translation.chosen(translate),
        Path(before_image) if before_image else None,
        shown.show,
    )
    sides = connect.sides(configs)._replace(
        arguments=connect.repeated(command_config=configs.to_command_config)  # of the undo, an import
    )
    mirror = migrate.mirror(connect, from_, to, options, sides=sides, settings=settings, reason=flags.reason or "")
    shown.show(mirror.status(), last=True)
    bad = [mirrored for mirrored in mirror.groups.values() if not mirrored.succeeded]
    named = [mirrored for mirrored in mirror.groups.values() if mirrored.ended or not mirrored.succeeded]
    if named or not format.for_people:
        rows = rows_of(MIRROR_COLUMNS, named if bad or format.for_people else mirror.groups.values())
        write_rows(MIRROR_COLUMNS, _worded_last(rows), format)
    if mirror.interrupted:
        raise migrate.Interrupted("some offsets were not copied yet")
    fail_if(bad)


CUTOVER_COLUMNS: Final = (
    Column("kind"),
    Column("name"),
    Column("step"),
    Column("held_up_by", optional=True),
    Column("note", detail=True),
    Column("next", get="gate.next", detail=True),
)
_RUNBOOKS: Final = {".md": to_markdown, ".html": to_html}


class CutoverFlags(NamedTuple):
    """The options of a cutover: the knowledge of the operator, and permissions."""

    remove_static_members: Annotated[
        bool, flag("--remove-static-members", "Remove static members of stopped groups before their sessions end.")
    ] = False
    output_topic: Annotated[
        list[str] | None,
        opt("--output-topic", "GROUP=TOPIC", "A topic to which the group writes exactly once; repeatable."),
    ] = None
    excuse: Annotated[list[str] | None, opt("--excuse", "GROUP", "A group that stays at the source; repeatable.")] = (
        None
    )
    replicator_stopped: Annotated[
        bool, flag("--replicator-stopped", "The replicator to the target is stopped, as step 9 needs.")
    ] = False
    way_back: Annotated[
        ReverseReplicator | None,
        opt("--way-back", None, "Whether a reverse replicator runs, for a way back after step 10 [default: none]."),
    ] = None
    undo: Annotated[bool, flag("--undo", "Take back the groups that have not consumed at the target.")] = False
    back_of: Annotated[
        Path | None, opt("--back-of", "STATE", "Go back: the state file of the cutover from the other side.")
    ] = None

    def outputs(self) -> dict[str, tuple[str, ...]]:
        """Returns the output topics of each group. Raises `UsageError`."""
        found: dict[str, tuple[str, ...]] = {}
        for pair in self.output_topic or ():
            group, _, topic = pair.rpartition("=")
            if not (group and topic):
                raise UsageError(f"--output-topic {pair!r}", "must be GROUP=TOPIC")
            found[group] = (*found.get(group, ()), topic)
        return found


@command(app, "cutover")
def cutover_command(
    connect: ConnectFlags,
    from_: SourceStore,
    to: TargetStore,
    state: Annotated[
        Path,
        opt("--state", "FILE", "Keep the progress in FILE, and the plans next to it.", callback=file_to_write),
    ],
    groups: GroupFlags,
    rename: Rename = None,
    *,
    translation: TranslationFlags,
    flags: CutoverFlags,
    max_behind: Annotated[
        int, opt("--max-behind", "N", "Stop a group only if the replicator is at most N records behind.", min=0)
    ] = 1000,
    wait_s: Annotated[float, seconds_option("--wait", "Wait this long at a closed gate.")] = 0.0,
    interval_s: Annotated[
        float, seconds_option("--interval", "How long commits and logs must stand still.", least=0.1)
    ] = 5.0,
    execute: Execute = False,
    step: StepFlags,
    output: Annotated[
        Path | None, opt("--output -o", "FILE", "Write the runbook to FILE.md, FILE.html or FILE.json.")
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
    configs: SideConfigs,
) -> None:
    """Move groups, and then the producers of their topics, to another Kafka cluster, step by step.

    You stop and start consumers, producers and the replicator. The command checks a gate before each step, names who
    holds it up, and writes the offsets of the same records. Run it again after each step: it goes on from where it
    stands, also after a kill. Without --execute, it changes nothing. The exit code is 0 only if all selected groups and
    their topics are through.
    """
    from offsetmgr.app import migrate

    page = None if output is None else _RUNBOOKS.get(output.suffix)
    if output is not None and page is None and output.suffix != ".json":
        raise UsageError("--output", "must end in .md, .html or .json")
    words = flags.replicator_stopped, flags.way_back, flags.undo, flags.back_of, step.reason or ""
    given = flags.remove_static_members, flags.outputs(), tuple(flags.excuse or ()), *words
    options = CutoverOptions(translation.rules(), parse_renames(rename), wait_s, interval_s, max_behind, *given)
    sides, selection = connect.sides(configs), groups.selection()
    found = migrate.cutover(connect, from_, to, selection, state=state, execute=execute, options=options, sides=sides)
    rows = [tuple(map(_worded, row)) for row in rows_of(CUTOVER_COLUMNS, found.statuses)]
    write_rows(CUTOVER_COLUMNS, rows, format)
    for one in found.statuses:
        if one.note:
            note(Advice("note: {} {}: {}", one.kind, one.name, one.note))
    for line in found.next_lines():
        note(Advice("next: {}", line))
    if output is not None:
        listed = [dict(zip((column.name for column in CUTOVER_COLUMNS), row, strict=True)) for row in rows]
        _write_page(page("Cutover", found.parts()) if page else json.dumps(listed), output)
    fail_if(not found.ok)


def _worded(value: object) -> object:
    return (for_command_line(value) if isinstance(value, Advice) else value) or None


SIDES: Final = tuple(Column(side, right=True, rank=WHOLE_RANK) for side in ("source", "target"))
STEP_COLUMNS: Final = (
    Column("group"),
    Column("target_group", optional=True, rank=WHOLE_RANK),
    *PARTITION,
    Column("action"),
    *SIDES,
    Column("after", right=True, rank=11),
    Column("note", optional=True),
)

TRANSLATED_COLUMNS: Final = (
    *STEP_COLUMNS[:-5],
    Column("action", rank=1),
    *SIDES,
    Column("after", right=True),
    Column("source_topic", optional=True, rank=13),
    Column("verdict"),
    Column("repeats", right=True),
    Column("skips", right=True),
    Column("note", optional=True, rank=14),
)

VERIFY_COLUMNS: Final = (
    Column("group", get="target_group"),
    Column("topic", get="tp.topic"),
    Column("partition", right=True, title="PART", get="tp.partition"),
    Column("status"),
    Column("evidence", rank=12),
    Column("expected", right=True, rank=11),
    *SIDES,
    Column("log_end", right=True, rank=13),
    Column("detail", optional=True),
)


TRANSLATED_VERIFY_COLUMNS: Final = (
    *VERIFY_COLUMNS[:-1],
    Column("verdict", optional=True, rank=14),
    *(Column(name, right=True, optional=True, rank=WHOLE_RANK) for name in ("repeats", "skips")),
    VERIFY_COLUMNS[-1],
)


def step_rows(plan: PlanFile) -> Iterator[tuple[Any, ...]]:
    """Yields each step of a plan as a row. If a group could not be planned, its only row contains the error."""
    is_translated = plan.header.rules is not None
    for group in plan.groups():
        names = group.name, group.target_group if group.target_group != group.name else None
        if group.error:
            yield (*names, None, None, "error", None, None, None, *([None] * 4 if is_translated else ()), group.error)
        for step in group.steps:
            offsets = (value.offset if value else None for value in (step.source, step.target, step.after))
            row = (*names, *step.tp, step.action.value, *offsets)
            yield (*row, *(_translation_of(step) if is_translated else ()), step.note)


def _translation_of(step: PlanStep) -> tuple[Any, ...]:
    if (origin := step.origin) is None:
        return None, None, None, None
    renamed = origin.topic if origin.topic != step.tp.topic else None
    return renamed, origin.verdict or None, origin.repeats, origin.skips


MIRROR_COLUMNS: Final = (
    Column("group"),
    Column("target_group"),
    Column("state"),
    Column("copied", right=True),
    Column("lag", right=True),
    Column("detail", optional=True),
)


class MirrorLine:
    """Prints the state of a running mirror on stderr. On a terminal, each state overwrites the previous one. Otherwise
    a new line is printed every `EVERY_MS` milliseconds, and whenever groups change state."""

    EVERY_MS: Final = 10_000

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()
        self._next = 0
        self._states: Mapping[MirrorState, int] = {}

    def show(self, status: MirrorStatus, *, last: bool = False) -> None:
        if self._moving and not last:
            width = shutil.get_terminal_size().columns
            text = status.text if len(status.text) < width else f"{status.text[: width - 2]}…"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            Meter.drawn = True  # the next note replaces the line
        elif last or status.at_ms >= self._next or status.states != self._states:
            self._next = status.at_ms + self.EVERY_MS
            self._states = status.states
            note(status.text)


_CHANGED_TARGET: Final = (Conflict, OffsetOutOfRange, RecreatedTopic, UnknownTopicOrPartition)
"""The errors of an offset that the same plan cannot write later either."""


def print_next_step(report: Report, then: str) -> None:
    if report.failed:
        errors = [error for one in report.failed.values() for error in one.failed.values()]
        changed = [one for one in errors if isinstance(one, _CHANGED_TARGET)]
        if changed:
            note("hint: a changed target needs a new plan of its groups; another program may commit there")
        if len(changed) < len(errors):
            note("run the same command again to retry the failed groups")
    elif not report.interrupted:
        note(then)


def end_of_planning(summary: PlanSummary, following: Invocation, *, failed: object = False) -> None:
    """Prints the next command of a new plan, unless the plan refuses everything. Raises `typer.Exit` if it does, if it
    refuses a whole group, or if ``failed``."""
    if not summary.refuses_all:
        note(Advice("next: {}", following))
    elif not summary.actions["refuse-byte-position"]:  # a note names the map that these need
        note("nothing can be applied: the plan refuses everything; correct the causes above, then plan again")
    fail_if(failed or summary.failed_groups or summary.refuses_all)


def exit_if_interrupted(report: Report) -> None:
    """Raises `Interrupted` if Ctrl-C stopped the run before it was complete."""
    if report.interrupted:
        raise Interrupted("started writes are finished and recorded; run the same command again to continue")
