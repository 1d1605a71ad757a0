"""``offsetmgr groups describe``: state, members, offsets, lag and owners of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.columns import PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, OnlyWithLag, TopicsOption, flag
from offsetmgr.cli.read_error_report import empty_note, unrecognised_errors
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.row_order import PartitionTable, Sort, Top, Totals
from offsetmgr.cli.stale_offsets import StaleOffsetCounter
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import Committed, GroupDescription
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.groups.describe import DescribedGroup
    from offsetmgr.groups.topic_matches import TopicMatches

app = typer.Typer()

DESCRIBE: Final = (
    Column("group"),
    Column("state"),
    *PARTITION,
    Column("offset", right=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True, attention=True),
    Column("client_id", optional=True, rank=2),
    Column("host", optional=True, rank=3),
    Column("member_id", optional=True, rank=1),
    Column("note", optional=True),
)
MEMBERS: Final = (
    Column("group"),
    Column("state"),
    Column("member_id", rank=1),
    Column("client_id", optional=True, rank=2),
    Column("host", optional=True, rank=3),
    Column("partitions", right=True),
    Column("assignment", optional=True),
)
STATE: Final = (
    Column("group"),
    Column("coordinator", rank=1),
    Column("assignor", rank=1),
    Column("state"),
    Column("members", right=True),
)


@app.command("describe", cls=WatchCommand)
@connected
@many_clusters
def describe(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    members: Annotated[bool, flag("--members", "Show members instead of partitions.")] = False,
    state: Annotated[bool, flag("--state", "Show coordinator, assignor, state and number of members instead.")] = False,
    verbose: Annotated[  # noqa: ARG001 - the output is always complete
        bool, flag("--verbose", "Accepted for compatibility with kafka-consumer-groups; has no effect.")
    ] = False,
    only_with_lag: OnlyWithLag = False,
    show_totals: Totals = False,
    sort: Sort = None,
    top: Top = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the state, members, committed offsets, log ends, lag and owners of groups."""
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.describe import describe as describe_groups
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.groups.topic_matches import TopicMatches
    from offsetmgr.migration.copied_offsets import last_writes

    selection = groups.selection()
    if members and state:
        raise UsageError("groups describe", "both --members and --state are given", "only one of them")
    of_partitions = {"--topic": topic, "--totals": show_totals, "--sort": sort, "--top": top}
    if (members or state) and (given := next((name for name, value in of_partitions.items() if value), None)):
        option = "--members" if members else "--state"
        raise UsageError(
            given, f"selects partitions, but {option} shows no partitions", f"leave out {given} or {option}"
        )
    table = PartitionTable(DESCRIBE, totals=show_totals, sort=sort, top=top, watched=watch is not None)
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    cluster = connect.cluster("--only-with-lag") if only_with_lag else connect.cluster_or_none()
    others = connect.other_stores(store)
    describer = connect.group_describer_with(others)

    def once() -> int:
        errors: list[OffsetMgrError] = []
        chosen = choose_groups(store, selection, others)
        found = _named(
            describe_groups(store, cluster, describer, chosen, topics, others=others, writes=last_writes), errors
        )
        if state:
            shown = write_rows(STATE, _state_rows(found, errors), output)
        elif members:
            shown = write_rows(MEMBERS, _member_rows(found, errors), output)
        else:
            stale = StaleOffsetCounter(store, others, connect.given_options)
            topic_matches = TopicMatches(topics)
            where = " in these topics" if topic else ""
            rows = _partition_rows(found, errors, topic_matches, only_with_lag=only_with_lag, where=where)
            shown = table.write(stale.count(rows), output)
            stale.report()
            try:
                topic_matches.require_all(store.uri)
            except UnknownTopicOrPartition as missing:
                errors.append(missing)
        if not shown and not errors:
            note(empty_note(store, "groups" if not chosen else "partitions that need attention"))
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


def _named(found: Iterable[DescribedGroup], errors: list[OffsetMgrError]) -> Iterator[DescribedGroup]:
    for one in found:
        errors += unrecognised_errors(one.read)
        yield one


def _partition_rows(
    found: Iterable[DescribedGroup],
    errors: list[OffsetMgrError],
    topic_matches: TopicMatches,
    *,
    only_with_lag: bool,
    where: str,
) -> Iterator[tuple[Any, ...]]:
    """Rows of `DESCRIBE`. ``where``, such as " in these topics", is appended to the note of a group without offsets."""
    from offsetmgr.groups.lag import needs_log_range

    for one in found:
        topic_matches.record((row.partition for row, _ in one.partitions), incomplete=one.error is not None)
        if one.error is not None:
            errors.append(one.error)
            continue
        description: GroupDescription = one.description
        for partition, owner in one.partitions:
            group, tp, committed, _, log_end, lag, text, error = partition
            if error is not None:
                errors.append(error)
            if only_with_lag and not needs_log_range(partition):
                continue
            who = (owner.client_id or None, owner.host or None, owner.member_id) if owner else (None, None, None)
            offset = committed.offset if isinstance(committed, Committed) else None
            yield (group, description.state, tp.topic, tp.partition, offset, log_end, lag, *who, text or None)
        if not one.partitions and not only_with_lag:
            nothing = "offsets unknown" if one.read is not None and one.read.hidden else f"nothing committed{where}"
            text = f"{count_of(len(description.members), 'member')}, {nothing}"
            yield (one.group, description.state, None, None, None, None, None, None, None, None, text)


def _state_rows(found: Iterable[Any], errors: list[OffsetMgrError]) -> Iterator[tuple[Any, ...]]:
    for one in found:
        if one.error is not None:
            errors.append(one.error)
            continue
        a: GroupDescription = one.description
        yield (one.group, a.coordinator or None, a.partition_assignor or None, a.state, len(a.members))


def _member_rows(found: Iterable[Any], errors: list[OffsetMgrError]) -> Iterator[tuple[Any, ...]]:
    for one in found:
        if one.error is not None:
            errors.append(one.error)
            continue
        description: GroupDescription = one.description
        for member in description.members:
            assignment = ",".join(map(str, member.partitions))
            yield (
                one.group,
                description.state,
                member.member_id,
                member.client_id or None,
                member.host or None,
                len(member.partitions),
                assignment or None,
            )
        if not description.members:
            yield (one.group, description.state, None, None, None, 0, None)
