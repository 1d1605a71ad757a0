"""The report page of an audit: one self-contained HTML file, readable without Spark and without a network. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NamedTuple

from offsetmgr.spark.audit.page_style import STYLE
from offsetmgr.spark.audit.plots import Point, bars, lines, moment

PAGE: Final = "index.html"
"""File name in an audit's directory."""
SHOWN: Final = 20
"""Rows of each table of the page, at most."""


class UnsteadyGroup(NamedTuple):
    """A group whose commits went back or paused; ``largest_rewind`` in offsets, None without a rewind."""

    group: str
    rewinds: int
    largest_rewind: int | None
    gaps: int
    longest_silence_ms: int | None


class DifferingRow(NamedTuple):
    """A group that differs between the log and the other store: the number of partitions, and by how many offsets each
    side is ahead if both have one."""

    group: str
    partitions: int
    log_ahead: int
    store_ahead: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the log and another store: partitions by kind (`compare.differences`), and by group."""

    store: str
    kinds: Sequence[tuple[str, int]]
    groups: Sequence[DifferingRow]


@dataclass(frozen=True, slots=True)
class PageData:
    """The content of the page. Times are milliseconds since 1970; None means unknown.

    ``title`` is the topic, ``source`` its brokers. ``facts`` are numbers with their names. ``lag_over_time`` and
    ``commit_rate`` (commits a minute) are lines by group, ``top`` the groups with the largest lag. Rows of ``lag``:
    group, partitions, lag, partitions of unknown lag; of ``silent``: group, last commit, days; of ``expiring``: group,
    partitions, the first to expire, the basis of the forecast. ``comparison`` is None if no store was compared.
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
    """``kind``: ``name`` (may break anywhere), ``number``, ``time`` (never breaks) or ``words``."""

    title: str
    kind: str


_GROUP: Final = _Column("group", "name")
_SIDE_BY_SIDE: Final = 30
"""Maximum number of title characters side by side on a phone."""
_KINDS: Final = {
    "only-left": "only in the log",
    "only-right": "only in the store",
    "offset": "another offset",
    "metadata": "other metadata",
    "leader-epoch": "another leader epoch",
    "unreadable": "could not be read",
}
"""The kinds of `compare.differences` (the log is left), and their texts on the page."""


def page(data: PageData) -> str:
    """The whole file."""
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
        "<p>Of the groups with the largest lag: records from their commits of that time to the log's end then, by the "
        "timestamps of the records that the logs still hold.</p>",
        "</section><section>",
        "<h2>Commit rate</h2>",
        lines(data.commit_rate, "Commit rate"),
        "<p>Offsets committed a minute, of the commits that the log still holds: compaction takes older ones.</p>",
        "</section></div>",
        "<h2>Groups with the largest lag</h2>",
        bars(data.top, "Groups with the largest lag"),
        _part(
            "Lag", "lag", _LAG, data.lag, "Unknown are partitions whose log is not there, or ends before the offset."
        ),
        _part("Rewinds and gaps", "history", _UNSTEADY, [_unsteady_cells(row) for row in data.unsteady]),
        _part("Silent groups", "silent", _SILENT, [(group, moment(at), days) for group, at, days in data.silent]),
        _part(
            "Next to expire",
            "expiry",
            _EXPIRING,
            [(group, count, moment(at), how) for group, count, at, how in data.expiring],
            "If nothing happens: a retention after the commit, or after the last member left; own: the client's time.",
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
        f"{title}<p>In partitions. The log was read first, then the store: groups that commit meanwhile differ.</p>",
        bars([(_KINDS[kind], count) for kind, count in found.kinds], "Differences"),
        _part("Groups that differ", "differences", _DIFFERING, found.groups),
    ]


def _part(title: str, table: str, columns: Sequence[_Column], rows: Sequence[Sequence[Any]], meaning: str = "") -> str:
    """``table`` is the table of `run.COMPARED` with all rows; ``meaning`` explains the columns."""
    more = f"The first {SHOWN}; the table {table} has more." if len(rows) >= SHOWN else ""
    text = " ".join(filter(None, (meaning if rows else "", more)))
    return f"<h2>{escape(title)}</h2>{f'<p>{escape(text)}</p>' if text else ''}{_table(columns, rows)}"


def _table(columns: Sequence[_Column], rows: Sequence[Sequence[Any]]) -> str:
    """In a narrow window the name is above the other cells, or, with many or long titles, each cell is on its own
    line."""
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
    """``3 d 4 h``, ``2 h 0 min``, ``12 s``: the two largest units."""
    seconds = spent_ms // 1000
    for size, unit, smaller, name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:,} {unit} {seconds % size // smaller} {name}"
    return f"{seconds} s"


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))
