"""Renders the report page of an audit: one HTML file without scripts and without references to other files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.document import (
    Columns,
    DocumentPart,
    Facts,
    Html,
    Paragraph,
    SectionTitle,
    Table,
    moment,
    to_html,
)
from offsetmgr.spark.audit.plots import Point, bars, lines

PAGE: Final = "index.html"
"""File name of the page in an audit's directory."""
SHOWN: Final = 20
"""Maximum number of rows in each table of the page."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the log and another store: the number of partitions of each kind
    (`compare.differences`), and the groups that differ.

    A row of ``groups`` is the group, the number of its partitions that differ, the number of offsets by which the log
    is ahead of the store, and the number by which the store is ahead of the log. Both count only partitions that the
    log and the store have.
    """

    store: str
    kinds: Sequence[tuple[str, int]]
    groups: Sequence[tuple[str, int, int, int]]


@dataclass(frozen=True, slots=True)
class PageData:
    """The content of the page. Times are milliseconds since 1970; None means unknown.

    ``title`` is the topic, ``source`` its brokers. ``facts`` are numbers with their names. ``lag_over_time`` and
    ``commit_rate`` (commits per minute) are the lines of the plots, by name. ``top`` are the groups with the largest
    lag. A row of ``lag`` is the group, the number of its partitions, its lag, and the number of its partitions with
    unknown lag. A row of ``unsteady`` is a group with rewinds or gaps in its commits: the number of rewinds, the
    largest rewind in offsets (None without a rewind), the number of gaps, and the longest silence. A row of ``silent``
    is the group, its last commit, and the days since then. A row of ``expiring`` is
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
    unsteady: Sequence[tuple[str, int, int | None, int, int | None]]
    silent: Sequence[tuple[str, int, float]]
    expiring: Sequence[tuple[str, int, int, str]]
    comparison: Comparison | None = None


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
    parts: list[DocumentPart] = [
        Paragraph(f"Read {moment(data.made_at)} from {brokers}. All times are UTC."),
        Facts(data.facts),
        Html('<div class="plots"><section>'),
        SectionTitle("Lag over time"),
        Html(lines(data.lag_over_time, "Lag over time")),
        Paragraph(
            "The lag of the groups with the largest lag: the number of records between the offset that was committed at"
            " a time and the log's end at that time, by the timestamps of the records that the logs still have."
        ),
        Html("</section><section>"),
        SectionTitle("Commit rate"),
        Html(lines(data.commit_rate, "Commit rate")),
        Paragraph("Committed offsets per minute, without the older commits that compaction has removed."),
        Html("</section></div>"),
        SectionTitle("Groups with the largest lag"),
        Html(bars(data.top, "Groups with the largest lag")),
        *_section(
            "Lag",
            "lag",
            _LAG,
            data.lag,
            "The lag of a partition is unknown if its log does not exist or ends before the offset.",
        ),
        *_section(
            "Rewinds and gaps",
            "history",
            _UNSTEADY,
            [
                (group, rewinds, largest or 0, gaps, None if silence_ms is None else duration(silence_ms))
                for group, rewinds, largest, gaps, silence_ms in data.unsteady
            ],
        ),
        *_section("Silent groups", "silent", _SILENT, [(group, moment(at), days) for group, at, days in data.silent]),
        *_section(
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
    return to_html(data.title, parts)


_LAG: Final[Columns] = {"group": "name", "partitions": "number", "lag": "number", "unknown": "number"}
_UNSTEADY: Final[Columns] = {
    "group": "name",
    "rewinds": "number",
    "largest, in offsets": "number",
    "gaps": "number",
    "longest silence": "time",
}
_SILENT: Final[Columns] = {"group": "name", "last commit": "time", "days": "number"}
_EXPIRING: Final[Columns] = {"group": "name", "partitions": "number", "the first": "time", "basis": "words"}
_DIFFERING: Final[Columns] = {
    "group": "name",
    "partitions that differ": "number",
    "the log is ahead by": "number",
    "the store is ahead by": "number",
}


def _comparison_parts(found: Comparison) -> list[DocumentPart]:
    title = SectionTitle(f"Differences from {found.store}")
    if not found.kinds:
        return [title, Table(_DIFFERING, [])]
    return [
        title,
        Paragraph("Number of partitions. Groups that committed between the reads of the log and the store differ."),
        Html(bars([(_KINDS[kind], count) for kind, count in found.kinds], "Differences")),
        *_section("Groups that differ", "differences", _DIFFERING, found.groups),
    ]


def _section(
    title: str, table: str, columns: Columns, rows: Sequence[Sequence[Any]], meaning: str = ""
) -> list[DocumentPart]:
    """Returns the parts of a section. ``table`` is the name, in `run.COMPARED`, of the table that contains all rows.
    ``meaning`` explains the columns."""
    more = f"The first {SHOWN}; the table {table} has more." if len(rows) >= SHOWN else ""
    text = " ".join(filter(None, (meaning if rows else "", more)))
    return [SectionTitle(title), *([Paragraph(text)] if text else []), Table(columns, rows)]


def duration(spent_ms: int) -> str:
    """Formats a duration with its two largest units: ``3 d 4 h``, ``2 h 0 min``, ``12 s``."""
    seconds = spent_ms // 1000
    for size, unit, smaller, name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:,} {unit} {seconds % size // smaller} {name}"
    return f"{seconds} s"
