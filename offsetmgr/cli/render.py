"""Output: rows as a table, JSON or CSV on stdout; notes, progress and prompts on stderr.

Rows are formatted in batches, column by column. Therefore tens of thousands of rows are formatted in a fraction of a
second, and memory use does not grow with the number of rows.
"""

from __future__ import annotations

import csv
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from offsetmgr.cli.colours import BOLD, YELLOW, coloured, coloured_message, has_colours
from offsetmgr.cli.output_collector import COLLECTOR, WATCHED_OUTPUT
from offsetmgr.cli.table_fit import (
    distinct_cut,
    fit_note,
    fitted_widths,
    padded,
    rank_of,
    shortened,
    table_width,
    text_width,
    wrapped_line,
)
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.batches import batched
from offsetmgr.core.model import BrokerPartition
from offsetmgr.core.plurals import printable

_MAX_CACHED: Final = 20_000


class CellCache(dict[Any, str]):
    """A cache of formatted values. The cache saves time because most values of a column occur repeatedly."""

    def __init__(self, encode: Callable[[Any], str]) -> None:
        self._encode = encode

    def __missing__(self, value: Any) -> str:
        if len(self) >= _MAX_CACHED:
            self.clear()
        text = self._encode(value)
        self[value] = text
        return text


class PaddedCells(CellCache):
    """A cache of the padded cells of one column of a table."""

    def __init__(self, encode: Callable[[Any], str], width: int, *, right: bool) -> None:
        self.width = width
        self.padded: Callable[[str], str] = lambda text: padded(text, width, right=right)
        super().__init__(lambda value: padded(encode(value), width, right=right))


def cell_text(value: Any) -> str:
    """Formats a value for display, and escapes its control characters."""
    return "-" if value is None else printable(str(value))


def time_cell(value: int | None) -> str:
    """Formats milliseconds since 1970 as a time. A time that Python's calendar cannot represent stays a number."""
    if value is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec='milliseconds')[:-6]}Z"
    except (ValueError, OverflowError, OSError):
        return str(value)


BATCH: Final = 4_000
"""Number of rows that are formatted together. The widths of a table's columns are computed from the first batch."""
LONGEST_PADDED: Final = 80
"""The widest column that pads its cells if a table is not fitted to a terminal."""
PROGRESS_AFTER_S: Final = 1.0
"""Progress is shown after a command has run for this number of seconds."""
LEAST_SHOWN: Final = 16
_TTY_EVERY_S: Final = 0.1
_LOG_EVERY_S: Final = 10.0

T = TypeVar("T")


class OutputFormat(StrEnum):
    """The values of ``--format``."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Column(NamedTuple):
    """A column. ``name`` is the key in JSON and CSV, ``title`` the heading in tables. ``right`` aligns the values to
    the right.

    A table omits an ``optional`` column if the column is empty, and always omits a ``detail`` column. The values of a
    ``time`` column are milliseconds since 1970, which tables show as a time (UTC). If a table is wider than the
    terminal, the values of columns with a ``rank`` from 1 to 9 are shortened in the middle, and the columns with the
    largest rank are left out. ``attention`` colours unknown values and numbers above 0. A ``command`` in the last
    column is not broken into lines, so that it can be copied from a terminal. ``get`` is the path of the attribute that
    `rows_of` shows, such as "member.host" (default: ``name``).
    """

    name: str
    right: bool = False
    optional: bool = False
    title: str = ""
    detail: bool = False
    time: bool = False
    rank: int = 0
    attention: bool = False
    command: bool = False
    get: str = ""


def rows_of(columns: Sequence[Column], items: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yields one row for each item: for each column the attribute of the item that the column names. The object before
    a dot in ``Column.get`` may be None; then the cell is None."""
    getters = [_getter(column.get or column.name) for column in columns]
    return (tuple([get(item) for get in getters]) for item in items)


def _getter(path: str) -> Callable[[Any], Any]:
    parent, dot, name = path.rpartition(".")
    if not dot:
        return attrgetter(path)
    owner = _getter(parent)
    return lambda item: None if (found := owner(item)) is None else getattr(found, name)


def _json_value(value: Any) -> str:
    """Returns the value as JSON, with escapes for the control characters that JSON allows."""
    text = json.dumps(str(value) if isinstance(value, BrokerPartition) else value, ensure_ascii=False, default=str)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _csv_rows(rows: Iterable[Sequence[Any]]) -> Iterable[Sequence[Any]]:
    """Returns the rows of CSV, for a terminal without control characters."""
    if not sys.stdout.isatty():
        return rows
    return ([printable(one) if isinstance(one, str) else one for one in row] for row in rows)


def write_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]], output: OutputFormat) -> int:
    """Writes rows to stdout in the order in which they arrive, and returns the number of rows. Each row has a value for
    each column."""
    if (collector := COLLECTOR.get()) is not None:
        return collector.add_rows(columns, rows)
    if (watched := WATCHED_OUTPUT.get()) is not None:
        return watched.write(columns, rows, output)
    if output is OutputFormat.JSON:
        return _write_json(columns, rows)
    return write_csv(columns, rows) if output is OutputFormat.CSV else write_table(columns, rows)


def write_structured_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]], output: OutputFormat) -> int:
    """Like `write_rows`, but for rows with large or structured values. Writes JSON or CSV, and formats one row at a
    time instead of a batch of rows.

    In CSV, objects and lists are written as JSON.
    """
    if (collector := COLLECTOR.get()) is not None:
        return collector.add_rows(columns, rows)
    names = [c.name for c in columns]
    count = 0
    if output is OutputFormat.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerows(_csv_rows([[_json_value(v) if isinstance(v, dict | list) else v for v in row]]))
            count += 1
    else:
        for row in rows:
            sys.stdout.write(",\n" if count else "[\n")
            sys.stdout.write(_json_value(dict(zip(names, row, strict=True))))
            count += 1
        sys.stdout.write("\n]\n" if count else "[]\n")
    sys.stdout.flush()
    return count


def write_json_lines(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> int:
    """Writes each row as a JSON object on a line of its own, and returns the number of rows."""
    names = [c.name for c in columns]
    count = 0
    for row in rows:
        sys.stdout.write(_json_value(dict(zip(names, row, strict=True))) + "\n")
        count += 1
    sys.stdout.flush()
    return count


def _write_json(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> int:
    fields = ", ".join(f"{_json_value(c.name)}: %s" for c in columns)
    template = "{" + fields + "}"
    caches = [CellCache(_json_value) for _ in columns]
    count = 0
    for batch in batched(rows, BATCH):
        sys.stdout.write(",\n" if count else "[\n")
        encoded = [
            map(cells.__getitem__, column) for cells, column in zip(caches, zip(*batch, strict=True), strict=True)
        ]
        sys.stdout.write(",\n".join(map(template.__mod__, zip(*encoded, strict=True))))
        count += len(batch)
    sys.stdout.write("\n]\n" if count else "[]\n")
    sys.stdout.flush()
    return count


def write_csv(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, titles: bool = True) -> int:
    """Writes CSV, with or without a title line, and returns the number of rows."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if titles:
        writer.writerow([c.name for c in columns])
    count = 0
    for batch in batched(rows, BATCH):
        writer.writerows(_csv_rows(batch))
        count += len(batch)
    sys.stdout.flush()
    return count


def write_plain_csv(rows: Iterable[Sequence[Any]]) -> None:
    """Writes CSV without a header line to stdout."""
    csv.writer(sys.stdout, lineterminator="\n").writerows(_csv_rows(rows))
    sys.stdout.flush()


def write_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> int:
    """Writes a table for people, and returns the number of rows."""
    shown: list[tuple[int, PaddedCells]] = []
    count = 0
    available = table_width()
    colours = has_colours(sys.stdout)
    for batch in batched(rows, BATCH):
        values = list(zip(*batch, strict=True))
        if not count:
            shown = _table_columns(columns, values, whole=len(batch) < BATCH, available=available)
            titles = (cells.padded(_title(columns[i])) for i, cells in shown)
            heading = "  ".join(titles).rstrip()
            sys.stdout.write((coloured(heading, BOLD) if colours else heading) + "\n")
        cells_of_lines = zip(*(map(cells.__getitem__, values[i]) for i, cells in shown), strict=True)
        if available is None or columns[shown[-1][0]].command:
            lines: Iterable[str] = map(str.rstrip, map("  ".join, cells_of_lines))
        else:
            widths = [cells.width for _, cells in shown]
            lines = (wrapped_line(cells, widths, available) for cells in cells_of_lines)
        if colours:
            lines = _with_attention(lines, columns, shown, values)
        sys.stdout.write("\n".join(lines) + "\n")
        count += len(batch)
    sys.stdout.flush()
    return count


def _title(column: Column) -> str:
    return column.title or column.name.upper().replace("_", "-")


def _table_columns(
    columns: Sequence[Column], values: list[tuple[Any, ...]], *, whole: bool, available: int | None
) -> list[tuple[int, PaddedCells]]:
    """Returns the columns that a table shows, with widths that fit ``values`` and, if possible, the ``available``
    width. ``whole`` is true if ``values`` contains all rows of the table."""
    complete: list[tuple[int, int]] = []
    texts: list[set[str]] = []
    for i, column in enumerate(columns):
        cells = {_encoder(column)(value) for value in set(values[i])}
        if column.detail or (whole and column.optional and cells <= {"-", ""}):
            continue
        complete.append((i, max(len(column.title or column.name), *map(text_width, cells))))
        texts.append(cells)
    # Without a terminal's width, a name that is much longer than the others must not pad the rows of the others.
    widths: list[int | None] = [min(width, max(LONGEST_PADDED, len(_title(columns[i])))) for i, width in complete]
    if available is not None:
        whole_widths = [width for _, width in complete]
        ranks = [rank_of(columns[i].name, columns[i].rank) for i, _ in complete]
        widths = fitted_widths(whole_widths, ranks, available)
        if text := fit_note([_title(columns[i]) for i, _ in complete], ranks, whole_widths, widths):
            note(text)
    shown = []
    for (i, whole_width), fitted, cells in zip(complete, widths, texts, strict=True):
        if fitted is not None:
            encode, width = _encoder(columns[i]), fitted
            if width < whole_width and available is not None:
                width, start = distinct_cut(cells, width)
                encode = _shortener(encode, width, start)
            shown.append((i, PaddedCells(encode, width, right=columns[i].right)))
    return shown


def _encoder(column: Column) -> Callable[[Any], str]:
    return time_cell if column.time else cell_text


def _shortener(encode: Callable[[Any], str], width: int, start: int) -> Callable[[Any], str]:
    return lambda value: shortened(encode(value), width, start)


def _with_attention(
    lines: Iterable[str],
    columns: Sequence[Column],
    shown: list[tuple[int, PaddedCells]],
    values: list[tuple[Any, ...]],
) -> Iterator[str]:
    """Colours the ``attention`` columns. A line with a cell that is too wide for its column stays without colours."""
    spans = []
    at = 0
    for i, cells in shown:
        if columns[i].attention:
            spans.append((i, cells, at, at + cells.width))
        at += cells.width + 2
    for number, line in enumerate(lines):
        text = line
        for i, cells, start, end in reversed(spans):
            value = values[i][number]
            if (value is None or value > 0) and text[start:end] == cells[value][: len(text[start:end])]:
                text = text[:start] + coloured(text[start:end], YELLOW) + text[end:]
        yield text


def write_text(text: str) -> None:
    """Prints lines of text on stdout, without control characters."""
    print("\n".join(map(printable, text.split("\n"))))


def separate_tables() -> None:
    """Prints an empty line between two tables."""
    if COLLECTOR.get() is None:
        print()


def note(text: str) -> None:
    """Prints a line on stderr, so that notes are never mixed with the data on stdout."""
    text = for_command_line(text)
    if (collector := COLLECTOR.get()) is not None:
        collector.notes.append(text)
        return
    Meter.clear()
    print(coloured_message(text, sys.stderr), file=sys.stderr, flush=True)


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yields ``items``, and shows progress on stderr, also while it waits for an item. On a terminal, each progress
    line overwrites the previous one; otherwise a new line is printed from time to time.

    Shows no progress during the first second, and none of fewer than `LEAST_SHOWN` items.
    """
    if COLLECTOR.get() is not None:
        yield from items
        return
    meter, ended, done = Meter(what), threading.Event(), 0

    def draw() -> None:
        while not ended.wait(_TTY_EVERY_S):
            if max(done, total or 0) >= LEAST_SHOWN:
                meter.show(done, total)

    thread = threading.Thread(target=draw, name="offsetmgr-progress", daemon=True)
    thread.start()
    try:
        for item in items:
            yield item
            done += 1
            if done % LEAST_SHOWN == 0:
                meter.show(done, total)
    finally:
        ended.set()
        thread.join()
        meter.clear()


class Meter:
    """Like `progress`, but the caller gives the progress as a number and a total. Both are printed in multiples of
    ``unit``."""

    drawn: ClassVar[bool] = False
    """Whether the last line of the terminal is a progress line."""

    def __init__(self, what: str, unit: int = 1) -> None:
        self._what = what
        self._unit = unit
        self._started = time.monotonic()
        self._next_at = self._started + PROGRESS_AFTER_S
        self._hidden = COLLECTOR.get() is not None

    def show(self, done: int, total: int | None) -> None:
        """Prints the progress, unless it was printed a short time ago."""
        now = time.monotonic()
        if self._hidden or now < self._next_at:
            return
        on_terminal = sys.stderr.isatty()
        self._next_at = now + (_TTY_EVERY_S if on_terminal else _LOG_EVERY_S)
        of = None if total is None else total // self._unit
        line = _progress_line(self._what, done // self._unit, of, now - self._started)
        if on_terminal:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            Meter.drawn = True
        else:
            note(line)

    @classmethod
    def clear(cls) -> None:
        """Clears the progress line, so that another line can be printed."""
        if cls.drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            cls.drawn = False


def offsets_topic_progress() -> Callable[[int, int], None]:
    """A callback that shows the progress of reading a broker's offsets topic, and clears the line at the end."""
    meter: Meter | None = None
    hidden = COLLECTOR.get() is not None  # the callback runs in a thread of the client, which has no collector

    def show(read: int, records: int) -> None:
        nonlocal meter
        if hidden:
            return
        meter = meter or Meter("reading __consumer_offsets")
        meter.show(read, records)
        if read >= records:
            meter.clear()
            meter = None

    return show


def _progress_line(what: str, done: int, total: int | None, seconds: float) -> str:
    rate = f"{done / seconds:,.0f}/s"
    if not total:
        return f"{what}: {done:,}, {rate}"
    filled = min(20, 20 * done // total)
    return f"{what}: [{'#' * filled}{'.' * (20 - filled)}] {done:,} of {total:,}, {rate}"


PARTITION: Final = (Column("topic"), Column("partition", right=True, title="PART"))
GROUP_PARTITION: Final = (Column("group"), *PARTITION)
PLANNED_WRITE: Final = (
    *GROUP_PARTITION,
    Column("current_offset", right=True, title="CURRENT"),
    Column("new_offset", right=True, title="NEW"),
    Column("note", optional=True),
)
"""An offset that a command replaces, before the command writes the new one."""
