"""The page of an audit: one HTML file with everything in it, to be read without Spark and without a network. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from offsetmgr.spark.audit.plots import Point, bars, lines, moment

PAGE: Final = "index.html"
"""Its name in an audit's folder."""


@dataclass(frozen=True, slots=True)
class PageData:
    """What the page shows. Times are milliseconds since 1970; None is "not known".

    ``facts`` are numbers with their names. ``lag_over_time`` and ``commits_over_time`` are lines by group, ``top`` the
    groups with the largest lag, ``differences`` counts by kind, None where no store was compared. Rows of ``lag``:
    group, partitions, lag, partitions of unknown lag; of ``silent``: group, last commit, days; of ``expiring``: group,
    partitions, the first to expire, how that is known.
    """

    title: str
    made_at: int
    facts: Sequence[tuple[str, int | None]]
    lag_over_time: Mapping[str, Sequence[Point]]
    commits_over_time: Mapping[str, Sequence[Point]]
    top: Sequence[tuple[str, float]]
    lag: Sequence[tuple[str, int, int | None, int]]
    silent: Sequence[tuple[str, int, float]]
    expiring: Sequence[tuple[str, int, int, str]]
    differences: Sequence[tuple[str, float]] | None = None
    notes: Sequence[str] = field(default=())


_STYLE: Final = """
:root{--ink:#1c2430;--dim:#5d6b7c;--rule:#dbe1e8;--paper:#fff;--c0:#2563a8;--c1:#c2571a;--c2:#2e8540;--c3:#8a3ea8;
--c4:#a8862b;--c5:#c0364c}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ef;--dim:#9aa7b5;--rule:#36414d;--paper:#151b22;--c0:#6ea8e6;
--c1:#ec9560;--c2:#73c285;--c3:#c08bdb;--c4:#d9ba63;--c5:#ee7f90}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.5rem 0 .5rem}
p{margin:.25rem 0 .75rem;color:var(--dim)}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.75rem;margin:1.25rem 0}
dl div{border-top:2px solid var(--rule);padding-top:.4rem}dt{color:var(--dim);font-size:.85rem}
dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto}svg text{font-size:12px;fill:var(--dim)}
.grid{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:2}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:.25rem 0;font-size:.9rem}
.legend li{overflow-wrap:anywhere}.legend li::before{content:"";display:inline-block;width:.8em;height:.8em;
margin-right:.4em;background:currentColor}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--rule);overflow-wrap:anywhere;
vertical-align:top;font-weight:400}
thead th{color:var(--dim);font-size:.85rem}.number{text-align:right;font-variant-numeric:tabular-nums;
white-space:nowrap;padding-right:0;padding-left:.6rem}
.bars td.bar{width:45%}.bars svg{height:1rem;margin-top:.25rem}
""" + "".join(
    f".line.c{n}{{stroke:var(--c{n})}}rect.c{n},circle.c{n}{{fill:var(--c{n})}}li.c{n}::before{{color:var(--c{n})}}\n"
    for n in range(6)
)


def page(data: PageData) -> str:
    """The whole file."""
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{_cell(value)}</dd></div>" for name, value in data.facts)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(data.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(data.title)}</h1><p>Read {moment(data.made_at)} UTC. All times are UTC.</p>",
        *(f"<p>{escape(note)}</p>" for note in data.notes),
        f"<dl>{facts}</dl>",
        "<h2>Lag over time</h2><p>Records between the commits of that time and the log's end then, by the timestamps "
        "of the records. The groups with the largest lag.</p>",
        lines(data.lag_over_time, "Lag over time"),
        "<h2>Commits over time</h2><p>Commits that the log still holds, each offset counted.</p>",
        lines(data.commits_over_time, "Commits over time"),
        "<h2>Groups with the largest lag</h2>",
        bars(data.top, "Groups with the largest lag"),
        "<h2>Lag</h2>",
        _table(("group", "partitions", "lag", "unknown"), data.lag),
        "<h2>Silent groups</h2>",
        _table(("group", "last commit", "days"), [(g, moment(at), days) for g, at, days in data.silent]),
        "<h2>Next to expire</h2>",
        _table(
            ("group", "partitions", "first", "how it is known"),
            [(group, count, moment(at), how) for group, count, at, how in data.expiring],
        ),
    ]
    if data.differences is not None:
        parts += ["<h2>Differences from the other store</h2>", bars(data.differences, "Differences by kind")]
    return "".join([*parts, "</body></html>\n"])


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return '<p class="none">None.</p>'
    numbers = [all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(titles))]
    shown = [' class="number"' if number else "" for number in numbers]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for kind, title in zip(shown, titles, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(value)}</td>" for kind, value in zip(shown, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))
