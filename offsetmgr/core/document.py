"""A document for people, as one HTML file without scripts and without references to other files, or as Markdown. Pure.

A document is a title and a list of parts. Both renderers escape all texts. In tables, None is shown as "unknown".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.core.document_style import STYLE
from offsetmgr.core.plurals import printable

_LINE: Final = "\\_" * 12
"""A line to write on, in Markdown."""
_SIDE_BY_SIDE: Final = 30
"""Maximum total length of the titles of columns that are side by side in a narrow window."""


class DocumentColumn(NamedTuple):
    """A column of a table. ``kind`` is ``name`` (its lines may break anywhere), ``number``, ``time`` (its lines never
    break), ``words`` or ``code``."""

    title: str
    kind: str


@dataclass(frozen=True, slots=True)
class SectionTitle:
    """The heading of a section (``level`` 2), or of a part of a section (3 and 4)."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of texts. With ``boxes``, the reader ticks each of them."""

    texts: Sequence[str]
    boxes: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Lines that are shown unchanged. ``language`` is ``sh`` for commands, ``text`` for their output."""

    text: str
    language: str = "sh"


@dataclass(frozen=True, slots=True)
class Blanks:
    """Fields that the reader fills in."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Single values with their names."""

    values: Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Each row has a value for each column."""

    columns: Sequence[DocumentColumn]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that only the HTML file contains, such as a plot. The caller has escaped its texts."""

    markup: str


DocumentPart: TypeAlias = SectionTitle | Paragraph | Items | Code | Blanks | Facts | Table | Html


def to_html(title: str, parts: Iterable[DocumentPart]) -> str:
    """Returns the content of the HTML file."""
    head = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    return "".join([*head, *map(_html_part, parts), "</body></html>\n"])


def _html_part(part: DocumentPart) -> str:
    match part:
        case SectionTitle(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Items(texts, boxes):
            items = "".join(f"<li>{escape(text)}</li>" for text in texts)
            return ('<ul class="boxes">' if boxes else "<ul>") + items + "</ul>"
        case Code(text, language):
            return f'<pre class="{language}"><code>{escape(text)}</code></pre>'
        case Blanks(names):
            fields = "".join(f"<span>{escape(name)}</span>" for name in names)
            return f'<p class="blanks">{fields}</p>'
        case Facts(values):
            facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{_html_cell(value)}</dd></div>" for name, value in values)
            return f"<dl>{facts}</dl>"
        case Table(columns, rows):
            return _html_table(columns, rows)
        case Html(markup):
            return markup


def _html_table(columns: Sequence[DocumentColumn], rows: Sequence[Sequence[Any]]) -> str:
    """Renders a table. In a narrow window the first cell is above the other cells of its row. If the titles are many or
    long, each cell is on a separate line."""
    if not rows:
        return '<p class="none">None.</p>'
    head = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-name="{escape(title)}">{_html_cell(value)}</td>'
            for (title, kind), value in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    many = sum(len(column.title) for column in columns) > _SIDE_BY_SIDE
    form = 'class="many"' if many else f'class="few" style="--n:{len(columns) - 1}"'
    return f"<table {form}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))


def to_markdown(title: str, parts: Iterable[DocumentPart]) -> str:
    """Returns the document as Markdown. It omits `Html` parts."""
    lines = [f"# {_markdown_text(title)}", ""]
    for part in parts:
        match part:
            case SectionTitle(text, level):
                lines += [f"{'#' * level} {_markdown_text(text)}", ""]
            case Paragraph(text):
                lines += [_markdown_text(text), ""]
            case Items(texts, boxes):
                lines += [*(f"- {'[ ] ' * boxes}{_markdown_text(text)}" for text in texts), ""]
            case Code(text, language):
                fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
                lines += [f"{fence}{language}", text, fence, ""]
            case Blanks(names):
                lines += [" ".join(f"{_markdown_text(name)}: {_LINE}" for name in names), ""]
            case Facts(values):
                lines += [*(f"- {_markdown_text(name)}: {_markdown_cell(value)}" for name, value in values), ""]
            case Table(columns, rows):
                cells = [[_markdown_cell(v, c.kind) for c, v in zip(columns, row, strict=True)] for row in rows]
                titles = [column.title for column in columns]
                lines += [*(markdown_table(titles, cells) if rows else ["None."]), ""]
            case Html():
                pass
    return "\n".join(lines)


def _markdown_text(text: str) -> str:
    """Escapes the characters that Markdown would interpret."""
    line = "".join(f"\\{char}" if char in "\\`*_[]<#" else char for char in printable(" ".join(text.split())))
    return f"\\{line}" if line.startswith((">", "+", "-")) else line


def _markdown_cell(value: Any, kind: str = "words") -> str:
    if value is None:
        return "unknown"
    if isinstance(value, int | float):
        return f"{value:,}"
    text = printable(str(value))
    if not text or kind == "time":
        return text
    if kind in ("name", "code") and "`" not in text:
        return f"`{text}`"
    return _markdown_text(text)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a Markdown table with aligned columns, so that the Markdown source is readable too."""
    cells = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def moment(at_ms: int, *, seconds: bool = False) -> str:
    """Formats a time (UTC) as ``2026-01-31 12:00``, with ``seconds`` as ``2026-01-31 12:00:30``. A time outside the
    calendar's range stays a number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M" + ":%S" * seconds)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
