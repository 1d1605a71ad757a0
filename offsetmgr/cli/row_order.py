"""``--sort``, ``--top`` and ``--totals`` of the tables of partitions, and their changes with ``--watch``."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Final, NamedTuple

from offsetmgr.cli.options import FormatOption, flag, opt
from offsetmgr.cli.output_collector import WATCHED_OUTPUT
from offsetmgr.cli.render import Column, OutputFormat, write_rows
from offsetmgr.core.errors import UsageError

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
