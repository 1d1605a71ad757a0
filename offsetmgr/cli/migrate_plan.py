"""``offsetmgr migrate plan``: decides which offsets a migration writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.written_plan import applicable_options, write_plan_file
from offsetmgr.cli import migrate_output
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.many_clusters import one_cluster
from offsetmgr.cli.migrate_options import Rename, SideConfigs, SourceStore, TargetStore
from offsetmgr.cli.options import (
    AllowRewind,
    FormatOption,
    GroupFlags,
    TopicsOption,
    TranslateOption,
    file_to_write,
    flag,
    opt,
    seconds_option,
)
from offsetmgr.cli.plan_execution import end_of_planning
from offsetmgr.cli.render import OutputFormat, note, progress, write_rows
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.partition_map import read_map
from offsetmgr.migration.plan import Action, AheadPolicy, PlanOptions
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.waves import read_waves

app = typer.Typer()

IfAhead = Annotated[
    AheadPolicy | None,
    opt(
        "--if-ahead",
        None,
        "For targets that are ahead. Default: keep those that were written last, and refuse the others.",
    ),
]


def parse_renames(pairs: list[str] | None) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs or []:
        old, equals, new = pair.partition("=")
        if not (equals and new):  # the empty group id is valid in Kafka
            raise UsageError(f"--rename {pair!r}", "must be OLD=NEW")
        if old in renames:
            raise UsageError(f"--rename {pair!r}", f"{old} is renamed twice")
        renames[old] = new
    return renames


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
    groups: GroupFlags,
    output: Annotated[
        Path | None,
        opt("--output -o", "FILE", "Where to write the plan.", callback=file_to_write),
    ] = None,
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
    *,
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
    selection = groups.selection()
    rewind = AheadPolicy.REWIND if allow_rewind else if_ahead
    if allow_rewind and if_ahead is not None:
        raise UsageError("--allow-rewind", "means the same as --if-ahead rewind", "give one of them")
    options = PlanOptions(
        rewind,
        clamp,
        tuple(topic or ()),
        selection.patterns,
        parse_renames(rename),
        onto_existing,
        shift,
        selection.excluded,
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
        window=ObservationWindow(window_s, waiting=LockWait().for_commits),
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
