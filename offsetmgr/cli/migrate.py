"""``offsetmgr migrate``: plan, apply, status, verify, finalize, rollback, mirror; `switch` has its own module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offsetmgr.cli import migrate_view as view
from offsetmgr.cli import switch
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.errors import Interrupted
from offsetmgr.cli.former_locks import LockWait
from offsetmgr.cli.migration_stores import FromConfig, SourceAndTarget, ToConfig
from offsetmgr.cli.options import (
    AllGroups,
    AllowRewind,
    ConnectFlags,
    Format,
    Groups,
    Topics,
    TranslateOption,
    Yes,
    connected,
    file_to_write,
    require_groups,
)
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.cli.stop_signals import stopping
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, JournalError, PlanError, UsageError
from offsetmgr.core.model import DELETES_OFFSETS, KEEPS_IN_USE
from offsetmgr.core.offset_store import Partitions
from offsetmgr.groups.topic_matches import TopicMatches
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import Executor, Report
from offsetmgr.migration.partition_map import read_map
from offsetmgr.migration.plan import Action, AheadPolicy, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.migration.plan import GroupPlan

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Move groups between stores, and back.")

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file; its journal is in the same directory.")]
From = Annotated[
    str, typer.Option("--from", metavar="URI", help="The store to read: zookeeper://..., kafka://..., file:...")
]
To = Annotated[str, typer.Option("--to", metavar="URI", help="The store to write.")]
Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="Give a group another name in the target; repeatable."),
]
WaitEmpty = Annotated[
    float,
    typer.Option("--wait-empty", metavar="SECONDS", min=0, help="Wait this long for active groups to become empty."),
]


def _renames(pairs: list[str] | None) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs or []:
        old, equals, new = pair.partition("=")
        if not (equals and old and new):
            raise UsageError(f"--rename {pair!r}", "must be OLD=NEW")
        if old in renames:
            raise UsageError(f"--rename {pair!r}", f"{old} is renamed twice")
        renames[old] = new
    return renames


@app.command("plan")
@connected
def plan_command(
    connect: ConnectFlags,
    from_: From,
    to: To,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", callback=file_to_write, help="Where to write the plan."),
    ] = None,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    rename: Rename = None,
    clamp: Annotated[bool, typer.Option("--clamp", help="Bring offsets outside the log to its nearest edge.")] = False,
    if_ahead: Annotated[
        AheadPolicy | None,
        typer.Option("--if-ahead", help="If the target is ahead: keep it (live stores), or reject (files)."),
    ] = None,
    allow_rewind: AllowRewind = False,
    onto_existing: Annotated[
        bool, typer.Option("--onto-existing", help="Let a renamed group go onto a group that the target has already.")
    ] = False,
    partition_map: Annotated[
        Path | None,
        typer.Option("--partition-map", metavar="FILE", help="Confirmed replacements for byte positions of Kafka 0.7."),
    ] = None,
    translate: TranslateOption = None,
    draft_partition_map: Annotated[
        Path | None,
        typer.Option(
            "--draft-partition-map",
            metavar="FILE",
            callback=file_to_write,
            help="Write the draft of such a map, and no plan.",
        ),
    ] = None,
    format: Format = OutputFormat.TABLE,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """Decide what a migration would move and write it to a plan; nothing else is changed.

    The plan is frozen: apply writes exactly its offsets, and only where the target is unchanged since.
    """
    if (output is None) is (draft_partition_map is None):
        raise UsageError("migrate plan", "needs either --output FILE or --draft-partition-map FILE")
    groups = require_groups(group, all_groups)
    rewind = AheadPolicy.REWIND if allow_rewind else if_ahead
    if allow_rewind and if_ahead is not None:
        raise UsageError("--allow-rewind", "says the same as --if-ahead rewind; give one of them")
    default = AheadPolicy.REFUSE if from_.startswith("file:") else AheadPolicy.KEEP
    options = PlanOptions(
        rewind or default, clamp, tuple(topic or ()), tuple(groups), _renames(rename), onto_existing=onto_existing
    )
    sides = SourceAndTarget(connect, from_, to, from_command_config, to_command_config)
    options.selection.within(sides.source.capabilities.partitions, sides.target.capabilities.partitions)
    if any(any(c in pattern for c in "*?[") for pattern in groups):
        options = options.literal_first(sides.source.groups())
    if draft_partition_map is not None:
        _draft_map(sides, options, draft_partition_map)
        return
    assert output is not None  # one of the two is given
    confirmed = None if partition_map is None else read_map(partition_map)
    with sides.old_members() as members:
        planner = Planner(
            sides.source,
            sides.target,
            options,
            SystemClock(),
            sides.cluster(),
            members,
            partition_map=confirmed,
            translate=translate,
        )
        header = planner.header()
        names = planner.selected_groups()
        planned = _all_topics(planner.plan(names), options, f"{sides.source.uri} and {sides.target.uri}")
        summary, digest = write_plan(
            output, header, progress(planned, "groups planned", len(names)), planner.target.topic_ids
        )
    if not summary.actions and not summary.failed_groups:
        output.unlink()
        where = f"groups {', '.join(groups)}" if groups else f"{view.counted(len(names), 'group')}"
        raise GroupNotFound(
            f"nothing to plan in {sides.source.uri}",
            f"no offset is committed in the {where} there" + (f" for topic {', '.join(topic)}" if topic else ""),
            "check the names, and the chroot of a zookeeper:// URI",
        )
    plan = PlanFile(output)
    view.show_plan_header(header)
    view.show_expiry(header, summary, header.created_at)
    view.show_plan_summary(summary)
    if format is OutputFormat.TABLE:
        view.show_attention(plan)
    if format is not OutputFormat.TABLE or sum(summary.actions.values()) <= view.SHOWN:
        write_rows(view.STEP_COLUMNS, view.step_rows(plan.groups()), format)
    note(f"plan written to {output} (sha256 {digest[:16]}...); nothing was changed")
    if refused := summary.actions[Action.REFUSE_BYTE_POSITION]:
        note(
            f"next: the same command with --draft-partition-map FILE instead of --output, confirm that file, then with "
            f"--partition-map FILE: {view.counted(refused, 'byte position')} of Kafka 0.7 cannot be planned without"
        )
    if not refused or refused < sum(summary.actions.values()):
        note(f"next: offsetmgr migrate apply {output}")
    if summary.failed_groups:
        raise typer.Exit(1)


def _all_topics(plans: Iterable[GroupPlan], options: PlanOptions, where: str) -> Iterator[GroupPlan]:
    """Passes the plans on; at their end raises `UnknownTopicOrPartition` for selected topics that occur in none of
    them."""
    topic_matches = TopicMatches(options.selection)
    for group in plans:
        topic_matches.see((step.source_tp for step in group.steps), unread=bool(group.error))
        yield group
    topic_matches.require_all(where)


def _draft_map(sides: SourceAndTarget, options: PlanOptions, path: Path) -> None:
    from offsetmgr.migration.partition_map_draft import MapDraft, write_draft

    cluster = sides.cluster()
    names = Planner(sides.source, sides.target, options, SystemClock(), cluster).selected_groups()
    draft = MapDraft()
    for found in progress(sides.source.scan(names), "reading", len(names)):
        if found.error is not None:
            raise found.error
        draft.add(found, [tp for tp in found.offsets if options.wants(tp)])
    counts = None if cluster is None else cluster.topics(draft.topics())
    write_draft(path, draft.encode(sides.source.uri, counts))
    note(f"draft written to {path}; nothing was changed")
    note('correct it, put your name into "confirmed_by", then: offsetmgr migrate plan ... --partition-map FILE -o PLAN')


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
    if state.apply.opened and not state.undo.touched:
        note(f"an earlier run settled {view.counted(len(state.apply.done), 'group')}; this one goes on")
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


def _say_next(report: Report, then: str) -> None:
    if report.failed:
        note("what failed is tried again when the same command is run again")
    elif not report.interrupted:
        note(then)


def _end_if_interrupted(report: Report) -> None:
    """Ends the command as an interrupted one if work remains."""
    if report.interrupted:
        raise Interrupted("started writes are finished and recorded; run the same command again to continue")


def _open_plan(path: Path) -> tuple[PlanFile, MigrationState]:
    plan = PlanFile(path)
    return plan, MigrationState.read(journal_path(path), plan.sha256)


@contextmanager
def _work(
    plan: PlanFile, name: str, store: OffsetStore, wait_empty: float = 0.0
) -> Iterator[tuple[Executor, MigrationState]]:
    """Holds the journal open, turns Ctrl-C into a clean stop, and prints progress on stderr.

    The state is read again under the journal's lock: another process may have worked during a prompt.
    """
    clock = SystemClock()
    with (
        Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=clock) as journal,
        stopping("groups under way are finished") as stop,
        view.MigrateProgress(f"{name}: groups", plan.summary.groups) as shown,
    ):
        state = MigrationState.read(journal_path(plan.path), plan.sha256)
        yield Executor(name, store, journal, clock, stop, shown.count, wait_empty, LockWait()), state


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


@app.command("verify")
@connected
def verify_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    all_rows: Annotated[bool, typer.Option("--all", help="List equal partitions too.")] = False,
    format: Format = OutputFormat.TABLE,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """Read both sides again and compare them with the plan; exit 1 on any difference."""
    from offsetmgr.migration.verify import Status

    plan, state = _open_plan(plan_path)
    verifier = SourceAndTarget.of_plan(connect, plan.header, from_command_config, to_command_config).verifier(
        plan, state
    )
    checked = progress(verifier.verdicts(), "partitions verified")
    everything = all_rows or format is not OutputFormat.TABLE
    # After a rollback nearly everything is missing, as intended: it is counted, and listed with --all.
    unlisted = {Status.EQUAL, Status.MISSING} if state.undo.touched else {Status.EQUAL}
    rows = (view.verdict_row(v) for v in checked if everything or v.status not in unlisted)
    first = next(rows, None)
    if first is not None or everything:
        write_rows(view.VERDICT_COLUMNS, _with_first(first, rows), format)
    view.show_verify_summary(verifier.summary)
    if state.undo.touched:
        note("this plan was rolled back: the target holds its before-images again, so it differs from the plan")
    if not verifier.summary.ok:
        raise typer.Exit(1)


def _with_first(first: tuple[Any, ...] | None, rest: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    if first is not None:
        yield first
        yield from rest


@app.command("rollback")
@connected
def rollback_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Restore before-images even where the offset was used since.")
    ] = False,
    reverse_plan: Annotated[
        Path | None,
        typer.Option(
            "--reverse-plan",
            metavar="FILE",
            callback=file_to_write,
            help="After cut-over: plan the way back with today's offsets.",
        ),
    ] = None,
    allow_rewind: Annotated[
        bool,
        typer.Option(
            "--allow-rewind", help="With --reverse-plan: also rewind offsets that were rewound in the target since."
        ),
    ] = False,
    wait_empty: WaitEmpty = 0.0,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """Restore what apply overwrote and remove what it created.

    After the group was cut over, before-images would rewind it: then --reverse-plan creates a plan in the other
    direction.
    """
    from offsetmgr.migration.rollback import rollback

    if reverse_plan is None and allow_rewind:
        raise UsageError("--allow-rewind", "is for --reverse-plan: a rollback restores the before-image")
    if reverse_plan is not None:
        for given, option in ((force, "--force"), (wait_empty > 0, "--wait-empty")):
            if given:
                raise UsageError(option, "does not go with --reverse-plan, which writes nothing but a plan")
        plan, state = _open_plan(plan_path)
        back = SourceAndTarget.reversed(connect, plan.header, from_command_config, to_command_config)
        _plan_back(back, plan, state, reverse_plan, allow_rewind=allow_rewind)
        return
    plan, state = _open_plan(plan_path)
    target = SourceAndTarget.of_plan(connect, plan.header, from_command_config, to_command_config).target
    if state.apply.intents and state.finalized_at is None:
        note(f"restores {plan.header.target.uri} to what it held before {plan_path} was applied")
        view.show_weaknesses(found.text for found in target.weaknesses() if found.capability == KEEPS_IN_USE)
        note("partitions whose offset was used since are refused" + (", but --force overwrites them" if force else ""))
        confirm(f"roll back {view.counted(len(state.apply.intents), 'group')}?", yes=yes)
    with _work(plan, "undo", target, wait_empty) as (executor, state):
        try:
            report = rollback(plan, state, executor, force=force)
        except JournalError:  # the journal contains no writes: only the target shows whether that is true
            _compare_others(plan, state, target)
            raise
    view.show_report(report, "restored")
    if report.failed:
        note(f"where a group consumes from the target already: migrate rollback {plan_path} --reverse-plan FILE")
    if report.ok and not report.groups:
        note("every group that the journal knows was rolled back by an earlier run; nothing was done")
    differing = 0 if report.interrupted else _compare_others(plan, state, target)
    if report.groups and not differing:
        _say_next(report, "rolled back: every offset is as it was before (a group that was created stays, empty)")
        if report.ok and (late := _late_deletion(target)) and (created := sum(_created(plan, state))):
            note(f"mind: apply created {view.counted(created, 'offset')} there, and rollback deleted them. {late}")
    _end_if_interrupted(report)
    if not report.ok or differing:
        raise typer.Exit(1)


def _created(plan: PlanFile, state: MigrationState) -> Iterator[int]:
    """The number of offsets of each group that apply created, or may have created."""
    for group in plan.groups():
        if group.group in state.apply.intents:
            applied = state.partitions(state.apply, group.group)
            yield sum(step.target is None and step.tp in applied.written | applied.in_doubt for step in group.writes())


def _late_deletion(store: OffsetStore) -> str:
    """A note for stores that do not delete offsets at once; otherwise empty."""
    return next((found.text for found in store.weaknesses() if found.capability == DELETES_OFFSETS), "")


def _compare_others(plan: PlanFile, state: MigrationState, target: OffsetStore) -> int:
    """Compares offsets that the journal does not record as written with the plan's before-images and prints
    differences. Returns their number."""
    from offsetmgr.migration.rollback import differences, not_settled

    others = sum(1 for _ in not_settled(plan, state))
    if not others:
        return 0
    begun = len(state.apply.intents)
    note(f"the journal knows {begun:,} of the plan's {plan.summary.groups:,} groups as begun")
    count = 0
    for found in progress(differences(plan, state, target), "comparing"):
        count += 1
        if count <= view.SHOWN:
            before, now = ("no offset" if n is None else n for n in (found.before, found.now))
            why = str(found.error) if found.error else f"holds {now}, and held {before} before the plan was applied"
            note(f"  ! {found.group}{f' {found.tp}' if found.tp else ''}: {why}")
    compared = (
        f"offsets that it does not record as written, in {view.counted(others, 'group')}, was compared by reading"
    )
    if not count:
        note(f"{compared}: every offset is as it was before")
        return 0
    if count > view.SHOWN:
        note(f"  ! and {count - view.SHOWN:,} more")
    note(f"{compared}: {view.counted(count, 'offset')} differ from their before-images; they were not changed")
    note(
        "hint: the journal may be cut or older than the last apply; bring its whole copy back and roll back again, or "
        "restore a snapshot of the target"
    )
    return count


def _plan_back(
    sides: SourceAndTarget, plan: PlanFile, state: MigrationState, output: Path, *, allow_rewind: bool
) -> None:
    from offsetmgr.migration.reverse_plan import ReversePlanner, reverse_options

    with sides.old_members() as members:
        options = reverse_options(plan)
        planner = Planner(
            sides.source,
            sides.target,
            options,
            SystemClock(),
            sides.cluster(),
            members,
            translate=plan.header.translate,
        )
        back = ReversePlanner(plan, state, planner, allow_rewind)
        header = planner.header()
        steps = progress(back.steps(), "groups planned", len(back.groups))
        summary, _ = write_plan(output, header, steps, planner.target.topic_ids)
    view.show_plan_header(header)
    view.show_expiry(header, summary, header.created_at)
    view.show_plan_summary(summary)
    view.show_attention(PlanFile(output))
    note(f"the way back is planned in {output}; nothing was changed")
    note(f"next: offsetmgr migrate apply {output}")
    if summary.failed_groups or summary.actions[Action.REFUSE_GONE]:
        raise typer.Exit(1)


@app.command("finalize")
@connected
def finalize_command(
    connect: ConnectFlags,
    plan_path: PlanPath,
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="Also remove the moved offsets from the source.")
    ] = False,
    window: Annotated[
        float, typer.Option("--window", metavar="SECONDS", min=0, help="How long to watch live members, at most.")
    ] = 60.0,
    accept_idle: Annotated[
        bool, typer.Option("--accept-idle", help="Let partitions without traffic pass where nothing can be lost.")
    ] = False,
    accept_refused: Annotated[
        bool, typer.Option("--accept-refused", help="Leave out the partitions that the plan refused.")
    ] = False,
    yes: Yes = False,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """End the dual phase: verify again, prove that no member writes only to the source, and record it.

    With --delete-source the source's offsets are removed too; their before-images stay in the journal. Afterwards the
    way back is a plan in the other direction (migrate rollback --reverse-plan).
    """
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.finalize import finalize
    from offsetmgr.migration.group_observer import ObservationWindow
    from offsetmgr.migration.verify import Status

    plan, state = _open_plan(plan_path)
    sides = SourceAndTarget.of_plan(connect, plan.header, from_command_config, to_command_config)
    verifier = sides.verifier(plan, state)
    if delete_source:
        count = sum(n for action, n in plan.summary.actions.items() if action != "target-only")
        confirm(
            f"after the checks, remove up to {view.counted(count, 'offset')} from {plan.header.source.uri}?", yes=yes
        )
    gate = sides.member_gate(
        plan, delete_source, EvidenceThresholds(accept_idle=accept_idle), ObservationWindow(window)
    )
    accept = (Status.REFUSED,) if accept_refused else ()
    with _work(plan, "delete", verifier.source) as (executor, state):
        done = finalize(verifier, state, executor.journal, gate, executor if delete_source else None, accept)
    if state.finalized_at is not None:
        note(f"finalized already, on {view.moment(state.finalized_at)}")
    else:
        view.show_gates(done.gates)
        left = f", {done.left_out} left out because the plan refused them" if done.left_out else ""
        verified = view.counted(done.verified, "partition")
        note(f"finalized: {verified} verified{left}; no member commits to the source alone")
    if done.deleted is not None:
        view.show_report(done.deleted, "removed from the source")
        if late := _late_deletion(verifier.source):
            note(f"mind: {late}")
        for line in done.kept:
            note(f"  ! kept in the source: {line}")
        _end_if_interrupted(done.deleted)
        if done.kept or not done.deleted.ok:
            raise typer.Exit(1)


@app.command("mirror")
@connected
def mirror_command(
    connect: ConnectFlags,
    from_: From,
    to: To,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    rename: Rename = None,
    translate: TranslateOption = None,
    once: Annotated[bool, typer.Option("--once", help="End as soon as nothing is left to copy.")] = False,
    interval: Annotated[
        int, typer.Option("--interval", metavar="MS", min=50, help="How often a source without watches is read.")
    ] = 1000,
    settle: Annotated[
        int,
        typer.Option(
            "--settle", metavar="MS", min=0, help="How long Kafka groups are watched for commits of others, first."
        ),
    ] = 2000,
    window: Annotated[
        float,
        typer.Option("--window", metavar="SECONDS", min=0, help="How long --once watches live old consumers, at most."),
    ] = 150.0,
    trust_zookeeper_only: Annotated[
        bool,
        typer.Option(
            "--trust-zookeeper-only", help="Live old consumers commit to ZooKeeper alone: take their groups unseen."
        ),
    ] = False,
    yes: Yes = False,
    format: Format = OutputFormat.TABLE,
    from_command_config: FromConfig = None,
    to_command_config: ToConfig = None,
) -> None:
    """Keep a target in step with a source, forward only, until Ctrl-C (or, with --once, until nothing is left to copy).

    For consumers that cannot commit to both. On Kafka 0.9 and later the mirror holds each group of the target, so no
    other client can commit to it; a consumer that starts with the group takes it over, and the mirror of that group
    ends. Kafka 0.8.2 has no group lock: there the mirror reads and compares just before each write, and reads again
    after it. The mirror accepts a group with live old consumers after it has seen each consumer that owns partitions
    commit only to ZooKeeper: a consumer that commits to both could not commit to Kafka while the mirror holds its
    group.
    """
    from offsetmgr.migration.mirror import Mirror

    groups = require_groups(group, all_groups)
    options = PlanOptions(AheadPolicy.KEEP, False, tuple(topic or ()), tuple(groups), _renames(rename))
    sides = SourceAndTarget(connect, from_, to, from_command_config, to_command_config)
    source, target = sides.source, sides.target
    if (Partitions.OF_BROKERS in {one.capabilities.partitions for one in (source, target)}) and (
        source.capabilities.partitions is not target.capabilities.partitions
    ):
        raise UsageError(
            "migrate mirror",
            "one side holds byte positions of Kafka 0.7 and the other offsets, which never agree",
            "a plan can translate them once: migrate plan --partition-map",
        )
    planner = Planner(source, target, options, SystemClock(), translate=translate)
    header = planner.header()
    names = planner.selected_groups()
    if options.topics:
        topic_matches = TopicMatches(options.selection.within(source.capabilities.partitions))
        for found in source.scan(names):
            topic_matches.see_group(found)
        topic_matches.require_all(source.uri)
    if header.compared is not None:
        note(f"numbers {header.compared.text(translate)}")
    note(f"topics  recreated after the commit: {header.recreation}")
    view.show_weaknesses(header.weaknesses)
    refresh_s = 3600.0
    if (retention := sides.retention_ms()) is not None:
        refresh_s = retention / 4000
        view.show_mirror_expiry(retention, refresh_s)
    note(f"mirrors {view.counted(len(names), 'group')}, forward only: {source.uri} -> {target.uri}; Ctrl-C ends it")
    confirm(f"keep {target.uri} following, until stopped?", yes=yes)
    with (
        stopping("the mirror ends after this round") as stop,
        sides.feed(options, interval) as feed,
        sides.old_groups() as old_groups,
    ):
        shown = view.MirrorLine()
        mirror = Mirror(
            source,
            target,
            options,
            feed,
            SystemClock(),
            stop,
            shown.show,
            interval / 1000 if once else 10.0,
            settle / 1000,
            None if trust_zookeeper_only else old_groups,
            window,
            refresh_s,
            planner.crossing,
        )
        status = mirror.run(once=once)
    shown.show(status, last=True)
    bad = [mirrored for mirrored in mirror.groups.values() if not mirrored.good]
    if bad or format is not OutputFormat.TABLE:
        write_rows(view.MIRROR_COLUMNS, view.mirror_rows(bad or mirror.groups.values()), format)
    if mirror.cut:
        raise Interrupted("not all was copied")
    if bad:
        raise typer.Exit(1)


app.add_typer(switch.app)
