"""``offsetmgr offsets peek``: shows the record at the committed offset of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.columns import GROUP_PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.offset_reports import UncommittedTopics
from offsetmgr.cli.options import FormatOption, GroupFlags, TopicsOption, opt
from offsetmgr.cli.read_error_report import ReadErrorReport, unrecognised_errors
from offsetmgr.cli.render import Column, OutputFormat, progress, write_rows, write_structured_rows
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.clock_difference import duration
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, OffsetOutOfRange
from offsetmgr.core.model import Committed
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.consumer.peek import PeekedRecord, RecordPeeker
    from offsetmgr.core.offset_store import GroupOffsets
    from offsetmgr.segments.batch_reader import Record

app = typer.Typer()

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
    from offsetmgr.cli.log_values import display_text, raw_json

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
    from offsetmgr.cli.log_values import display_text, raw_json

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
