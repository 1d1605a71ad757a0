"""``offsetmgr offsets get|lag``: shows committed offsets and their lag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from offsetmgr.cli.columns import GROUP_PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, OnlyWithLag, TopicsOption
from offsetmgr.cli.read_error_report import ReadErrorReport, unrecognised_errors
from offsetmgr.cli.render import Column, OutputFormat, note, progress
from offsetmgr.cli.row_order import PartitionTable, Sort, Top, Totals
from offsetmgr.cli.stale_offsets import StaleOffsetCounter
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, TopicNotAuthorized
from offsetmgr.core.model import Committed, Offset, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.kafka.cluster.base import Cluster

app = typer.Typer()

OFFSETS: Final = (
    *GROUP_PARTITION,
    Column("state"),
    Column("offset", right=True),
    Column("metadata", optional=True, rank=1),
    Column("leader_epoch", right=True, optional=True, title="EPOCH"),
    Column("commit_timestamp", optional=True, title="COMMITTED-AT", time=True),
)
LAG: Final = (
    *(c if c.name in ("group", "topic", "partition", "offset") else c._replace(detail=True) for c in OFFSETS),
    Column("log_start_offset", right=True, detail=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True, attention=True),
    Column("note", optional=True),
)


def _cells(group: str, tp: TopicPartition, found: Offset | None, state: str = "absent") -> tuple[Any, ...]:
    """Cells of `OFFSETS`. ``state`` is the state of a partition without a committed offset that can be read."""
    if isinstance(found, Committed):
        return (group, tp[0], tp[1], "committed", found[0], found[1], found[2], found[3])
    return (group, tp[0], tp[1], state, None, None, None, None)


class UncommittedTopics:
    """Reports topics without commits, if --topic gives their full names.

    If a group that --group names has no commit in one of these topics, an error is reported. If none of the selected
    groups has a commit in one of these topics, a note is printed.
    """

    def __init__(self, uri: str, topics: TopicSelection, errors: ReadErrorReport) -> None:
        self._uri = uri
        self._topics = topics
        self._errors = errors
        self._left = {p.name for p in topics.patterns if p.partitions is None}.intersection(topics.named())
        self._seen: set[str] = set()

    def record(self, group: str, committed: Iterable[TopicPartition], *, named: bool) -> None:
        """Records the committed partitions of one group."""
        if not self._left:
            return
        missing = self._topics.without(committed)
        if named:
            for topic in missing:
                if topic in self._left:
                    self._errors.add(GroupNotFound(f"group {group!r}", f"has no committed offsets in topic {topic}"))
        self._seen.update(set(self._topics.named()).difference(missing))

    def report(self, shown: int | None) -> None:
        """Prints the topics in which no group has a commit. If neither a topic nor a row was printed, prints a note
        that the result is empty.

        ``shown`` is the number of printed rows. It is None if the user excluded rows with an option.
        """
        if self._errors.count:
            return
        for topic in sorted(self._left - self._seen):
            note(f"no committed offsets in topic {topic} in {self._uri}")
        if shown == 0 and not self._left - self._seen:
            note(f"no committed offsets in {self._uri}")


def _partition_counts(cluster: Cluster | None, topics: list[str]) -> Mapping[str, int]:
    """Returns the partition counts of existing topics. Returns an empty mapping if no brokers are known. Prints a note
    and returns an empty mapping if the topics cannot be read. If the login may not describe one, returns a single
    partition of each, whose committed offset the coordinator then refuses to show."""
    if cluster is None or not topics:
        return {}
    try:
        return cluster.topics(topics)
    except TopicNotAuthorized:
        return dict.fromkeys(topics, 1)
    except OffsetMgrError as error:
        note(f"warning: only committed partitions are shown, because the topics cannot be read: {error}")
        return {}


@app.command("get", cls=WatchCommand)
@connected
@many_clusters
def get(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show committed offsets.

    Partitions given by number, and those of topics given by full name, are shown even without a commit.
    """
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.lag import state_of
    from offsetmgr.groups.scan import choose_groups, require_known, scan_in_order

    selection = groups.selection()
    topics = TopicSelection.parse(topic or [])
    store = connect.store_of(selection)
    table = PartitionTable(OFFSETS, value="offset", watched=watch is not None)

    def once() -> int:
        chosen = choose_groups(store, selection)
        named = selection.named(chosen)
        kinds = store.capabilities.partitions
        expected = topics.explicit_partitions(
            _partition_counts(connect.cluster_or_none(), topics.named()) if named else {}, kinds
        )
        errors = ReadErrorReport()
        uncommitted = UncommittedTopics(store.uri, topics, errors)
        numbered = topics.numbered(kinds)
        also = {name: expected if name in named else numbered for name in chosen} if expected or numbered else {}

        def rows() -> Iterator[tuple[Any, ...]]:
            for found in progress(scan_in_order(store, chosen, expected=also), "reading", len(chosen)):
                if not groups.all_groups and not (found.offsets or found.errors or found.error):
                    try:
                        require_known(store, [found.group])
                    except GroupNotFound as absent:
                        absent = connect.with_other_store(absent, selected=len(chosen))
                        errors.add_or_raise(absent, len(chosen))
                        continue
                if found.error is not None:
                    errors.add(found.error)
                for hidden in unrecognised_errors(found):
                    errors.add(hidden)
                unreadable = {tp: state_of(error) for tp, error in found.errors.items() if topics.matches(tp)}
                for tp in sorted(unreadable):
                    errors.add(found.errors[tp])
                matched = {tp: c for tp, c in found.offsets.items() if topics.matches(tp)}
                if found.error is None:
                    uncommitted.record(found.group, [*matched, *found.errors], named=found.group in named)
                for tp in sorted({*matched, *unreadable, *(also.get(found.group, ()) if found.error is None else ())}):
                    yield _cells(found.group, tp, matched.get(tp), unreadable.get(tp, "absent"))

        shown = table.write(rows(), output)
        uncommitted.report(shown)
        return errors.exit_code

    exit_with(watch_command(once, watch, count))


@app.command("lag", cls=WatchCommand)
@connected
@many_clusters
def lag(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    only_with_lag: OnlyWithLag = False,
    show_totals: Totals = False,
    sort: Sort = None,
    top: Top = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show how far behind the log's end each committed offset is.

    Lag counts from the log's start if the committed offset is below it. Unknown values are null (-).
    """
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.lag import NOTHING, UNREAD, needs_log_range
    from offsetmgr.groups.lag import lag as lag_of_groups
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.migration.copied_offsets import last_writes

    selection = groups.selection()
    topics = TopicSelection.parse(topic or [])
    store, cluster = connect.store(), connect.cluster("offsets lag")
    others = connect.other_stores(store)
    table = PartitionTable(LAG, totals=show_totals, sort=sort, top=top, watched=watch is not None)

    def once() -> int:
        chosen = choose_groups(store, selection, others)
        named = selection.named(chosen)
        counts = _partition_counts(cluster, topics.named()) if named else {}
        also = dict.fromkeys(named, topics.explicit_partitions(counts, store.capabilities.partitions))
        errors = ReadErrorReport()
        uncommitted = UncommittedTopics(store.uri, topics, errors)

        def rows() -> Iterator[tuple[Any, ...]]:
            found = lag_of_groups(
                store,
                cluster,
                chosen,
                topics,
                strict=not groups.all_groups,
                partitions=also,
                others=others,
                writes=last_writes,
            )
            for one in progress(found, "reading", len(chosen)):
                if one.error is not None:
                    errors.add_or_raise(one.error, len(chosen))
                else:
                    there = [r.partition for r in one.rows if r.note != NOTHING]
                    uncommitted.record(one.group, there, named=one.group in named)
                for hidden in unrecognised_errors(one.read):
                    errors.add(hidden)
                for row in one.rows:
                    if row.error is not None:
                        errors.add(row.error)
                    if only_with_lag and not needs_log_range(row):
                        continue
                    state = row.note if row.note in UNREAD else "absent"
                    yield (*_cells(*row[:3], state), row.log_start, row.log_end, row.lag, row.note or None)

        stale = StaleOffsetCounter(store, others, connect.given_options)
        shown = table.write(stale.count(rows()), output)
        stale.report()
        uncommitted.report(None if only_with_lag else shown)
        return errors.exit_code

    exit_with(watch_command(once, watch, count))
