"""``offsetmgr offsets get|lag|peek|export|import|diff``: shows, saves, loads and compares committed offsets."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli import offset_edits
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, fail_if, report_and_exit_code
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
    TopicsOption,
    TranslateOption,
    UnterminatedOption,
    WaitEmpty,
    flag,
    opt,
    running_edit,
)
from offsetmgr.cli.read_error_report import ReadErrorReport, note_unrecognised, unrecognised_errors
from offsetmgr.cli.render import (
    GROUP_PARTITION,
    Column,
    OutputFormat,
    note,
    progress,
    write_rows,
    write_structured_rows,
)
from offsetmgr.cli.row_order import PartitionTable, Sort, Top, Totals
from offsetmgr.cli.stale_offsets import StaleOffsetCounter
from offsetmgr.cli.terminal import EditFlags
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.clock_difference import duration
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, OffsetOutOfRange, TopicNotAuthorized, UsageError
from offsetmgr.core.model import Committed, Offset, TopicPartition
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.consumer.peek import PeekedRecord, RecordPeeker
    from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.segments.batch_reader import Record


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
    topic: TopicsOption = None,
    max_bytes: Annotated[int, opt("--max-bytes", "N", "Show at most N bytes of a key or value.", min=0)] = 1_000,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the record at the committed offset of each partition: the one that a consumer gets next.

    It joins no group and commits nothing. Transaction markers, which consumers never get, are skipped.
    """
    from offsetmgr.consumer.peek import RecordPeeker
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.scan import choose_groups, require_known, scan_in_order

    selection = groups.selection()
    topics = TopicSelection.parse(topic or [])
    connect.cluster("offsets peek")  # raises an error if no brokers are known
    bootstrap = connect.bootstrap()
    assert bootstrap is not None
    store = connect.store_of(selection)
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, selection)
    named = selection.named(chosen)
    errors = ReadErrorReport()
    uncommitted = UncommittedTopics(store.uri, topics, errors)
    rows: list[tuple[Any, ...]] = []
    with RecordPeeker(bootstrap, connect.resolved.connection) as peeker:
        for found in progress(scan_in_order(store, chosen), "reading", len(chosen)):
            if found.error is not None:
                errors.add(found.error)
                continue
            for hidden in unrecognised_errors(found):
                errors.add(hidden)
            if found.group in named and not (found.offsets or found.errors):
                try:
                    require_known(store, [found.group])
                except GroupNotFound as absent:
                    absent = connect.with_other_store(absent, selected=len(chosen))
                    errors.add_or_raise(absent, len(chosen))
                    continue
            committed = [tp for tp in (*found.offsets, *found.errors) if topics.matches(tp)]
            uncommitted.record(found.group, committed, named=found.group in named)
            rows += _rows(peeker, found, topics.matches, max_bytes, errors, output)
    if output is OutputFormat.TABLE:
        write_rows(PEEKED, rows, output)
    else:
        write_structured_rows(PEEKED, rows, output)
    uncommitted.report(len(rows))
    exit_with(errors.exit_code)


def _rows(
    peeker: RecordPeeker,
    found: GroupOffsets,
    matches: Any,
    max_bytes: int,
    errors: ReadErrorReport,
    output: OutputFormat,
) -> Iterator[tuple[Any, ...]]:
    offsets = {tp: one.offset for tp, one in found.offsets.items() if isinstance(one, Committed) and matches(tp)}
    for tp, error in sorted(found.errors.items()):
        if matches(tp):
            errors.add(error)
    peeked = peeker.peek(offsets) if offsets else {}
    for tp, offset in sorted(offsets.items()):
        outcome = peeked[tp]
        if isinstance(outcome, OffsetMgrError):
            if not isinstance(outcome, OffsetOutOfRange):
                errors.add(outcome)
            yield (found.group, *tp, offset, *(None,) * 7, _error_note(outcome, offset))
        else:
            yield (found.group, *tp, offset, *_record_cells(outcome, offset, max_bytes, output))


def _error_note(error: OffsetMgrError, offset: int) -> str:
    """Returns the note of a partition without a record."""
    log = error.log_range if isinstance(error, OffsetOutOfRange) else None
    if log is None:
        return error.why or str(error)
    if offset < log.start:
        return f"removed: the log begins at {log.start}"
    return f"beyond the log, which ends at {log.end}"


def _record_cells(outcome: PeekedRecord, offset: int, max_bytes: int, output: OutputFormat) -> tuple[Any, ...]:
    record, notes = outcome.record, []
    if outcome.markers:
        notes.append(f"{count_of(outcome.markers, 'transaction marker')} skipped")
    if record is None:
        end = outcome.log_end
        readable = f"consumers may read up to {end} (high watermark)"
        if offset < end:
            notes.insert(0, f"no record from {offset} up to {end} (high watermark)")
        else:
            notes.insert(0, f"{'no record yet' if offset == end else 'not readable yet'}: {readable}")
        return (*(None,) * 7, "; ".join(notes))
    if gap := record.offset - offset - outcome.markers:
        notes.append(f"{count_of(gap, 'offset')} without a record before {record.offset}")
    elif outcome.markers:
        notes.append(f"record {record.offset}")
    if outcome.transactional:
        notes.append("part of a transaction, which may be open or aborted")
    if record.value is None:
        notes.append("tombstone")
    age = None if record.timestamp is None else SystemClock().now_ms() - record.timestamp
    table = output is OutputFormat.TABLE
    if table and age is not None:
        shown_age: Any = duration(age)
    else:
        shown_age = age
    cells = (_text(record.key, max_bytes, table), _text(record.value, max_bytes, table), _headers(record, table))
    return record.offset, record.timestamp, shown_age, _size(record), *cells, "; ".join(notes) or None


def _text(data: bytes | None, max_bytes: int, table: bool) -> Any:
    """Returns a key or value as text, or as hexadecimal digits if it is no text. Cuts it at ``max_bytes``."""
    from offsetmgr.cli.log import display_text, raw_json

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
    from offsetmgr.cli.log import display_text, raw_json

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
    from offsetmgr.core.selection import TopicSelection
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
    store = connect.store_of(selection)
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, selection)
    ids = {name: topic_id for name, topic_id in store.topic_ids().items() if topics.matches_topic(name)}
    header = header_for(store, f"offsetmgr {__version__}", ids)
    failed: list[OffsetMgrError] = []

    def noted(found: GroupOffsets) -> GroupOffsets:
        note_unrecognised(found.unrecognised)
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
    from offsetmgr.core.selection import TopicSelection
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
    topic: TopicsOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the differences between two stores; the exit code is 1 on any difference.

    Without --from and --to, the command compares the configured ZooKeeper with the configured brokers, also of several
    contexts. Without --group it compares all groups of both stores.
    """
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.diff import diff as differences
    from offsetmgr.groups.scan import require_kind
    from offsetmgr.groups.topic_matches import TopicMatches

    selection = groups._replace(all_groups=groups.all_groups or not groups.group).selection()
    topics = TopicSelection.parse(topic or [])
    connect.reject_for_many({"--from": source, "--to": target}, "it names a store of one cluster")
    left, right = _sides(connect, source, target)
    topics.within(left.capabilities.partitions, right.capabilities.partitions)
    known = {*left.groups(), *right.groups()}
    try:
        chosen = selection.within(known, f"{left.uri} and {right.uri}")
    except GroupNotFound:
        for name, store in product(sorted(selection.names - known), (left, right)):
            require_kind(store, name)
        raise
    if not chosen:
        raise GroupNotFound(
            "nothing to compare", f"no groups in {left.uri} nor in {right.uri}", "check the addresses and the chroot"
        )
    errors, topic_matches = ReadErrorReport(), TopicMatches(topics)
    found = differences(left, right, progress(chosen, "comparing", len(chosen)), topics, topic_matches)

    def rows() -> Iterator[tuple[Any, ...]]:
        for name, tp, kind, here, there, error in found:
            if error is not None:
                errors.add(error)
            a, b = (c if isinstance(c, Committed) else None for c in (here, there))
            yield (
                name,
                tp.topic if tp else None,
                tp.partition if tp else None,
                KINDS.get(kind, kind),
                a.offset if a else None,
                b.offset if b else None,
                a.metadata if a and kind == "metadata" else None,
                b.metadata if b and kind == "metadata" else None,
            )

    count = 0

    def counted() -> Iterator[tuple[Any, ...]]:
        nonlocal count
        for row in rows():
            count += 1
            yield row

    write_rows(DIFFERENCES, counted(), output)
    if count:
        note(count_of(count, "difference"))
    topic_matches.require_all(f"{left.uri} and {right.uri}")
    fail_if(count)
    note(f"no difference in {count_of(len(chosen), 'group')}")


def _sides(connect: ConnectFlags, source: str | None, target: str | None) -> tuple[OffsetStore, OffsetStore]:
    """Returns the two stores. Raises `UsageError` if one is neither given nor configured."""
    from offsetmgr.stores.uri import zookeeper_of

    store = connect.resolved.store
    own = zookeeper_of(store, connect.resolved.connection) if store else None
    zookeeper = own or connect.resolved.zookeeper
    defaults = (f"zookeeper://{zookeeper}" if zookeeper else None, _kafka_uri(connect.bootstrap()))
    found = [given or default for given, default in zip((source, target), defaults, strict=True)]
    for option, name, uri in zip(("--from", "--to"), ("ZooKeeper", "broker"), found, strict=True):
        if uri is None:
            raise UsageError(option, f"no store is named, and no {name} is configured", f"add {option} URI")
    return connect.store(found[0]), connect.store(found[1])


def _kafka_uri(bootstrap: str | None) -> str | None:
    return None if bootstrap is None else f"kafka://{bootstrap}"
