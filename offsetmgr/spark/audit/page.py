"""Renders the report page of an audit: one HTML file without scripts and without references to other files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NamedTuple

from offsetmgr.spark.audit.page_style import STYLE
from offsetmgr.spark.audit.plots import Point, bars, lines, moment

PAGE: Final = "index.html"
"""File name of the page in an audit's directory."""
SHOWN: Final = 20
"""Maximum number of rows in each table of the page."""


class UnsteadyGroup(NamedTuple):
    """A group with rewinds or gaps in its commits. ``largest_rewind`` is a number of offsets; None if the group has no
    rewind."""

    group: str
    rewinds: int
    largest_rewind: int | None
    gaps: int
    longest_silence_ms: int | None


class DifferingRow(NamedTuple):
    """A group that differs between the log and the other store. ``partitions`` is the number of partitions that differ.
    ``log_ahead`` is the number of offsets by which the log is ahead of the store, and ``store_ahead`` is the number by
    which the store is ahead of the log. Both count only partitions that the log and the store have."""

    group: str
    partitions: int
    log_ahead: int
    store_ahead: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the log and another store: the number of partitions of each kind
    (`compare.differences`), and the groups that differ."""

    store: str
    kinds: Sequence[tuple[str, int]]
    groups: Sequence[DifferingRow]


@dataclass(frozen=True, slots=True)
class PageData:
    """The content of the page. Times are milliseconds since 1970; None means unknown.

    ``title`` is the topic, ``source`` its brokers. ``facts`` are numbers with their names. ``lag_over_time`` and
    ``commit_rate`` (commits per minute) are the lines of the plots, by name. ``top`` are the groups with the largest
    lag. A row of ``lag`` is the group, the number of its partitions, its lag, and the number of its partitions with
    unknown lag. A row of ``silent`` is the group, its last commit, and the days since then. A row of ``expiring`` is
    the group, the number of its partitions, the earliest expiry, and the basis of the forecast. ``comparison`` is None
    if no store was compared.
    """

    title: str
    source: str
    made_at: int
    facts: Sequence[tuple[str, int | None]]
    lag_over_time: Mapping[str, Sequence[Point]]
    commit_rate: Mapping[str, Sequence[Point]]
    top: Sequence[tuple[str, float]]
    lag: Sequence[tuple[str, int, int | None, int]]
    unsteady: Sequence[UnsteadyGroup]
    silent: Sequence[tuple[str, int, float]]
    expiring: Sequence[tuple[str, int, int, str]]
    comparison: Comparison | None = None


class _Column(NamedTuple):
    """A column of a table. ``kind`` is ``name`` (its lines may break anywhere), ``number``, ``time`` (its lines never
    break) or ``words``."""

    title: str
    kind: str


_GROUP: Final = _Column("group", "name")
_SIDE_BY_SIDE: Final = 30
"""Maximum total length of the titles of columns that are side by side in a narrow window."""
_KINDS: Final = {
    "only-left": "only in the log",
    "only-right": "only in the store",
    "offset": "another offset",
    "metadata": "other metadata",
    "leader-epoch": "another leader epoch",
    "unreadable": "could not be read",
}
"""The page's texts for the kinds of `compare.differences`; the log is on the left."""


def page(data: PageData) -> str:
    """Returns the content of the HTML file."""
    brokers = data.source.replace(",", ", ")  # so that lines can break
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{_cell(value)}</dd></div>" for name, value in data.facts)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(data.title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(data.title)}</h1>",
        f"<p>Read {moment(data.made_at)} from {escape(brokers)}. All times are UTC.</p>",
        f"<dl>{facts}</dl>",
        '<div class="plots"><section>',
        "<h2>Lag over time</h2>",
        lines(data.lag_over_time, "Lag over time"),
        "<p>The lag of the groups with the largest lag: the number of records between the offset that was committed at "
        "a time and the log's end at that time, by the timestamps of the records that the logs still have.</p>",
        "</section><section>",
        "<h2>Commit rate</h2>",
        lines(data.commit_rate, "Commit rate"),
        "<p>Committed offsets per minute, without the older commits that compaction has removed.</p>",
        "</section></div>",
        "<h2>Groups with the largest lag</h2>",
        bars(data.top, "Groups with the largest lag"),
        _part(
            "Lag",
            "lag",
            _LAG,
            data.lag,
            "The lag of a partition is unknown if its log does not exist or ends before the offset.",
        ),
        _part("Rewinds and gaps", "history", _UNSTEADY, [_unsteady_cells(row) for row in data.unsteady]),
        _part("Silent groups", "silent", _SILENT, [(group, moment(at), days) for group, at, days in data.silent]),
        _part(
            "Next to expire",
            "expiry",
            _EXPIRING,
            [(group, count, moment(at), how) for group, count, at, how in data.expiring],
            "The forecast assumes no further commits: one retention time after the commit (commit) or after the last "
            "member left (left), or the client's own expiry time (own).",
        ),
    ]
    if data.comparison is not None:
        parts += _comparison_parts(data.comparison)
    return "".join([*parts, "</body></html>\n"])


_LAG: Final = (_GROUP, _Column("partitions", "number"), _Column("lag", "number"), _Column("unknown", "number"))
_UNSTEADY: Final = (
    _GROUP,
    _Column("rewinds", "number"),
    _Column("largest, in offsets", "number"),
    _Column("gaps", "number"),
    _Column("longest silence", "time"),
)
_SILENT: Final = (_GROUP, _Column("last commit", "time"), _Column("days", "number"))
_EXPIRING: Final = (
    _GROUP,
    _Column("partitions", "number"),
    _Column("the first", "time"),
    _Column("basis", "words"),
)
_DIFFERING: Final = (
    _GROUP,
    _Column("partitions that differ", "number"),
    _Column("the log is ahead by", "number"),
    _Column("the store is ahead by", "number"),
)


def _comparison_parts(found: Comparison) -> list[str]:
    title = f"<h2>Differences from {escape(found.store)}</h2>"
    if not found.kinds:
        return [title, '<p class="none">None.</p>']
    return [
        f"{title}<p>Number of partitions. Groups that committed between the reads of the log and the store differ.</p>",
        bars([(_KINDS[kind], count) for kind, count in found.kinds], "Differences"),
        _part("Groups that differ", "differences", _DIFFERING, found.groups),
    ]


def _part(title: str, table: str, columns: Sequence[_Column], rows: Sequence[Sequence[Any]], meaning: str = "") -> str:
    """Renders a section. ``table`` is the name, in `run.COMPARED`, of the table that contains all rows. ``meaning``
    explains the columns."""
    more = f"The first {SHOWN}; the table {table} has more." if len(rows) >= SHOWN else ""
    text = " ".join(filter(None, (meaning if rows else "", more)))
    return f"<h2>{escape(title)}</h2>{f'<p>{escape(text)}</p>' if text else ''}{_table(columns, rows)}"


def _table(columns: Sequence[_Column], rows: Sequence[Sequence[Any]]) -> str:
    """Renders a table. In a narrow window the first cell is above the other cells of its row. If the titles are many or
    long, each cell is on a separate line."""
    if not rows:
        return '<p class="none">None.</p>'
    head = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-name="{escape(title)}">{_cell(value)}</td>'
            for (title, kind), value in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    many = sum(len(column.title) for column in columns) > _SIDE_BY_SIDE
    form = 'class="many"' if many else f'class="few" style="--n:{len(columns) - 1}"'
    return f"<table {form}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _unsteady_cells(row: UnsteadyGroup) -> tuple[object, ...]:
    silence = None if row.longest_silence_ms is None else duration(row.longest_silence_ms)
    return (row.group, row.rewinds, row.largest_rewind or 0, row.gaps, silence)


def duration(spent_ms: int) -> str:
    """Formats a duration with its two largest units: ``3 d 4 h``, ``2 h 0 min``, ``12 s``."""
    seconds = spent_ms // 1000
    for size, unit, smaller, name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:,} {unit} {seconds % size // smaller} {name}"
    return f"{seconds} s"


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))
