"""``--watch``: repeats a command's output until Ctrl-C, with its time and the changes since the previous output."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Any, Final, NamedTuple

import typer

from offsetmgr.cli.errors import FAILED, worded
from offsetmgr.cli.options import FormatOption, flag, opt, parse_seconds, seconds_option
from offsetmgr.cli.render import (
    WATCHED_OUTPUT,
    Column,
    OutputFormat,
    note,
    write_csv,
    write_json_lines,
    write_rows,
    write_table,
)
from offsetmgr.core.errors import OffsetMgrError, UsageError

DEFAULT_WATCH: Final = "5"
CHANGES: Final = (
    Column("change", right=True),
    Column("rate", right=True, title="PER-SECOND"),
)
"""The columns that `Changes` adds: the change of the watched value since the previous output, and the change of the
offset per second."""

Watch = Annotated[
    float | None,
    seconds_option(
        "--watch",
        f"Repeat the output at this interval (default: {DEFAULT_WATCH} s), such as 10 or 1m, until Ctrl-C; JSON has "
        "one row a line.",
        least=0.1,
        metavar="[SECONDS]",
    ),
]
Count = Annotated[int | None, opt("--count", None, "End --watch after this many outputs.", min=1)]


class WatchCommand(typer.core.TyperCommand):
    """A command whose option ``--watch`` may be given without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remaining_args: list[str] = []
        for at, argument in enumerate(args):
            remaining_args.append(argument)
            if argument == "--watch" and not _is_interval(args[at + 1] if at + 1 < len(args) else ""):
                remaining_args.append(DEFAULT_WATCH)
        return super().parse_args(ctx, remaining_args)


def _is_interval(text: str) -> bool:
    try:
        return text[:1] in tuple(".0123456789") and parse_seconds(text, "--watch") >= 0
    except UsageError:
        return False


def watch_command(once: Callable[[], int], seconds: float | None, count: int | None) -> int:
    """Calls ``once`` every ``seconds`` seconds, and at most ``count`` times if ``count`` is given. If ``seconds`` is
    None, calls ``once`` only one time. Returns the exit code of the last call.

    Prints an error in one line with the time, and continues, because a server may respond again later. The first call
    may also find that the command line is wrong; then the error ends the command.
    """
    if seconds is None:
        return once()
    code = 0
    done = 0
    output = _WatchedOutput()
    token = WATCHED_OUTPUT.set(output)
    try:
        while True:
            output.begin(seconds)
            code = _output(once, output.time, first=not done)
            done += 1
            if count is not None and done >= count:
                return code
            time.sleep(seconds)
    except KeyboardInterrupt:
        return code
    finally:
        WATCHED_OUTPUT.reset(token)


def _output(once: Callable[[], int], time_of_output: str, *, first: bool) -> int:
    try:
        return once()
    except OffsetMgrError as error:
        if isinstance(error, UsageError) or (first and not error.retriable):
            raise
        note(f"error: {time_of_output}: {worded(error)}")
        return FAILED


class _WatchedOutput:
    """Adds the time of each output to the tables of a watched command, unless a terminal shows only the last output."""

    def __init__(self) -> None:
        self.time = ""
        self._dated = False
        self._names: list[str] = []
        self._changes: dict[tuple[Column, ...], Changes] = {}

    def changes(self, columns: Sequence[Column], *, key: Sequence[str], value: str, position: str) -> Changes:
        """Returns the changes of a table since the previous output."""
        if (known := tuple(columns)) not in self._changes:
            self._changes[known] = Changes(columns, key=key, value=value, position=position)
        return self._changes[known]

    def begin(self, seconds: float) -> None:
        """Begins the next output."""
        self.time, self._dated = _now(), False
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[2J\x1b[H")
            sys.stdout.flush()
            note(f"{self.time}, every {seconds:g} s; Ctrl-C ends")

    def write(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]], output: OutputFormat) -> int:
        """Writes rows like `write_rows`. JSON has one object a line, and CSV one title line for all outputs, so that a
        program can read the rows as they arrive."""
        if output is OutputFormat.TABLE:
            if not self._dated and not sys.stdout.isatty():
                sys.stdout.write(f"{self.time}\n")
            self._dated = True
            return write_table(columns, rows)
        columns, rows = (Column("time"), *columns), ((self.time, *row) for row in rows)
        if output is OutputFormat.JSON:
            return write_json_lines(columns, rows)
        names = [column.name for column in columns]
        has_titles, self._names = names == self._names, names
        return write_csv(columns, rows, titles=not has_titles)


def _now() -> str:
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


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


# ``--sort``, ``--top`` and ``--totals`` of the tables of partitions, and their changes with ``--watch``.

Sort = Annotated[
    str | None,
    opt(
        "--sort",
        "COLUMN",
        "Sort by a column, such as lag: numbers from the largest, texts from A; unknown values last.",
    ),
]
Top = Annotated[
    int | None,
    opt("--top", "N", "Show only the first N rows; sorts by lag without --sort.", min=1),
]
Totals = Annotated[bool, flag("--totals", "Show one row for each group: partitions, total lag, largest lag.")]
TOTALS: Final = (
    Column("group"),
    Column("partitions", right=True),
    Column("lag", right=True, attention=True),
    Column("largest_lag", right=True),
    Column("unknown_lags", right=True, attention=True),
)


class PartitionFlags(NamedTuple):
    """The options of tables of partitions."""

    show_totals: Totals = False
    sort: Sort = None
    top: Top = None
    output: FormatOption = OutputFormat.TABLE


def write_changes(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    output: OutputFormat,
    *,
    key: Sequence[str],
    value: str,
    position: str,
) -> int:
    """Writes rows like `write_rows`, with their `Changes` if ``--watch`` repeats the command."""
    if (watched := WATCHED_OUTPUT.get()) is None:
        return write_rows(columns, rows, output)
    changes = watched.changes(columns, key=key, value=value, position=position)
    return write_rows(changes.columns, changes.add(rows), output)


class PartitionTable:
    """Writes the rows of partitions, with their changes if ``--watch`` repeats the command.

    ``value`` is the column of which ``--watch`` shows the change. Raises `UsageError` if no column has the name that
    ``--sort`` gives.
    """

    def __init__(self, columns: Sequence[Column], flags: PartitionFlags, *, value: str = "lag") -> None:
        self._partitions, self._flags = columns, flags
        self.columns: Sequence[Column] = TOTALS if flags.show_totals else columns
        self._changes = None
        if (watched := WATCHED_OUTPUT.get()) is not None:
            key = ("group",) if flags.show_totals else ("group", "topic", "partition")
            position = value if flags.show_totals else "offset"
            self._changes = watched.changes(self.columns, key=key, value=value, position=position)
            self.columns = self._changes.columns
        _sort_column(self.columns, flags.sort)

    def write(self, rows: Iterable[Sequence[Any]]) -> int:
        """Writes the rows, and returns how many were written."""
        show_totals, sort, top, output = self._flags
        if show_totals:
            rows = totals(self._partitions, rows)
        if self._changes is not None:
            rows = self._changes.add(rows)
        if sort is not None or top is not None:
            rows = ordered(self.columns, rows, sort, top)
        return write_rows(self.columns, rows, output)


def _sort_column(columns: Sequence[Column], sort: str | None) -> int:
    names = [column.name for column in columns]
    name = (sort or "lag").lower().replace("-", "_")
    if sort is not None and name not in names:
        raise UsageError(f"--sort {sort}", "no column has this name", f"columns: {', '.join(names)}")
    return names.index(name) if name in names else 0


def ordered(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], sort: str | None, top: int | None
) -> Iterable[Sequence[Any]]:
    """Sorts the rows by the column ``sort`` (default: lag), and keeps the first ``top`` rows."""
    at = _sort_column(columns, sort)
    descending = columns[at].right

    def key(row: Sequence[Any]) -> tuple[bool, Any]:
        value = row[at]
        return (value is None, 0 if value is None else -value if descending and isinstance(value, int) else value)

    return sorted(rows, key=key) if top is None else heapq.nsmallest(top, rows, key=key)


def totals(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Rows of `TOTALS`. The rows of a group follow one another. Rows without a partition count only as their group.

    The total contains the known lags; it is unknown if all lags are unknown.
    """
    names = [column.name for column in columns]
    partition, lag = names.index("partition"), names.index("lag")
    for group, of_group in groupby(rows, key=lambda row: row[0]):
        lags = [row[lag] for row in of_group if row[partition] is not None]
        known = [one for one in lags if one is not None]
        total = sum(known) if known or not lags else None
        yield (group, len(lags), total, max(known, default=None), len(lags) - len(known))
