"""``offsetmgr offsets get|lag|peek|export|import|diff``: shows, saves, loads and compares committed offsets."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.app import offsets
from offsetmgr.cli import offset_edits
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, report_and_exit_code
from offsetmgr.cli.followup_commands import delete_groups_command
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import (
    AllowRewind,
    FormatOption,
    GroupFilter,
    GroupFlags,
    OnlyWithLag,
    Overwrite,
    RunningFlag,
    TopicFlags,
    TopicsOption,
    TranslateOption,
    UnterminatedOption,
    WaitEmpty,
    flag,
    opt,
    running_edit,
)
from offsetmgr.cli.render import (
    GROUP_PARTITION,
    Column,
    OutputFormat,
    note,
    progress,
    write_rows,
    write_structured_rows,
)
from offsetmgr.cli.row_order import PartitionFlags, PartitionTable
from offsetmgr.cli.terminal import EditFlags
from offsetmgr.cli.watch import WatchCommand, watched
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.clock_difference import duration
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.model import Committed
from offsetmgr.core.plurals import count_of, raw_json
from offsetmgr.core.selection import TopicSelection

if TYPE_CHECKING:
    from offsetmgr.app.offsets import Found, LagRow, NextRecord, OffsetDifference, Record
    from offsetmgr.core.offset_store import GroupOffsets, OffsetStore


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Committed offsets.")


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


def _cells(row: LagRow) -> tuple[Any, ...]:
    """Cells of `OFFSETS`."""
    group, (topic, number), found = row[:3]
    if isinstance(found, Committed):
        return (group, topic, number, "committed", found[0], found[1], found[2], found[3])
    return (group, topic, number, row.state, None, None, None, None)


def show(found: Found[Any], shown: int | None) -> int:
    """Prints the errors and the notes of a bulk read, and returns the exit code. See `Found.tell`."""
    code = report_and_exit_code(found.errors)
    found.tell(shown)
    return code


@app.command("get", cls=WatchCommand)
@connected
@many_clusters
@watched
def get(
    connect: ConnectFlags, groups: GroupFlags, topics: TopicFlags, output: FormatOption = OutputFormat.TABLE
) -> int:
    """Show committed offsets.

    Partitions given by number, and those of topics given by full name, are shown even without a commit.
    """
    table = PartitionTable(OFFSETS, PartitionFlags(output=output), value="offset")
    found = offsets.get(connect, groups.selection(), topics.selection())
    return show(found, table.write(_cells(row) for one in found for row in one.rows))


@app.command("lag", cls=WatchCommand)
@connected
@many_clusters
@watched
def lag(
    connect: ConnectFlags,
    groups: GroupFlags,
    topics: TopicFlags,
    only_with_lag: OnlyWithLag = False,
    *,
    flags: PartitionFlags,
) -> int:
    """Show how far behind the log's end each committed offset is.

    Lag counts from the log's start if the committed offset is below it. Unknown values are null (-).
    """
    selection, table = groups.selection(), PartitionTable(LAG, flags)
    connect.cluster("offsets lag")  # raises an error if no brokers are known
    found = offsets.lag(connect, selection, topics.selection(), only_with_lag=only_with_lag)
    rows = ((*_cells(row), row.log_start, row.log_end, row.lag, row.note or None) for one in found for row in one.rows)
    shown = table.write(rows)
    return show(found, None if only_with_lag else shown)


PEEKED: Final = (
    *GROUP_PARTITION,
    Column("offset", right=True, rank=1),
    Column("record_offset", right=True, detail=True),
    Column("timestamp", time=True, detail=True),
    Column("age_ms", title="AGE", rank=3),
    Column("size", right=True, rank=4),
    Column("key", rank=2),
    Column("value", rank=1),
    Column("headers", optional=True, rank=5),
    Column("note", optional=True),
)
"""The value is the last column that a narrow table leaves out; the offset is the last but one."""
_CELL: Final = 60
"""Maximum number of characters of a key, a value or headers in a table."""


@app.command("peek")
@connected
@many_clusters
def peek(
    connect: ConnectFlags,
    groups: GroupFlags,
    topics: TopicFlags,
    max_bytes: Annotated[int, opt("--max-bytes", "N", "Show at most N bytes of a key or value.", min=0)] = 1_000,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Show the record at the committed offset of each partition: the one that a consumer gets next.

    It joins no group and commits nothing. Transaction markers, which consumers never get, are skipped.
    """
    found = offsets.peek(connect, groups.selection(), topics.selection())
    rows = [_peeked_row(one, max_bytes, output) for one in found]
    shown = (write_rows if output is OutputFormat.TABLE else write_structured_rows)(PEEKED, rows, output)
    return show(found, shown)


def _peeked_row(one: NextRecord, max_bytes: int, output: OutputFormat) -> tuple[Any, ...]:
    record, table = one.record, output is OutputFormat.TABLE
    if record is None:
        return (one.group, *one.partition, one.offset, *(None,) * 7, one.note)
    age = None if record.timestamp is None else SystemClock().now_ms() - record.timestamp
    shown_age = duration(age) if table and age is not None else age
    cells = (_text(record.key, max_bytes, table), _text(record.value, max_bytes, table), _headers(record, table))
    numbers = (one.offset, record.offset, record.timestamp, shown_age, _size(record))
    return (one.group, *one.partition, *numbers, *cells, one.note)


def _text(data: bytes | None, max_bytes: int, table: bool) -> Any:
    """Returns a key or value as text, or as hexadecimal digits if it is no text. Cuts it at ``max_bytes``."""
    from offsetmgr.cli.log import display_text

    if data is None:
        return None
    shown = data[:max_bytes]
    if len(shown) < len(data):  # a character may be cut
        shown = shown.decode(errors="ignore").encode() if _is_text(data) else shown
    found = raw_json(shown)
    cut = "" if len(shown) == len(data) else f"... ({len(data):,} bytes)"
    if not table:
        return f"{found}{cut}" if cut and isinstance(found, str) else found
    text = display_text(found) or ""
    return f"{text[:_CELL]}... ({len(data):,} bytes)" if cut or len(text) > _CELL else text


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers(record: Record, table: bool) -> Any:
    from offsetmgr.cli.log import display_text

    if not record.headers:
        return None
    pairs = [(name, raw_json(value)) for name, value in record.headers]
    if not table:
        return [{"name": name, "value": value} for name, value in pairs]
    text = ", ".join(f"{name}={display_text(value)}" for name, value in pairs)
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def _size(record: Record) -> int:
    """The number of bytes of the key, the value and the headers."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


EXPORTED: Final = (Column("file"), Column("groups", right=True), Column("offsets", right=True))
"""The rows of an export of several clusters."""

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help=".avro (lossless), .csv, .zk or .json; - with --as: standard input or output.",
    ),
]
FileFormat = Annotated[
    str | None,
    opt("--as", "FORMAT", "avro|csv|zk|json|spark, if the file name extension does not show it."),
]


app.registered_commands += offset_edits.app.registered_commands


@app.command("export")
@connected
@many_clusters
def export(
    connect: ConnectFlags,
    file: FileArgument,
    groups: GroupFlags,
    topic: TopicsOption = None,
    file_format: FileFormat = None,
    overwrite: Overwrite = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write committed offsets to a snapshot file.

    If --context selects several clusters, each gets a file of its own: backup-CONTEXT.avro for backup.avro.
    """
    from offsetmgr.core.version import __version__
    from offsetmgr.groups.before_images import header_for
    from offsetmgr.groups.export import export_groups
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.snapshots.registry import format_name
    from offsetmgr.stores.snapshot import write_snapshot

    selection = groups.selection()
    topics = TopicSelection.parse(topic or [])
    name = format_name(file, file_format)
    if connect.cluster_name:
        connect.reject_for_many({"FILE -": file == "-"}, "each cluster needs a file of its own")
        path_of_all = Path(file)
        file = str(path_of_all.with_stem(f"{path_of_all.stem}-{connect.cluster_name}"))
    store = connect.store_to_read(selection)
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, selection)
    ids = {name: topic_id for name, topic_id in store.topic_ids().items() if topics.matches_topic(name)}
    header = header_for(store, f"offsetmgr {__version__}", ids)
    failed: list[OffsetMgrError] = []

    def noted(found: GroupOffsets) -> GroupOffsets:
        connect.warn_of_unrecognised(found.unrecognised)
        return found

    exported = export_groups(store, chosen, topics, strict=not groups.all_groups)
    with _written_to(file) as path:
        done = write_snapshot(
            path,
            header,
            progress(map(noted, exported), "exporting", len(chosen)),
            format=name,
            group=chosen[0] if name == "spark" and len(chosen) == 1 else None,
            overwrite=overwrite,
            keep_errors=True,
            on_error=failed.append,
        )
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


@contextmanager
def _written_to(file: str) -> Iterator[str]:
    """Yields the path to which the snapshot is written. If ``file`` is ``-``, yields the path of a temporary file, and
    copies this file to standard output when the snapshot is complete. Therefore a failure leaves no partial output."""
    if file != "-":
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="offsetmgr-") as directory:
        path = Path(directory) / "standard-output"
        yield str(path)
        with path.open("rb") as written:
            shutil.copyfileobj(written, sys.stdout.buffer)
        sys.stdout.flush()


def _note_empty_groups(store: OffsetStore, created: list[str], options: Sequence[str]) -> None:
    """Prints the groups that exist without offsets after an edit was undone.

    The undo deleted the offsets that the edit had created in these groups. The groups may have existed without offsets
    before the edit.
    """
    from offsetmgr.groups.edits import groups_left_without_offsets

    if stay := groups_left_without_offsets(store, created):
        others = f" and {count_of(len(stay) - 1, 'other')}" if len(stay) > 1 else ""
        note(f"group {stay[0]!r}{others} {'stay' if others else 'stays'}, empty")
        note(f"to remove: {delete_groups_command(store.uri, stay, options)}")


@app.command("import")
@connected
def import_offsets(
    connect: ConnectFlags,
    file: FileArgument,
    groups: GroupFilter,
    topic: TopicsOption = None,
    file_format: FileFormat = None,
    unterminated: UnterminatedOption = False,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    unchecked: Annotated[
        bool, flag("--unchecked", "Write the offsets without a check against topics and logs.")
    ] = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Load the offsets of a snapshot file into a store.

    If brokers are known, offsets are checked as by offsets reset: an offset outside its log is clamped, and one of a
    missing topic is rejected. A file of before-images undoes its edit: overwritten offsets are restored, created ones
    are deleted, and offsets that have moved since are rejected unless --allow-rewind. An undo restores offsets exactly:
    an offset outside its log gets a note and a warning, and is not clamped. --group names the group for files that do
    not contain it.
    """
    from offsetmgr.app.planned_edit import log_checks
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.cli.offset_edits import noted_outside_logs
    from offsetmgr.groups.before_images import holds_images, load_images
    from offsetmgr.groups.edits import plan_import, plan_undo
    from offsetmgr.groups.export import name_of, open_file, seekable
    from offsetmgr.groups.topic_matches import require_topics
    from offsetmgr.snapshots.registry import format_name

    topics, selection = TopicSelection.parse(topic or []), groups.selection()
    how = running_edit(running, wait_empty_s)
    store = connect.store()
    topics.within(store.capabilities.partitions)
    if file == "-" and file_format is None:
        format_name(file)  # raises an error, because the format of standard input is unknown
    where = name_of(file) if file == "-" else f"file {file}"
    with seekable(file) as path:
        if holds_images(path):
            with closing(open_file(path, "avro")) as images_file:
                crossing = cross_cluster_check("offsets import", images_file, store, translate)
            undone = selection.within((one.group for one in load_images(path)), where, hint="")
            connect.wait_until_empty(undone, wait_empty_s)
            edit = connect.edit_of("offsets import undo", flags, store, how)
            selected = set(undone)
            images = (one for one in load_images(path) if one.group in selected)
            note(f"{file} holds before-images: undoing that edit")
            proposals = plan_undo(store, images, topics, force=allow_rewind, crossing=crossing)
            proposals = proposals if unchecked else noted_outside_logs(connect, edit, proposals, "restored")
            code = edit.run(require_topics(proposals, topics, file))
            if edit.confirmed:
                created = (one.group for one in load_images(path) if not (one.before or one.nodes))
                _note_empty_groups(store, [one for one in created if one in selected], connect.undo_options(store))
            exit_edit(code)
            return
        opened = open_file(
            path, file_format, selection.single, accept_unterminated=unterminated, shown=name_of(file), note=note
        )
        with closing(opened) as snapshot:
            chosen = selection.within(snapshot.groups(), where, hint="")
            if not chosen:
                raise GroupNotFound(where, "holds no groups")
            connect.wait_until_empty(chosen, wait_empty_s)
            edit = connect.edit_of("offsets import", flags, store, how)
            entries = snapshot.read(set(chosen))
            crossing = cross_cluster_check("offsets import", snapshot, store, translate)
            checks = None if unchecked else log_checks(connect, store, note)
            proposals = plan_import(store, entries, topics, allow_rewind=allow_rewind, crossing=crossing, checks=checks)
            exit_edit(edit.run(require_topics(proposals, topics, file)))


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


@app.command("diff")
@connected
@many_clusters
def diff(
    connect: ConnectFlags,
    source: Annotated[
        str | None,
        opt("--from", "URI", "One store (default: the configured ZooKeeper)."),
    ] = None,
    target: Annotated[
        str | None,
        opt("--to", "URI", "The other store (default: the configured brokers)."),
    ] = None,
    *,
    groups: GroupFlags,
    topics: TopicFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Show the differences between two stores; the exit code is 1 on any difference.

    Without --from and --to, the command compares the configured ZooKeeper with the configured brokers, also of several
    contexts. Without --group it compares all groups of both stores.
    """
    selection = groups._replace(all_groups=groups.all_groups or not groups.group).selection()
    connect.reject_for_many({"--from": source, "--to": target}, "it names a store of one cluster")
    found = offsets.diff(connect, source, target, selection, topics.selection())
    count = write_rows(DIFFERENCES, map(_difference_row, found), output)
    code = report_and_exit_code(found.errors)
    if count:
        note(count_of(count, "difference"))
    elif not code:
        note(f"no difference in {count_of(len(found.groups), 'group')}")
    return FAILED if count else code


def _difference_row(one: OffsetDifference) -> tuple[Any, ...]:
    a, b = (side if isinstance(side, Committed) else None for side in (one.left, one.right))
    metadata = one.kind == "metadata"
    return (
        one.group,
        *(one.partition or (None, None)),
        KINDS.get(one.kind, one.kind),
        a.offset if a else None,
        b.offset if b else None,
        a.metadata if a and metadata else None,
        b.metadata if b and metadata else None,
    )
