"""``offsetmgr offsets get|lag|peek|export|import|diff``: shows, saves, loads and compares committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.app import offsets
from offsetmgr.cli import offset_edits
from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.errors import FAILED, report_and_exit_code
from offsetmgr.cli.options import (
    FormatOption,
    GroupFlags,
    OnlyWithLag,
    TopicFlags,
    opt,
)
from offsetmgr.cli.render import (
    GROUP_PARTITION,
    Column,
    OutputFormat,
    note,
    write_rows,
    write_structured_rows,
)
from offsetmgr.cli.watch import PartitionFlags, PartitionTable
from offsetmgr.core.clock import SystemClock, duration
from offsetmgr.core.model import Committed
from offsetmgr.core.plurals import count_of, raw_json

if TYPE_CHECKING:
    from offsetmgr.app.offsets import Found, LagRow, NextRecord, OffsetDifference, Record


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


@command(app, "get", many=True, watch=True)
def get(
    connect: ConnectFlags, groups: GroupFlags, topics: TopicFlags, output: FormatOption = OutputFormat.TABLE
) -> int:
    """Show committed offsets.

    Partitions given by number, and those of topics given by full name, are shown even without a commit.
    """
    table = PartitionTable(OFFSETS, PartitionFlags(output=output), value="offset")
    found = offsets.get(connect, groups.selection(), topics.selection())
    return show(found, table.write(_cells(row) for one in found for row in one.rows))


@command(app, "lag", many=True, watch=True)
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


@command(app, "peek", many=True)
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


app.registered_commands += offset_edits.app.registered_commands


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


@command(app, "diff", many=True)
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
