"""``offsetmgr offsets set|reset|delete``: edits committed offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.options import (
    AllTopics,
    GroupFlags,
    OneGroup,
    RunningFlag,
    TopicsOption,
    TranslateOption,
    UnterminatedOption,
    WaitEmpty,
    check_topics,
    flag,
    opt,
    running_edit,
)
from offsetmgr.cli.render import note
from offsetmgr.cli.terminal import EditFlags
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.clock_difference import duration
from offsetmgr.core.commit_metadata import dropped_text, form_of
from offsetmgr.core.durations import parse_datetime, parse_duration
from offsetmgr.core.errors import Conflict, CorruptData, GroupNotFound, OffsetMgrError, OffsetOutOfRange, UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import GroupSelection, TopicSelection

if TYPE_CHECKING:
    from offsetmgr.cli.connect_flags import ConnectFlags
    from offsetmgr.cli.edit_command import Edit
    from offsetmgr.core.offset_store import GroupOffsets
    from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange
    from offsetmgr.groups.export import SnapshotFile
    from offsetmgr.groups.reset import Scenario, ToOffsets, ToTime
    from offsetmgr.stores.cross_cluster_check import CrossClusterCheck


app = typer.Typer()

NewGroup = Annotated[bool, flag("--new-group", "Allow a group that does not exist yet.")]


LARGEST_OFFSET: Final = 2**63 - 1


def _offset(text: str) -> int:
    """Parses an offset. Accepts only digits, whereas Python's ``int`` would also accept ``1_000``."""
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not an offset.")
    if len(text.lstrip("0")) > len(str(LARGEST_OFFSET)) or int(text) > LARGEST_OFFSET:
        raise typer.BadParameter(f"{text[:30]!r} is beyond the largest offset, {LARGEST_OFFSET}.")
    return int(text)


ToOffsetOption = Annotated[
    int | None,
    opt("--to-offset", "N", "Move to this offset.", parser=_offset),
]


@app.command("set")
@connected
def set_offsets(
    connect: ConnectFlags,
    group: OneGroup,
    topic: Annotated[
        list[str],
        opt(
            "--topic -t",
            "NAME[:0,1]",
            "Partitions; without numbers, the topic's committed ones; repeatable.",
        ),
    ],
    to_offset: Annotated[int, opt("--to-offset", "N", "The next offset to consume.", parser=_offset)],
    metadata: Annotated[
        str | None,
        opt(
            "--metadata",
            None,
            "Metadata to commit with the offset; without it, an offset that stays keeps its metadata.",
        ),
    ] = None,
    new_group: NewGroup = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Commit an offset exactly as given; an offset outside its log gets a warning.

    The warning needs brokers. offsets reset clamps an offset outside its log.
    """
    from offsetmgr.cli.edit_command import exit_edit
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.reset import plan_set
    from offsetmgr.groups.topic_matches import require_topics

    topics = TopicSelection.parse(topic)
    store = connect.store()

    named = topics.numbered(store.capabilities.partitions)

    def new_offsets(committed: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        chosen = {*named, *(tp for tp in committed if topics.matches(tp))}
        if not chosen:
            raise GroupNotFound(
                f"group {group!r}", "has no committed offsets in these topics", "name partitions, as in --topic t:0,1"
            )
        return {tp: OffsetAndMetadata(to_offset, metadata or "") for tp in chosen}

    how = running_edit(running, wait_empty_s)
    connect.wait_until_empty([group], wait_empty_s)
    edit = connect.edit_of("offsets set", flags, store, how)
    keeps_metadata = metadata is None
    proposal = plan_set(store, group, new_offsets, named, create=new_group, keeps_metadata=keeps_metadata)
    proposals = noted_outside_logs(connect, edit, [proposal], "set")
    exit_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("reset")
@connected
def reset(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    all_topics: AllTopics = False,
    to_earliest: Annotated[bool, flag("--to-earliest", "To the log's start.")] = False,
    to_latest: Annotated[bool, flag("--to-latest", "To the log's end.")] = False,
    to_current: Annotated[bool, flag("--to-current", "To the committed offset; to the log's end without one.")] = False,
    to_offset: ToOffsetOption = None,
    shift_by: Annotated[int | None, opt("--shift-by", "N", "By N offsets; backward with -N.")] = None,
    by_duration: Annotated[
        str | None,
        opt("--by-duration", "PnDTnHnMnS", "To this long ago; also 1d2h30m."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        opt(
            "--to-datetime",
            "YYYY-MM-DDTHH:mm:SS.sss",
            "To the first record at or after this time; also 'yesterday 14:00'; UTC without a zone.",
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        opt("--from-file", "FILE", "To the offsets of a file: .avro, .csv, .zk or .json (any other name: CSV)."),
    ] = None,
    skip: Annotated[
        int | None,
        opt("--skip", "N", "Past the next N records of one partition, if the group does not move meanwhile.", min=1),
    ] = None,
    accept_unterminated: UnterminatedOption = False,
    translate: TranslateOption = None,
    export_csv: Annotated[
        bool, flag("--export", "Print the new offsets alone, as CSV that --from-file reads back.")
    ] = False,
    new_group: NewGroup = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Move groups to another position in their logs, by the scenarios of kafka-consumer-groups.

    Exactly one of --to-earliest ... --skip. Offsets outside the log are clamped to it, with a note.
    """
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.reset import ToOffsets, plan_reset
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.groups.topic_matches import require_topics

    selection = groups.selection()
    options = ScenarioOptions(
        to_earliest,
        to_latest,
        to_current,
        to_offset,
        shift_by,
        by_duration,
        to_datetime,
        from_file,
        accept_unterminated,
        skip,
    )
    scenario = scenario_of(
        options,
        selection,
        lambda snapshot: cross_cluster_check("offsets reset", snapshot, connect.store(), translate),
    )
    how = running_edit(running, wait_empty_s, conditional=skip is not None)
    if not isinstance(scenario, ToOffsets):
        check_topics(topic, all_topics)
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    cluster = connect.cluster_for_edit("offsets reset", store)
    if isinstance(scenario, ToOffsets) and groups.all_groups:
        chosen = selection.within(scenario.offsets, f"file {from_file}", hint="")
    else:
        chosen = choose_groups(store, selection)
    connect.wait_until_empty(chosen, wait_empty_s)
    skipped = None if skip is None else skipped_records(connect, store, chosen, topics, skip)
    edit = connect.edit_of("offsets reset", flags, store, how, as_csv=export_csv)
    if skipped is not None:
        scenario = skipped.scenario()
    assert scenario is not None
    proposals = plan_reset(store, cluster, chosen, topics, scenario, create=new_group)
    proposals = proposals if skipped is None else skipped.check(proposals)
    exit_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("delete")
@connected
def delete(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    all_topics: AllTopics = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Delete committed offsets."""
    from offsetmgr.cli.edit_command import exit_edit
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.edits import plan_delete
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.groups.topic_matches import require_topics

    selection = groups.selection()
    check_topics(topic, all_topics)
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, selection)
    how = running_edit(running, wait_empty_s)
    connect.wait_until_empty(chosen, wait_empty_s)
    edit = connect.edit_of("offsets delete", flags, store, how)
    exit_edit(edit.run(require_topics(plan_delete(store, chosen, topics), topics, store.uri)))


class ScenarioOptions(NamedTuple):
    """The values of the options of ``offsets reset`` that select a scenario."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    by_duration: str | None = None
    to_datetime: str | None = None
    from_file: str | None = None
    accept_unterminated: bool = False
    skip: int | None = None


def scenario_of(
    options: ScenarioOptions, selection: GroupSelection, crossing: Callable[[SnapshotFile], CrossClusterCheck]
) -> Scenario | None:
    """Returns the scenario that the options select; None for --skip, whose scenario depends on the log. ``crossing``
    compares the cluster of a snapshot file with the cluster of the target.

    Raises `UsageError` unless the options select exactly one valid scenario. Raises `OtherCluster` if the snapshot file
    belongs to another cluster than the target.
    """
    from offsetmgr.groups.reset import ShiftBy, ToCurrent, ToEarliest, ToLatest, ToOffset

    chosen: list[Scenario] = []
    if options.to_earliest:
        chosen.append(ToEarliest())
    if options.to_latest:
        chosen.append(ToLatest())
    if options.to_current:
        chosen.append(ToCurrent())
    if options.to_offset is not None:
        chosen.append(ToOffset(options.to_offset))
    if options.shift_by is not None:
        chosen.append(ShiftBy(options.shift_by))
    if options.by_duration is not None:
        at = SystemClock().now_ms() - parse_duration(options.by_duration)
        chosen.append(_to_time(at, "--by-duration", f"{options.by_duration} ago"))
    if options.to_datetime is not None:
        at = parse_datetime(options.to_datetime)
        chosen.append(_to_time(at, "--to-datetime", options.to_datetime))
        _warn_of_future(at, options.to_datetime)
    if options.from_file is not None:
        chosen.append(_from_file(options.from_file, selection, crossing, unterminated=options.accept_unterminated))
    if options.skip is not None and not chosen:
        return None
    if options.skip is not None or len(chosen) != 1:
        raise UsageError(
            "offsets reset",
            "several scenarios are given" if chosen else "no scenario is given",
            "exactly one of --to-earliest --to-latest --to-current --to-offset --shift-by --by-duration "
            "--to-datetime --from-file --skip",
        )
    return chosen[0]


def _to_time(at_ms: int, option: str, text: str) -> ToTime:
    """Returns the scenario for a time. Raises `UsageError` for a time that no record can have: the timestamps of
    records are milliseconds since 1970, from 0 to 2^63-1. Negative numbers have other meanings."""
    from offsetmgr.groups.reset import ToTime

    if not 0 <= at_ms < 2**63:
        why = f"{text} is {'before 1970' if at_ms < 0 else 'beyond all times'}, and no record has such a time"
        raise UsageError(option, why, "--to-earliest goes to the log's start, --to-latest to its end")
    return ToTime(at_ms)


def _warn_of_future(at_ms: int, text: str) -> None:
    """Prints a warning if the time is in the future, because a time of another zone was probably given."""
    if (ahead := at_ms - SystemClock().now_ms()) > 0:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        shown = f"--to-datetime {text!r} is {at:%Y-%m-%d %H:%M:%S} UTC"
        note(f"warning: {shown}, {duration(ahead)} in the future: no record has this time, so the log's end is used")
        note("hint: a time without a zone is in UTC; with a zone as in 2026-11-21T09:00:00+09:00")


def _from_file(
    file: str,
    selection: GroupSelection,
    crossing: Callable[[SnapshotFile], CrossClusterCheck],
    *,
    unterminated: bool,
) -> ToOffsets:
    from offsetmgr.groups.export import name_of, open_file, seekable
    from offsetmgr.groups.reset import ToOffsets

    name = None if Path(file).suffix.lower() in (".avro", ".csv", ".zk", ".json") else "csv"
    with (
        seekable(file) as path,
        closing(
            open_file(path, name, selection.single, accept_unterminated=unterminated, shown=name_of(file), note=note)
        ) as snapshot,
    ):
        crossed = crossing(snapshot)
        offsets_by_group: dict[str, dict[TopicPartition, int]] = {}
        rejected: dict[TopicPartition, OffsetMgrError] = {}
        unread: dict[str, GroupOffsets] = {}
        dropped: Counter[str] = Counter()
        for entry in snapshot.read():
            if entry.errors or entry.error:
                unread[entry.group] = entry
            crossed.load_topics({tp.topic for tp in entry.offsets})
            offsets_by_group[entry.group] = {tp: committed.offset for tp, committed in entry.offsets.items()}
            for tp, committed in entry.offsets.items():
                if (error := crossed.recreation_error(tp, committed)) is not None:
                    rejected[tp] = error
            if selection.matches(entry.group):
                dropped.update(form_of(one.metadata) for one in entry.offsets.values() if one.metadata)
        if dropped:
            note(f"warning: a reset does not write {dropped_text(dropped)} that are in {file}; offsets import does")
        return ToOffsets(offsets_by_group, rejected, unread)


class SkippedRecords:
    """The records that the group skips: they begin at ``committed``, the committed offset of ``partition``, and end
    before ``target``."""

    def __init__(self, group: str, partition: TopicPartition, committed: int, target: int) -> None:
        self.group = group
        self.partition = partition
        self.committed = committed
        self.target = target

    def scenario(self) -> ToOffsets:
        from offsetmgr.groups.reset import ToOffsets

        return ToOffsets({self.group: {self.partition: self.target}})

    def check(self, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans. If the group has committed since its offset was read, the change gets the problem
        `Conflict`, because the group would skip other records."""
        for plan in plans:
            yield replace(plan, changes=tuple(self._checked(change) for change in plan.changes))

    def _checked(self, change: PlannedChange) -> PlannedChange:
        before = change.before.offset if isinstance(change.before, Committed) else None
        if change.problem is not None or before == self.committed:
            return change
        why = f"the group has moved from {self.committed} to {before}, so it is not stuck"
        return change._replace(problem=Conflict(str(change.partition), why), writes=False)


def skipped_records(
    connect: ConnectFlags, store: OffsetStore, groups: list[str], topics: TopicSelection, count: int
) -> SkippedRecords:
    """Reads the log from the committed offset on, to find the offset after ``count`` records. Offsets without a record
    (compaction, transactions) do not count.

    Raises `UsageError` unless exactly one group and one partition are named, `GroupNotFound` if nothing is committed,
    and `OffsetOutOfRange` if the committed offset is outside the log or the log has fewer records.
    """
    named = list(topics.numbered(store.capabilities.partitions))
    if len(groups) != 1 or len(named) != 1:
        why = "needs exactly one group and one partition"
        raise UsageError("--skip", why, "as in --group G --topic orders:3 --skip 1")
    (group,), (partition,) = groups, named
    current = store.fetch(group, [partition])[partition]
    if not isinstance(current, Committed):
        raise GroupNotFound(f"group {group!r}", f"has committed nothing in {partition}", "use --to-offset")
    target = _offset_after(connect, partition, current.offset, count)
    return SkippedRecords(group, partition, current.offset, target)


def _offset_after(connect: ConnectFlags, partition: TopicPartition, start: int, count: int) -> int:
    from offsetmgr.consumer.simple import SimpleConsumer

    connect.cluster("offsets reset --skip")  # raises an error if no brokers are known
    at, found, bootstrap = start, 0, connect.bootstrap()
    assert bootstrap is not None
    with SimpleConsumer(bootstrap, config=connect.resolved.connection) as log:
        while True:
            try:
                read = log.fetch({partition: at})[partition]
            except CorruptData as error:
                hint = "the records of a damaged batch cannot be counted: name the offset with --to-offset"
                raise CorruptData(error.what, error.why, hint) from None
            except OffsetOutOfRange as error:  # the hint of the library names a parameter of its consumer
                hint = "--to-earliest goes to the log's start, --to-latest to its end"
                raise OffsetOutOfRange(error.what, error.why, hint) from None
            for record in read.records:
                found += 1
                if found == count:
                    return record.offset + 1
            if read.next_offset <= at or read.next_offset >= read.high_watermark:
                why = (
                    f"{count_of(found, 'record')} {'follows' if found == 1 else 'follow'} the committed offset {start}"
                )
                raise OffsetOutOfRange(f"--skip {count} in {partition}", why, "--to-latest goes to the log's end")
            at = read.next_offset


def noted_outside_logs(
    connect: ConnectFlags, edit: Edit, plans: Iterable[GroupEditPlan], verb: str
) -> Iterator[GroupEditPlan]:
    """Returns the plans with a note on each offset that is outside its log. The edit then warns of these offsets before
    its prompt, with ``verb``, a past participle."""
    from offsetmgr.groups.log_checks import OutsideLogChecks

    if not connect.has_logs(edit.store, note):
        return iter(plans)
    # Brokers that do not respond must not prevent an edit in ZooKeeper, so the cluster is opened late.
    checks = OutsideLogChecks(
        lambda partitions: connect.cluster_for_edit(edit.operation, edit.store).log_ranges(partitions), verb
    )
    edit.more_warnings = checks.warnings
    return checks.noted(plans)
