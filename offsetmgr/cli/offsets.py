"""``offsetmgr offsets``: shows, edits, saves, loads and compares committed offsets."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.app import offsets
from offsetmgr.cli.connect_flags import ConnectFlags, EditFlags, command
from offsetmgr.cli.options import (
    AllowRewind,
    AllTopics,
    FormatOption,
    GroupFilter,
    GroupFlags,
    MemberFlags,
    MetricsOption,
    OneGroup,
    OnlyWithLag,
    Overwrite,
    Rename,
    SavePlan,
    SideConfigs,
    TopicFlags,
    TranslateAuto,
    TranslateOption,
    TranslationFlags,
    UnterminatedOption,
    arg,
    command_group,
    flag,
    opt,
    parse_renames,
    require_choice,
)
from offsetmgr.cli.render import (
    FAILED,
    GROUP_PARTITION,
    LONG_NAME,
    OFFSETS,
    PROMETHEUS,
    Column,
    Meter,
    MetricsFormat,
    OutputFormat,
    note,
    report_and_exit_code,
    shortened,
    write_rows,
    write_samples,
)
from offsetmgr.cli.watch import PartitionFlags, PartitionTable, total_row
from offsetmgr.core import TITLES
from offsetmgr.core.clock import SystemClock, duration
from offsetmgr.core.durations import parse_datetime, parse_duration
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.model import MAX_OFFSET, Committed, OffsetAndMetadata
from offsetmgr.core.plurals import count_of, list_of, printable, raw_json
from offsetmgr.core.scenario import (
    FromFile,
    PastRecords,
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    to_time,
)

if TYPE_CHECKING:
    from offsetmgr.app.offsets import Found, LagRow, NextRecord, OffsetDifference, PositionDifference, Record


app = command_group("Committed offsets.")


LAG: Final = (
    *(c if c.name in ("group", "topic", "partition", "offset") else c._replace(detail=True) for c in OFFSETS),
    Column("log_start_offset", right=True, detail=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True, attention=True),
    Column("note", optional=True),
)


def _cells(row: LagRow) -> tuple[Any, ...]:
    """Cells of `OFFSETS`."""
    group, (topic, number), found = row[:3]
    if isinstance(found, Committed):
        state = row.state if row.note else "committed"  # most rows have no note
        return (group, topic, number, state, found[0], found[1], found[2], found[3])
    return (group, topic, number, row.state, None, None, None, None)


def show(found: Found[Any], shown: int | None) -> int:
    """Prints the errors and the notes of a bulk read, and returns the exit code. See `Found.tell`."""
    code = report_and_exit_code(found.errors)
    found.tell(shown)
    return code


@command(app, "get", many=True, watch=True)
def get(
    connect: ConnectFlags, groups: GroupFlags, topics: TopicFlags, output: FormatOption = OutputFormat.TABLE
) -> int:
    """Show committed offsets.

    Partitions given by number, and those of topics given by full name, are shown even without a commit.
    """
    table = PartitionTable(OFFSETS, PartitionFlags(), output, value="offset")
    found = offsets.get(connect, groups.selection(), topics.selection())
    return show(found, table.write(_cells(row) for one in found for row in one.rows))


@command(app, "lag", many=True, watch=True)
def lag(
    connect: ConnectFlags,
    groups: GroupFlags,
    topics: TopicFlags,
    only_with_lag: OnlyWithLag = False,
    fail_above: Annotated[
        int | None,
        opt(
            "--fail-above",
            "N",
            "Exit with 1 if a group's total lag is above N or unknown, or a commit is missing.",
            min=0,
        ),
    ] = None,
    *,
    flags: PartitionFlags,
    output: MetricsOption = MetricsFormat(OutputFormat.TABLE),
) -> int:
    """Show how far behind the log's end each committed offset is.

    Lag counts from the log's start if the committed offset is below it. Unknown values are null (-).
    """
    selection, table = groups.selection(), PartitionTable(LAG, flags, output)
    if output == PROMETHEUS and (only_with_lag or flags.sort or flags.top):
        raise UsageError("--format prometheus", "has all rows", "leave out --only-with-lag, --sort and --top")
    connect.cluster("offsets lag")  # raises an error if no brokers are known
    options: dict[str, Any] = {"only_with_lag": only_with_lag, "fail_above": fail_above}
    read = partial(offsets.lag, connect, selection, topics.selection(), **options)
    if output == PROMETHEUS:
        from offsetmgr.app.metrics import lag_samples

        found, shown = write_samples("offsets lag", read, partial(lag_samples, totals=flags.show_totals))
    else:
        found = read()
        totals = (total_row(one.name, one.lags) for one in found if one.rows)
        rows = (row for one in found for row in one.rows)
        cells = ((*_cells(row), row.log_start, row.log_end, row.lag, row.note or None) for row in rows)
        shown = table.write(totals if flags.show_totals else cells)
    known = sorted(((lag, _cut(name)) for name, lag in found.above.items() if lag is not None), reverse=True)
    absent = ((_cut(name), count_of(n, "partition") if n else "") for name, n in found.uncommitted.items())
    for what, names in (
        (f"the lag is above {fail_above}", [f"{name} {lag}" for lag, name in known]),
        ("the lag is unknown", [_cut(name) for name, lag in found.above.items() if lag is None]),
        ("nothing committed", [f"{name} ({partitions})" if partitions else name for name, partitions in absent]),
    ):
        if names:
            found.errors.append(OffsetMgrError(f"{what} in {count_of(len(names), 'group')}", list_of(names, _NAMED)))
    return show(found, None if only_with_lag else shown)


def _cut(name: str) -> str:
    return shortened(printable(name), LONG_NAME)


_NAMED: Final = 5
"""Maximum number of groups that a line about lags names."""
PEEKED: Final = (
    *GROUP_PARTITION,
    Column("offset", right=True, rank=1),
    Column("record_offset", right=True, detail=True),
    Column("timestamp", time=True, detail=True),
    Column("age_ms", title="AGE", rank=3),
    Column("size", right=True, rank=4),
    Column("key", rank=2, nested=True),
    Column("value", rank=1, nested=True),
    Column("headers", optional=True, rank=5, nested=True),
    Column("note", optional=True),
)
"""The value is the last column that a narrow table leaves out; the offset is the last but one."""
_CELL: Final = 60
"""Maximum number of characters of a key, a value or headers in a table."""


@command(app, "peek", many=True)
def peek(
    connect: ConnectFlags,
    groups: GroupFlags,
    topics: TopicFlags,
    max_bytes: Annotated[int, opt("--max-bytes", "N", "At most N bytes of a key, value or header.", min=0)] = 1_000,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Show the record at the committed offset of each partition: the one that a consumer gets next.

    It joins no group and commits nothing. Transaction markers, which consumers never get, are skipped.
    """
    found = offsets.peek(connect, groups.selection(), topics.selection())
    rows = [_peeked_row(one, max_bytes, output) for one in found]
    return show(found, write_rows(PEEKED, rows, output))


def _peeked_row(one: NextRecord, max_bytes: int, output: OutputFormat) -> tuple[Any, ...]:
    record, table = one.record, output.for_people
    if record is None:
        return (one.group, *one.partition, one.offset, *(None,) * 7, one.note)
    age = None if record.timestamp is None else SystemClock().now_ms() - record.timestamp
    shown_age = duration(age) if table and age is not None else age
    texts = (_text(one, max_bytes, table) for one in (record.key, record.value))
    numbers = (one.offset, record.offset, record.timestamp, shown_age, _size(record))
    return (one.group, *one.partition, *numbers, *texts, _headers(record, max_bytes, table), one.note)


def _text(data: bytes | None, max_bytes: int, table: bool) -> Any:
    """Returns a key or value as text, or as hexadecimal digits if it is no text. Cuts it at ``max_bytes``."""
    from offsetmgr.cli.log import display_text

    if data is None:
        return None
    is_text, shown = isinstance(raw_json(data), str), data[:max_bytes]
    found = raw_json(shown.decode(errors="ignore").encode() if is_text else shown)  # a character may be cut
    cut = "" if len(shown) == len(data) else f"... ({len(data):,} bytes)"
    if not table:
        return f"{found}{cut}" if isinstance(found, str) else found
    text = display_text(found) or ""
    return f"{text[:_CELL]}... ({len(data):,} bytes)" if cut or len(text) > _CELL else text


def _headers(record: Record, max_bytes: int, table: bool) -> Any:
    from offsetmgr.cli.log import display_text

    if not record.headers:
        return None
    if not table:
        return [{"name": name, "value": _text(value, max_bytes, table)} for name, value in record.headers]
    text = ", ".join(f"{name}={display_text(raw_json(value))}" for name, value in record.headers)
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def _size(record: Record) -> int:
    """The number of bytes of the key, the value and the headers."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


NewGroup = Annotated[bool, flag("--new-group", "Allow a group that does not exist yet.")]
FileArgument = Annotated[
    str, arg("FILE", ".avro (lossless), .csv, .zk or .json; - with --as: standard input or output.")
]
FileFormat = Annotated[
    str | None,
    opt("--as", "FORMAT", "avro|csv|zk|json|spark, if the file name extension does not show it."),
]


def _offset(text: str) -> int:
    """Parses an offset. Accepts only digits, whereas Python's ``int`` would also accept ``1_000``."""
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not an offset.")
    if len(text.lstrip("0")) > len(str(MAX_OFFSET)) or int(text) > MAX_OFFSET:
        raise typer.BadParameter(f"{text[:30]!r} is beyond the largest offset, {MAX_OFFSET}.")
    return int(text)


@command(app, "set")
def set_offsets(
    connect: ConnectFlags,
    group: OneGroup,
    topics: TopicFlags,
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
    *,
    members: MemberFlags,
    flags: EditFlags,
) -> int:
    """Commit an offset exactly as given; an offset outside its log gets a warning.

    A --topic without numbers means its committed partitions. The warning needs brokers. offsets reset clamps an offset
    outside its log.
    """
    to, keeps, chosen = OffsetAndMetadata(to_offset, metadata or ""), metadata is None, topics.selection()
    active = members.active()
    return flags.run(offsets.set_(connect, group, to, chosen, keeps_metadata=keeps, create=new_group, active=active))


@command(app, "reset")
def reset(
    connect: ConnectFlags,
    groups: GroupFlags,
    topics: TopicFlags,
    all_topics: AllTopics = False,
    to_earliest: Annotated[bool, flag("--to-earliest", "To the log's start.")] = False,
    to_latest: Annotated[bool, flag("--to-latest", "To the log's end.")] = False,
    to_current: Annotated[bool, flag("--to-current", "To the committed offset; to the log's end without one.")] = False,
    to_offset: Annotated[int | None, opt("--to-offset", "N", "Move to this offset.", parser=_offset)] = None,
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
    plan: SavePlan = None,
    *,
    members: MemberFlags,
    flags: EditFlags,
) -> int:
    """Move groups to another position in their logs, by the scenarios of kafka-consumer-groups.

    Exactly one of --to-earliest ... --skip. Offsets outside the log are clamped to it, with a note. A share group
    without members gets another start offset.
    """
    selection = groups.selection()
    scenarios: dict[str, Scenario | FromFile | PastRecords | None] = {
        "--to-earliest": ToEarliest() if to_earliest else None,
        "--to-latest": ToLatest() if to_latest else None,
        "--to-current": ToCurrent() if to_current else None,
        "--to-offset": None if to_offset is None else ToOffset(to_offset),
        "--shift-by": None if shift_by is None else ShiftBy(shift_by),
        "--by-duration": None if by_duration is None else _ago(by_duration),
        "--to-datetime": None if to_datetime is None else _to_datetime(to_datetime),
        "--from-file": None if from_file is None else FromFile(from_file, accept_unterminated, translate),
        "--skip": None if skip is None else PastRecords(skip),
    }
    given = [one for one in scenarios.values() if one is not None]
    if len(given) != 1:
        why = "several scenarios are given" if given else "no scenario is given"
        raise UsageError("offsets reset", why, f"exactly one of {' '.join(scenarios)}")
    (to,) = given
    if from_file is None:
        require_choice("--topic", topics.topic, "--all-topics", all_topics)
    edit = offsets.reset(connect, selection, to, topics.selection(), create=new_group, active=members.active())
    return flags.run(edit, as_csv=export_csv, plan=plan or "")


@command(app, "delete")
def delete(
    connect: ConnectFlags,
    groups: GroupFlags,
    topics: TopicFlags,
    all_topics: AllTopics = False,
    *,
    members: MemberFlags,
    flags: EditFlags,
) -> int:
    """Delete committed offsets."""
    selection = groups.selection()
    require_choice("--topic", topics.topic, "--all-topics", all_topics)
    return flags.run(offsets.delete(connect, selection, topics.selection(), active=members.active()))


def _ago(text: str) -> ToTime:
    return to_time(SystemClock().now_ms() - parse_duration(text), "--by-duration", f"{text} ago")


def _to_datetime(text: str) -> ToTime:
    """Returns the scenario for a time. Prints a warning if the time is in the future, because a time of another zone
    was probably given."""
    at_ms = parse_datetime(text)
    scenario = to_time(at_ms, "--to-datetime", text)
    if (ahead := at_ms - SystemClock().now_ms()) > 0:
        shown = f"--to-datetime {text!r} is {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        note(f"warning: {shown}, {duration(ahead)} in the future: no record has this time, so the log's end is used")
        note("hint: a time without a zone is in UTC; with a zone as in 2026-11-21T09:00:00+09:00")
    return scenario


EXPORTED: Final = (Column("file"), Column("groups", right=True), Column("offsets", right=True))
"""The rows of an export of several clusters."""


@command(app, "export", many=True)
def export(
    connect: ConnectFlags,
    file: FileArgument,
    groups: GroupFlags,
    topics: TopicFlags,
    file_format: FileFormat = None,
    header: Annotated[
        bool, flag("--header", "Name the columns in the first line of CSV; kafka-consumer-groups rejects it.")
    ] = False,
    overwrite: Overwrite = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write committed offsets to a snapshot file.

    If --context selects several clusters, each gets a file of its own: backup-CONTEXT.avro for backup.avro.
    """
    selection = groups.selection()
    if connect.cluster_name:
        connect.reject_for_many({"FILE -": file == "-"}, "each cluster needs a file of its own")
        path_of_all = Path(file)
        file = str(path_of_all.with_stem(f"{path_of_all.stem}-{connect.cluster_name}"))
    failed: list[OffsetMgrError] = []
    options: dict[str, Any] = {"format": file_format, "header": header, "overwrite": overwrite}
    done = offsets.export(connect, file, selection, topics.selection(), **options, on_error=failed.append)
    if connect.cluster_name:
        write_rows(EXPORTED, [(file, done.groups, done.offsets)], output)
    where = "standard output" if file == "-" else file
    note(f"exported {count_of(done.offsets, 'offset')} of {count_of(done.groups, 'group')} to {where}")
    for lost in done.lost:
        note(f"not in the file, because its format cannot hold it: {lost}")
    if failed:
        records = "records what could not be read" if done.errors else "does not record which groups it lacks"
        note(f"warning: {where} is incomplete, and {records}")
        raise typer.Exit(report_and_exit_code(failed))


@command(app, "import")
def import_offsets(
    connect: ConnectFlags,
    file: FileArgument,
    groups: GroupFilter,
    topics: TopicFlags,
    file_format: FileFormat = None,
    unterminated: UnterminatedOption = False,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    unchecked: Annotated[
        bool, flag("--unchecked", "Write the offsets without a check against topics and logs.")
    ] = False,
    *,
    members: MemberFlags,
    flags: EditFlags,
) -> int:
    """Load the offsets of a snapshot file into a store.

    If brokers are known, offsets are checked as by offsets reset: an offset outside its log is clamped, and one of a
    missing topic is rejected. A file of before-images undoes its edit: overwritten offsets are restored, created ones
    are deleted, and offsets that have moved since are rejected unless --allow-rewind. An undo restores offsets exactly:
    an offset outside its log gets a note and a warning, and is not clamped. A file that --plan has saved is executed as
    a whole, or refused if an offset that it replaces or copies has changed since, if the group that it copies has a new
    one, or if one that it sets has left its log. --group names the group for files that do not contain it.
    """
    options = offsets.ImportOptions(file_format, unterminated, translate, allow_rewind, unchecked)
    chosen = groups.selection()
    return flags.run(offsets.import_(connect, file, chosen, topics.selection(), options, active=members.active()))


DIFFERENCES: Final = (
    *GROUP_PARTITION,
    Column("difference"),
    Column("from_offset", right=True, title="FROM"),
    Column("to_offset", right=True, title="TO"),
    Column("from_metadata", optional=True),
    Column("to_metadata", optional=True),
)
KINDS: Final = {"only-left": "only-from", "only-right": "only-to"}
"""Maps the name of a difference between two stores to its name in the output. The names in the output refer to the
options --from and --to."""


TRANSLATED: Final = (
    *GROUP_PARTITION,
    Column("from_offset", right=True, title="FROM"),
    Column("to_offset", right=True, title="TO"),
    Column("right_offset", right=True, title="RIGHT"),
    Column("right_end", right=True, detail=True),
    Column("repeats", right=True),
    Column("skips", right=True),
    Column("verdict"),
    Column("note", optional=True),
    Column("to_topic", detail=True),
)


@command(app, "diff", many=True)
def diff(
    connect: ConnectFlags,
    source: Annotated[
        str | None,
        opt("--from", "URI", "One store: a URI, or zookeeper, kafka or manager of the context (default: zookeeper)."),
    ] = None,
    target: Annotated[
        str | None,
        opt("--to", "URI", "The other store, in the same form: zookeeper, kafka or manager (default: kafka)."),
    ] = None,
    *,
    groups: GroupFlags,
    topics: TopicFlags,
    translate: TranslateAuto = None,
    translation: TranslationFlags,
    rename: Rename = None,
    configs: SideConfigs,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Show the differences between two stores.

    The exit code is 1 on any difference. Without --from and --to, the command compares the configured ZooKeeper with
    the configured brokers, also of several contexts. Without --group it compares all groups of both stores.
    With --translate auto, it reads the logs of two clusters, and shows each partition in which a group is not at the
    right record in the target, or is not known to be. Only positions with the verdict seen count as known. --topic and
    --group select names in the source.
    """
    selection = groups._replace(all_groups=groups.all_groups or not groups.group).selection()
    given = {"--from": source not in TITLES and source, "--to": target not in TITLES and target}
    connect.reject_for_many(given, "it names a store of one cluster")
    sides = connect.of_sides(*configs)
    if (rules := translation.chosen(translate)) is not None:
        if not isinstance(rules, TranslationRules):
            raise UsageError("--translate none", "diff compares the offsets without it", "leave it out")
        hint = "name both clusters with --from and --to; kafka is that of the context: --context NAME --from kafka"
        connect.reject_for_many({"--translate": True}, "it compares two clusters", hint)
        chosen, renamed = topics.selection(), parse_renames(rename)
        positions = offsets.diff_translated(
            connect, source, target, selection, chosen, rules=rules, rename=renamed, sides=sides
        )
        count = write_rows(TRANSLATED, map(_position_row, positions), output)
        code = report_and_exit_code(positions.errors)
        if positions.counts.total:
            note(str(positions.counts))
        return FAILED if count else code
    found = offsets.diff(connect, source, target, selection, topics.selection(), sides=sides)
    count = write_rows(DIFFERENCES, map(_difference_row, found), output)
    code = report_and_exit_code(found.errors)
    if count:
        note(count_of(count, "difference"))
    elif not code:
        note(f"no difference in {count_of(len(found.groups), 'group')}")
    return FAILED if count else code


def _position_row(one: PositionDifference) -> tuple[Any, ...]:
    Meter.clear()
    where, to_topic = one.partition or (None, None), one.target.topic if one.target else None
    offsets = (one.from_offset, one.to_offset, one.right, one.right_end, one.repeats, one.skips)
    return (one.group, *where, *offsets, one.verdict, one.note or None, to_topic)


def _difference_row(one: OffsetDifference) -> tuple[Any, ...]:
    a, b = (side if isinstance(side, Committed) else None for side in (one.left, one.right))
    where, offsets = one.partition or (None, None), (a and a.offset, b and b.offset)
    metadata = (a and a.metadata, b and b.metadata) if one.kind == "metadata" else (None, None)
    return (one.group, *where, KINDS.get(one.kind, one.kind), *offsets, *metadata)
