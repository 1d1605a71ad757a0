"""Output: rows as a table, JSON or CSV on stdout; notes, progress and prompts on stderr.

Rows are formatted in batches, column by column. Therefore tens of thousands of rows are formatted in a fraction of a
second, and memory use does not grow with the number of rows.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import shutil
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, TextIO, TypeVar

import typer

from offsetmgr.app.ui import Declined, Interrupted
from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import FileFailure, OffsetMgrError, PartialFailure, SparkError, UsageError
from offsetmgr.core.model import BrokerPartition
from offsetmgr.core.plurals import printable

# Colours on a terminal. ``NO_COLOR`` switches them off.

BOLD: Final = "1"
RED: Final = "31"
YELLOW: Final = "33"
FAINT: Final = "2"
_MESSAGES: Final = {"error": RED, "warning": YELLOW, "hint": FAINT}
_MESSAGE: Final = re.compile(r"^(error|warning|hint):")


def has_colours(stream: TextIO) -> bool:
    """Whether output to the stream is coloured: the stream is a terminal that supports colours, and ``NO_COLOR`` is not
    set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def coloured(text: str, colour: str) -> str:
    """The text in a colour. Spaces around the text are not coloured."""
    core = text.strip()
    return text.replace(core, f"\x1b[{colour}m{core}\x1b[0m", 1) if core else text


# `OutputCollector` collects the output of a command that runs for one of several clusters at the same time. The
# functions of `offsetmgr.cli.render` and the reports of errors give their output to the collector of the present
# thread, if there is one, instead of writing it.


class OutputCollector:
    """The rows, notes and errors of one run of a command. ``tables`` maps the columns of each table to its rows, in the
    order in which the command writes them."""

    def __init__(self) -> None:
        self.tables: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
        self.notes: list[str] = []
        self.commands: list[Invocation] = []
        """The commands that the notes name."""
        self.errors: list[OffsetMgrError] = []

    def add_rows(self, columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> int:
        """Adds the rows of a table, and returns their number."""
        found = list(rows)
        self.tables.setdefault(tuple(columns), []).extend(found)
        return len(found)

    @property
    def has_rows(self) -> bool:
        return any(self.tables.values())


COLLECTOR: Final[ContextVar[OutputCollector | None]] = ContextVar("COLLECTOR", default=None)
"""The collector of the present thread."""


# Fits tables into the terminal: shortens identifiers in the middle, leaves out the least important ones, and wraps
# the last column. Names of groups and topics are shortened before the most important identifier is left out.
# `set_wide` switches this off for one command line, which then shows all columns and all values in full.

SHORTEST: Final = 16
"""The smallest number of characters to which identifiers are shortened."""
SHORTEST_LAST: Final = 10
"""The same for the last identifier that a table still shows."""
MIN_WRAP_WIDTH: Final = 20
"""Names are shortened, and columns left out, until the terminal has this width left for a wrapped last column."""
_LEAST_WRAP_WIDTH: Final = 10
"""If this is not possible, the last column is wrapped if the terminal has at least this width left for it."""
LONG_NAME: Final = 40
"""Names that are wider than this are shortened if the last column would be wrapped otherwise."""
NAME_RANK: Final = -1
"""The rank of names. They are shortened late, and never left out."""
WHOLE_RANK: Final = 10
"""The smallest rank of columns that are never shortened, only left out."""
_NAMES: Final = frozenset({"group", "target_group", "topic"})
_GAP: Final = 2
_MAX_COMPARED: Final = 200
_wide: Final = ContextVar("_wide", default=False)


def set_wide(wide: bool) -> None:
    """Whether tables ignore the width of the terminal, as with ``--wide``."""
    _wide.set(wide)


def table_width() -> int | None:
    """Returns the width to which tables are fitted, or None if stdout is not a terminal or ``--wide`` is given."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and not _wide.get() else None


def rank_of(column: str, rank: int) -> int:
    """Returns the rank of the column with this name: for names of groups and topics `NAME_RANK`, unless they have a
    rank."""
    return NAME_RANK if column in _NAMES and not rank else rank


def fit_note(titles: Sequence[str], ranks: Sequence[int], whole: Sequence[int], fitted: Sequence[int | None]) -> str:
    """Returns a note about the columns that a table leaves out, and about shortened names, or an empty string.

    ``whole`` are the widths of the complete values.
    """
    columns = list(zip(titles, ranks, whole, fitted, strict=True))
    left_out = [title for title, _, _, width in columns if width is None]
    names = [title for title, rank, width, now in columns if rank == NAME_RANK and now != width]
    changes = [f"left out: {', '.join(left_out)}"] if left_out else []
    changes += [f"shortened: {', '.join(names)}"] if names else []
    return f"{'; '.join(changes)}; --wide shows all columns{' and names' if names else ''}" if changes else ""


def fitted_widths(widths: Sequence[int], ranks: Sequence[int], available: int) -> list[int | None]:
    """Returns the width of each column of a table that is at most ``available`` wide, if possible. None means that the
    table leaves the column out.

    ``widths`` are the widths of the complete values. Columns with a rank from 1 to 9 are shortened, the widest first;
    then the columns with the largest rank are left out, the last one first. Names (`NAME_RANK`) are shortened before
    columns with rank 1 or `WHOLE_RANK` are left out. The last column can be wrapped, so it needs at most
    `MIN_WRAP_WIDTH`; columns with `WHOLE_RANK` leave it half of this. If it is wrapped, names that are longer than
    `LONG_NAME` are shortened to give it more space.
    """
    by_rank = sorted((i for i, rank in enumerate(ranks) if rank > 0), key=lambda i: (-ranks[i], -i))
    names = [i for i, rank in enumerate(ranks) if rank == NAME_RANK]
    fitted: list[int | None] = list(widths)
    for count in range(len(by_rank) + 1):
        kept = by_rank[count:]
        fitted = [None if i in by_rank[:count] else width for i, width in enumerate(widths)]
        shortest = SHORTEST if len(kept) > 1 else SHORTEST_LAST
        excess = _needed(fitted, MIN_WRAP_WIDTH, wraps=not ranks[-1]) - available
        excess = _shorten(fitted, [i for i in kept if ranks[i] < WHOLE_RANK], shortest, excess)
        if all(ranks[i] in (1, WHOLE_RANK) for i in kept):
            excess = _shorten(fitted, names, SHORTEST, excess)
            if any(ranks[i] == WHOLE_RANK for i in kept):
                excess = _needed(fitted, _LEAST_WRAP_WIDTH, wraps=not ranks[-1]) - available
        if excess <= 0:
            break
    if not ranks[-1]:
        _shorten(fitted, names, LONG_NAME, _needed(fitted) - available)
    return fitted


def _shorten(fitted: list[int | None], columns: Sequence[int], shortest: int, excess: int) -> int:
    """Shortens these columns, the widest first, and returns the remaining excess."""
    while excess > 0 and columns:
        widest = max(columns, key=lambda i: fitted[i] or 0)
        if (width := fitted[widest] or 0) <= shortest:
            break
        fitted[widest] = width - 1
        excess -= 1
    return excess


def _needed(widths: Sequence[int | None], least: int = 0, *, wraps: bool = False) -> int:
    shown = [width for width in widths if width is not None]
    if wraps and widths[-1] is not None:
        shown[-1] = min(shown[-1], least)
    return sum(shown) + _GAP * (len(shown) - 1)


def text_width(text: str) -> int:
    """Returns the number of columns that the text takes on a terminal: two for each wide character, such as 東."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int, *, right: bool) -> str:
    """Pads the text with spaces to ``width`` columns of the terminal; ``right`` aligns it to the right."""
    spaces = " " * (width - text_width(text))
    return spaces + text if right else text + spaces


def shortened(text: str, width: int, start: int | None = None) -> str:
    """Returns the text without its middle if it is wider than ``width``. The end stays, because the end of a member id
    identifies the member. ``start`` is the width of the beginning that stays (default: half)."""
    if text_width(text) <= width:
        return text
    start = (width - 1) // 2 if start is None else start
    return f"{_beginning(text, start)}..{_beginning(text[::-1], width - 2 - start)[::-1]}"


def distinct_cut(texts: Collection[str], width: int) -> tuple[int, int]:
    """Returns the least width from ``width`` on, and the width of the beginning, with which no two of the texts are
    shortened to the same text. For very many texts, returns ``width`` and its half."""
    for wider in itertools.count(width) if len(texts) <= _MAX_COMPARED else ():
        middle = (wider - 1) // 2
        for start in sorted(range(wider - 1), key=lambda at: abs(at - middle)):
            if len({shortened(text, wider, start) for text in texts}) == len(texts):
                return wider, start
    return width, (width - 1) // 2


def _beginning(text: str, width: int) -> str:
    kept = text[:width]
    while text_width(kept) > width:
        kept = kept[:-1]
    return kept


class _CommaWrapper(textwrap.TextWrapper):
    """Breaks lines at spaces, after commas, and in names of errors such as ``UNKNOWN_TOPIC_OR_PARTITION``, but not in
    other words."""

    wordsep_simple_re = re.compile(r"([\t\n\x0b\x0c\r ]+|(?<=,)|(?<=[A-Z]_)(?=[A-Z]))")


def wrapped_line(cells: Sequence[str], widths: Sequence[int], available: int) -> str:
    """Joins the padded cells of a line. Wraps the last cell at the width of the terminal, unless little of the width is
    left for it or an earlier cell is too wide for its column."""
    line = "  ".join(cells).rstrip()
    indent = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    aligned = all(text_width(cell) == width for cell, width in zip(cells[:-1], widths[:-1], strict=True))
    if text_width(line) <= available or available - indent < _LEAST_WRAP_WIDTH or not aligned:
        return line
    wrapper = _CommaWrapper(available - indent, break_long_words=False, break_on_hyphens=False)
    before = "  ".join((*cells[:-1], ""))
    return before + f"\n{' ' * indent}".join(wrapper.wrap(cells[-1].rstrip()))


_cached: Final = lru_cache(maxsize=20_000)
"""Caches the formatted values of a column, because most values of a column occur repeatedly."""


class PaddedCells:
    """The padded cells of one column of a table. ``cell`` returns the cell of a value."""

    def __init__(self, encode: Callable[[Any], str], width: int, *, right: bool) -> None:
        self.width = width
        self.padded: Callable[[str], str] = lambda text: padded(text, width, right=right)
        self.cell: Callable[[Any], str] = _cached(lambda value: self.padded(encode(value)))


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


class Column(NamedTuple):
    """A column. ``name`` is the key in JSON and CSV, ``title`` the heading in tables. ``right`` aligns the values to
    the right.

    A table omits an ``optional`` column if the column is empty, and always omits a ``detail`` column. The values of a
    ``time`` column are milliseconds since 1970, which tables show as a time (UTC). If a table is wider than the
    terminal, the values of columns with a ``rank`` from 1 to 9 are shortened in the middle, and the columns with the
    largest rank are left out. ``attention`` colours unknown values and numbers above 0. A ``command`` in the last
    column is not broken into lines, so that it can be copied from a terminal. The values of a ``nested`` column are
    objects, lists, or large; only tables need them as short texts. ``get`` is the path of the attribute that `rows_of`
    shows, such as "member.host" (default: ``name``).
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
    nested: bool = False


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


def json_value(value: Any) -> str:
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
    return FORMATS[output].write(columns, rows)


def _batches(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    """Yields the rows that a program gets together: one at a time if they can be large."""
    return batched(rows, 1 if any(column.nested for column in columns) else BATCH)


def _json_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[list[str]]:
    """Yields batches of rows as JSON objects."""
    template = "{" + ", ".join(f"{json_value(c.name)}: %s" for c in columns) + "}"
    encoders = [json_value if column.nested else _cached(json_value) for column in columns]
    for batch in _batches(columns, rows):
        encoded = map(map, encoders, zip(*batch, strict=True))
        yield [template % cells for cells in zip(*encoded, strict=True)]


def _write_json(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> int:
    count = 0
    for batch in _json_rows(columns, rows):
        sys.stdout.write(",\n" if count else "[\n")
        sys.stdout.write(",\n".join(batch))
        count += len(batch)
    sys.stdout.write("\n]\n" if count else "[]\n")
    sys.stdout.flush()
    return count


def _write_json_lines(columns: Sequence[Column], rows: Iterable[Sequence[Any]], _again: bool) -> int:
    count = 0
    for batch in _json_rows(columns, rows):
        sys.stdout.writelines(f"{line}\n" for line in batch)
        count += len(batch)
    sys.stdout.flush()
    return count


def _write_csv(columns: Sequence[Column], rows: Iterable[Sequence[Any]], again: bool = False) -> int:
    """Writes CSV, with objects and lists as JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not again:
        writer.writerow([c.name for c in columns])
    count = 0
    nested = any(column.nested for column in columns)
    for batch in _batches(columns, rows):
        writer.writerows(_csv_rows(map(_flat_row, batch) if nested else batch))
        count += len(batch)
    sys.stdout.flush()
    return count


def _flat_row(row: Sequence[Any]) -> list[Any]:
    return [json_value(cell) if isinstance(cell, dict | list) else cell for cell in row]


def write_plain_csv(rows: Iterable[Sequence[Any]]) -> None:
    """Writes CSV without a header line to stdout."""
    csv.writer(sys.stdout, lineterminator="\n").writerows(_csv_rows(rows))
    sys.stdout.flush()


def _write_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> int:
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
        cells_of_lines = zip(*(map(cells.cell, values[i]) for i, cells in shown), strict=True)
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
            if (value is None or value > 0) and text[start:end] == cells.cell(value)[: len(text[start:end])]:
                text = text[:start] + coloured(text[start:end], YELLOW) + text[end:]
        yield text


class RowFormat(NamedTuple):
    """How a format shows results.

    ``write`` writes a complete table and returns the number of its rows. ``write_more`` writes one of the outputs of
    ``--watch``, so that a program can read them as they arrive; its last argument is whether the previous output had
    the same columns. Without it, the format is for people, not for programs.
    """

    write: Callable[[Sequence[Column], Iterable[Sequence[Any]]], int]
    write_more: Callable[[Sequence[Column], Iterable[Sequence[Any]], bool], int] | None = None


class _Format(StrEnum):
    """The values of ``--format``."""

    @property
    def for_people(self) -> bool:
        """Whether the format is for people. It then leaves out what they need not see, and shortens long values."""
        return FORMATS[self].write_more is None


class OutputFormat(_Format):
    """The values of ``--format``."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


PROMETHEUS: Final = "prometheus"
MetricsFormat: Any = _Format("MetricsFormat", [*OutputFormat, PROMETHEUS])  # type: ignore[call-arg]
"""The values of ``--format`` of a command with metrics: those of `OutputFormat`, and `PROMETHEUS`."""


def write_samples(command: str, read: Callable[[], T], samples: Callable[[T], Iterable[Any]]) -> tuple[T, int]:
    """Writes the metrics of a read, and returns its result and the number of lines. A read that fails before its first
    sample has the sample of a failed one; if several clusters are read, the error of the cluster stands for it."""
    columns = (Column("metric", title=command), Column("labels", nested=True), Column("value", right=True))
    try:
        found = read()
        rows = iter(samples(found))
        first = next(rows)
    except OffsetMgrError:
        write_rows(columns, [] if COLLECTOR.get() else [_failed(command)], MetricsFormat(PROMETHEUS))
        raise
    return found, write_rows(columns, itertools.chain([first], rows), MetricsFormat(PROMETHEUS))


def _failed(command: str) -> tuple[Any, ...]:
    return ("offsetmgr_read_errors", {"command": command}, 1)


def _write_metrics(columns: Sequence[Column], rows: Iterable[Sequence[Any]], _again: bool = False) -> int:
    """Writes the rows of `write_samples`, for a terminal without control characters. Rows of several clusters also have
    a cluster and an error; they have nothing else if no context is valid."""
    from offsetmgr.app.metrics import exposition

    if columns[0].name != "metric":
        failed = _failed(columns[1].title)
        found = ((row[0], row[1:4] if row[1] is not None else failed) for row in rows if len(row) > 2)
        rows = ((metric, {"cluster": cluster, **labels}, value) for cluster, (metric, labels, value) in found)
    shown, count = printable if sys.stdout.isatty() else str, 0
    for line in exposition(rows):
        sys.stdout.write(f"{shown(line)}\n")
        count += 1
    sys.stdout.flush()
    return count


FORMATS: Final[Mapping[str, RowFormat]] = {
    OutputFormat.TABLE: RowFormat(_write_table),
    OutputFormat.JSON: RowFormat(_write_json, _write_json_lines),
    OutputFormat.CSV: RowFormat(_write_csv, _write_csv),
    PROMETHEUS: RowFormat(_write_metrics, _write_metrics),
}


CHANGES: Final = (
    Column("change", right=True),
    Column("rate", right=True, title="PER-SECOND"),
)
"""The columns that `Changes` adds: the change of the watched value since the previous output, and the change of the
offset per second."""


class WatchedOutput:
    """Adds the time of each output to the tables of a watched command, unless a terminal shows only the last output."""

    def __init__(self) -> None:
        self.time = ""
        self._dated = False
        self._names: list[str] = []
        self._changes: dict[tuple[Column, ...], Changes] = {}

    def changes(self, columns: Sequence[Column], *, key: Sequence[str], value: str, position: str) -> Changes:
        """Returns the changes of a table since the previous output."""
        return self._changes.setdefault(tuple(columns), Changes(columns, key=key, value=value, position=position))

    def begin(self, seconds: float) -> None:
        """Begins the next output."""
        self.time, self._dated = time_cell(time.time_ns() // 1_000_000), False
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[2J\x1b[H")
            sys.stdout.flush()
            note(f"{self.time}, every {seconds:g} s; Ctrl-C ends")

    def write(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]], output: OutputFormat) -> int:
        """Writes rows like `write_rows`, with the time, so that a program can read the rows as they arrive."""
        row_format = FORMATS[output]
        if row_format.write_more is None:
            if not self._dated and not sys.stdout.isatty():
                sys.stdout.write(f"{self.time}\n")
            self._dated = True
            return row_format.write(columns, rows)
        columns = (Column("time"), *columns)
        before, self._names = self._names, [column.name for column in columns]
        return row_format.write_more(columns, ((self.time, *row) for row in rows), before == self._names)


class Changes:
    """Computes the changes of the rows between two outputs of a watched command.

    ``key`` is the number of leading columns that identify a row. ``value`` is the column of which the change is shown,
    and ``position`` the column of which the rate is shown.
    """

    def __init__(self, columns: Sequence[Column], *, key: Sequence[str], value: str, position: str) -> None:
        names = [column.name for column in columns]
        self.columns = (*columns[:-1], *CHANGES, columns[-1])
        self._key = [names.index(name) for name in key]
        self._value, self._position = names.index(value), names.index(position)
        self._before: dict[tuple[Any, ...], tuple[int | None, int | None, float]] = {}

    def add(self, rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        """Yields the rows with the columns `CHANGES`. They are unknown in the first output."""
        for row in rows:
            key = tuple(row[at] for at in self._key)
            value, position, now = row[self._value], row[self._position], time.monotonic()
            before = self._before.get(key)
            change = rate = None
            if before is not None:
                change = None if None in (value, before[0]) else value - (before[0] or 0)
                moved = None if None in (position, before[1]) else position - (before[1] or 0)
                rate = None if moved is None else round(moved / max(now - before[2], 1e-3), 1)
            self._before[key] = (value, position, now)
            yield (*row[:-1], change, rate, row[-1])


WATCHED_OUTPUT: Final[ContextVar[WatchedOutput | None]] = ContextVar("WATCHED_OUTPUT", default=None)
"""The output of ``--watch``; None without ``--watch``."""


def write_document(document: Any) -> None:
    """Prints a nested result as JSON, where a table has its rows."""
    print(json.dumps(document, indent=2))


def write_text(text: str) -> None:
    """Prints lines of text on stdout, without control characters."""
    print("\n".join(map(printable, text.split("\n"))))


def separate_tables() -> None:
    """Prints an empty line between two tables."""
    if COLLECTOR.get() is None:
        print()


def note(text: str) -> None:
    """Prints a line on stderr, so that notes are never mixed with the data on stdout. The first word is in colour if
    it is an error, a warning or a hint. Control characters are escaped."""
    if (collector := COLLECTOR.get()) is not None:
        if isinstance(text, Advice):
            collector.commands += [one for one in text.values if isinstance(one, Invocation)]
        collector.notes.append(for_command_line(text))
        return
    text = printable(for_command_line(text))
    Meter.clear()
    if has_colours(sys.stderr):
        text = _MESSAGE.sub(lambda found: f"{coloured(found[1], _MESSAGES[found[1]])}:", text)
    print(text, file=sys.stderr, flush=True)


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
OFFSETS: Final = (
    *GROUP_PARTITION,
    Column("state"),
    Column("offset", right=True),
    Column("metadata", optional=True, rank=1),
    Column("leader_epoch", right=True, optional=True, title="EPOCH"),
    Column("commit_timestamp", optional=True, title="COMMITTED-AT", time=True),
)
"""A committed offset."""
PLANNED_WRITE: Final = (
    *GROUP_PARTITION,
    Column("current_offset", right=True, title="CURRENT"),
    Column("new_offset", right=True, title="NEW"),
    Column("note", optional=True),
)
"""An offset that a command replaces, before the command writes the new one."""


# Reports failures: one line with the failure and its cause, one line with the remedy, and the exit code. Only this
# module turns exceptions into text and exit codes: 0 done; 1 failed, partly failed, or a check found a difference; 2
# wrong usage; 130 interrupted. Tracebacks are printed only with ``--debug``.

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""The exit code that a shell reports for a process that SIGPIPE killed: 128 + 13."""


def report(error: BaseException, *, debug: bool = False) -> int:
    """Prints ``error`` on stderr, and returns its exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt):
        error = error.__cause__  # Ctrl-C arrived while C code, for example librdkafka, called Python
    if isinstance(error, KeyboardInterrupt):
        remaining = for_command_line(error.remaining) if isinstance(error, Interrupted) else "stopped before the end"
        note(f"interrupted: {remaining}")
        return INTERRUPTED
    if isinstance(error, Declined):
        note("nothing was done")
        return FAILED
    if isinstance(error, OffsetMgrError):
        return _report_offsetmgr_error(error)
    if (message := command_line_message(error)) is not None:
        note(f"error: {message}")
        note(f"hint: {_command_line_hint(error)}")
        return USAGE
    if isinstance(error, UnicodeEncodeError) and (argument := _argument_without_encoding()) is not None:
        hint = "a terminal with the encoding UTF-8 sends valid arguments"
        return _report_offsetmgr_error(UsageError(f"argument {argument!a}", "is not valid UTF-8", hint))
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        hint = "set TMPDIR to a directory that can be written, or mount a tmpfs at /tmp"
        return _report_offsetmgr_error(FileFailure("temporary files", str(error.strerror), hint))
    note(f"error: internal: {type(error).__name__}: {_one_line(str(error))}")
    note("hint: this is a bug in offsetmgr; run the command again with --debug for the traceback")
    return FAILED


def report_and_exit_code(errors: Iterable[OffsetMgrError]) -> int:
    """Prints the errors of a command that also prints results. Identical errors and hints are printed once. With
    ``--watch``, prints the time with each error, and no hints. Returns 1 if there are errors, else 0."""
    failed = list(errors)
    if (collector := COLLECTOR.get()) is not None:
        collector.errors += failed
        return FAILED if failed else 0
    watched = WATCHED_OUTPUT.get()
    for text in dict.fromkeys(worded(error) for error in failed):
        note(f"error: {text}" if watched is None else f"error: {watched.time}: {text}")
    if watched is not None:
        return FAILED if failed else 0
    for hint in dict.fromkeys(_one_line(for_command_line(error.hint)) for error in failed if error.hint):
        note(f"hint: {hint}")
    return FAILED if failed else 0


def worded(error: OffsetMgrError) -> str:
    """Returns the text of an error for the command line, in one line."""
    return _one_line(error.text.command_line())


def exit_with(code: int) -> None:
    """Ends the command, unless the exit code is 0."""
    if code:
        raise typer.Exit(code)


def fail_if(failed: object) -> None:
    """Ends the command with exit code 1 if ``failed`` is true."""
    exit_with(FAILED if failed else 0)


def _report_offsetmgr_error(error: OffsetMgrError) -> int:
    note(f"error: {worded(error)}")
    if isinstance(error, PartialFailure):
        for partition, failure in sorted(error.failures.items()):
            note(f"  {partition}: {worded(failure)}")
    if error.hint:
        note(f"hint: {_one_line(for_command_line(error.hint))}")
    elif isinstance(error, SparkError) and error.__cause__ is not None:
        note("hint: --debug shows the complete error")
    return USAGE if isinstance(error, UsageError) else FAILED


def command_line_message(error: BaseException) -> str | None:
    """Returns the text of an error from the option parser, or None for any other error.

    The error is recognized by its attributes, not by its class, because some versions of typer contain their own copy
    of click.
    """
    format_message = getattr(error, "format_message", None)
    return _one_line(format_message()) if callable(format_message) else None


def _command_line_hint(error: BaseException) -> str:
    """Returns the hint for an error from the option parser. The parser reads the name of a group as options if the name
    begins with ``-``; for such an error the hint contains the forms that the command accepts."""
    context = getattr(error, "ctx", None)
    hint = f"see {getattr(context, 'command_path', 'offsetmgr')} --help"
    if type(error).__name__ != "NoSuchOption" or getattr(error, "option_name", "--").startswith("--"):
        return hint
    parameters = getattr(getattr(context, "command", None), "params", ())
    forms = []
    if any("--group" in parameter.opts for parameter in parameters):
        forms.append("--group=-NAME")
    if any("GROUP" in (getattr(parameter, "metavar", None) or "").split("]")[0] for parameter in parameters):
        forms.append("-- -NAME at the end of the command")
    return f"for a group whose name begins with -: {', or '.join(forms)}; {hint}" if forms else hint


def _argument_without_encoding() -> str | None:
    """Returns the first argument of the command line whose bytes are not valid UTF-8."""
    return next((argument for argument in sys.argv if any("\ud800" <= c <= "\udfff" for c in argument)), None)


def _one_line(text: str) -> str:
    return " ".join(text.split())
