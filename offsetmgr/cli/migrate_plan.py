"""``offsetmgr migrate plan``: decides what a migration would move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.cli import migrate_view as view
from offsetmgr.cli.migrate_options import From, Rename, To
from offsetmgr.cli.migration_stores import FromConfig, SourceAndTarget, ToConfig
from offsetmgr.cli.options import (
    AllGroups,
    AllowRewind,
    ConnectFlags,
    Format,
    Groups,
    Topics,
    TranslateOption,
    connected,
    file_to_write,
    require_groups,
)
from offsetmgr.cli.render import OutputFormat, note, progress, write_rows
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, UsageError
from offsetmgr.groups.topic_matches import TopicMatches
from offsetmgr.migration.partition_map import read_map
from offsetmgr.migration.plan import Action, AheadPolicy, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, PlanSummary, write_plan
from offsetmgr.migration.planner import Planner

if TYPE_CHECKING:
    from offsetmgr.migration.plan import GroupPlan

app = typer.Typer()


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
        where = f"groups {', '.join(groups)}" if groups else view.counted(len(names), "group")
        raise _nothing_to_plan(sides.source.uri, where, topic or [])
    plan = PlanFile(output)
    view.show_plan_header(header)
    view.show_expiry(header, summary, header.created_at)
    view.show_plan_summary(summary)
    if format is OutputFormat.TABLE:
        view.show_attention(plan)
    if format is not OutputFormat.TABLE or sum(summary.actions.values()) <= view.SHOWN:
        write_rows(view.STEP_COLUMNS, view.step_rows(plan.groups()), format)
    note(f"plan written to {output} (sha256 {digest[:16]}...); nothing was changed")
    _say_next(output, summary)
    if summary.failed_groups:
        raise typer.Exit(1)


def _nothing_to_plan(source: str, where: str, topics: list[str]) -> GroupNotFound:
    return GroupNotFound(
        f"nothing to plan in {source}",
        f"no offset is committed in the {where} there" + (f" for topic {', '.join(topics)}" if topics else ""),
        "check the names, and the chroot of a zookeeper:// URI",
    )


def _say_next(output: Path, summary: PlanSummary) -> None:
    """Prints the commands that follow."""
    if refused := summary.actions[Action.REFUSE_BYTE_POSITION]:
        note(
            f"next: the same command with --draft-partition-map FILE instead of --output, confirm that file, then with "
            f"--partition-map FILE: {view.counted(refused, 'byte position')} of Kafka 0.7 cannot be planned without"
        )
    if not refused or refused < sum(summary.actions.values()):
        note(f"next: offsetmgr migrate apply {output}")


def _all_topics(plans: Iterable[GroupPlan], options: PlanOptions, where: str) -> Iterator[GroupPlan]:
    """Passes the plans on; at their end raises `UnknownTopicOrPartition` for selected topics that occur in none of
    them."""
    topic_matches = TopicMatches(options.selection)
    for group in plans:
        topic_matches.record((step.source_tp for step in group.steps), incomplete=bool(group.error))
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
        draft.add(found, [tp for tp in found.offsets if options.selects(tp)])
    counts = None if cluster is None else cluster.topics(draft.topics())
    write_draft(path, draft.encode(sides.source.uri, counts))
    note(f"draft written to {path}; nothing was changed")
    note('correct it, put your name into "confirmed_by", then: offsetmgr migrate plan ... --partition-map FILE -o PLAN')
