"""A document for people, as one HTML file without scripts and without references to other files, as Markdown, or as
text. Pure, except that `to_html` reads the style sheet.

A document is a title and a list of parts. The renderers escape all texts. In tables, None is shown as "unknown".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.core.plurals import printable

COLOURS: Final = 6
"""Maximum number of distinguishable lines in a plot. The style sheet has a colour for each line."""
_STYLE: Final = Path(__file__).with_name("document.css")
"""The style sheet of HTML documents, for light and dark themes and for windows of any width."""
_LINE: Final = "_" * 12
"""A line to write on."""
TEXT_WIDTH: Final = 80
_SIDE_BY_SIDE: Final = 30
"""Maximum total length of the titles of columns that are side by side in a narrow window."""


Columns: TypeAlias = Mapping[str, str]
"""The columns of a table: the kind of each title. A kind is ``name`` (its lines may break anywhere), ``number``,
``time`` (its lines never break), ``words`` or ``code``."""


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

    columns: Columns
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
        f"<title>{escape(title)}</title><style>{_STYLE.read_text('utf-8')}</style></head><body>",
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
            facts = "".join(
                f"<div><dt>{escape(name)}</dt><dd>{escape(_plain_cell(value))}</dd></div>" for name, value in values
            )
            return f"<dl>{facts}</dl>"
        case Table(columns, rows):
            return _html_table(columns, rows)
        case Html(markup):
            return markup


def _html_table(columns: Columns, rows: Sequence[Sequence[Any]]) -> str:
    """Renders a table. In a narrow window the first cell is above the other cells of its row. If the titles are many or
    long, or if there are commands, each cell is on a separate line."""
    if not rows:
        return '<p class="none">None.</p>'
    head = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in columns.items())
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-name="{escape(title)}">{escape(_plain_cell(value))}</td>'
            for (title, kind), value in zip(columns.items(), row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    many = "code" in columns.values() or sum(map(len, columns)) > _SIDE_BY_SIDE
    form = 'class="many"' if many else f'class="few" style="--n:{len(columns) - 1}"'
    return f"<table {form}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def to_markdown(title: str, parts: Iterable[DocumentPart]) -> str:
    """Returns the document as Markdown. It omits `Html` parts."""
    return _to_lines(title, parts, _MARKDOWN)


def to_text(title: str, parts: Iterable[DocumentPart]) -> str:
    """Returns the document as text of at most `TEXT_WIDTH` columns for a terminal or a mail. Only names and commands
    can be longer, so that they can be copied. It omits `Html` parts."""
    return _to_lines(title, parts, _TEXT)


class _LineFormat(NamedTuple):
    """A format of lines: how it shows a heading of a level, a text after a mark such as "- ", and a table."""

    heading: Callable[[str, int], list[str]]
    text: Callable[[str, str], list[str]]
    table: Callable[[Columns, Sequence[Sequence[Any]]], list[str]]


def _to_lines(title: str, parts: Iterable[DocumentPart], style: _LineFormat) -> str:
    lines = style.heading(title, 1)
    for part in parts:
        match part:
            case SectionTitle(text, level):
                lines += style.heading(text, level)
            case Paragraph(text):
                lines += [*style.text(text, ""), ""]
            case Items(texts, boxes):
                lines += [*(line for text in texts for line in style.text(text, "- [ ] " if boxes else "- ")), ""]
            case Code(text, language):
                fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
                lines += [f"{fence}{language}", text, fence, ""]
            case Blanks(names):
                lines += [*style.text(" ".join(f"{name}: {_LINE}" for name in names), ""), ""]
            case Facts(values):
                texts = [f"{name}: {_plain_cell(value)}" for name, value in values]
                lines += [*(line for text in texts for line in style.text(text, "- ")), ""]
            case Table(columns, rows):
                lines += [*(style.table(columns, rows) if rows else ["None."]), ""]
            case Html():
                pass
    return "\n".join(lines)


def _plain_cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int | float) else printable(str(value))


def _wrapped(text: str, mark: str = "", indent: int | None = None) -> list[str]:
    """Returns the lines of a text after a mark. The further lines have ``indent`` spaces (default: those of the
    mark)."""
    rest = " " * (len(mark) if indent is None else indent)
    line = mark + printable(text)
    return wrap(line, TEXT_WIDTH, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def _text_table(columns: Columns, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the lines of a table. If the table is too wide, each cell has lines of its own."""
    lines = [[*columns], *([_plain_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if sum(widths) + 2 * len(widths) - 2 <= TEXT_WIDTH:
        sides = (">" if kind == "number" else "<" for kind in columns.values())
        formats = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
        return ["  ".join(map(format, cells, formats)).rstrip() for cells in lines]
    found: list[str] = []
    for name, *others in lines[1:]:
        found.append(name)
        for (title, kind), cell in zip([*columns.items()][1:], others, strict=True):
            if cell:
                found += [f"  {title}: {cell}"] if kind == "code" else _wrapped(cell, f"  {title}: ", 4)
    return found


def _markdown_text(text: str) -> str:
    """Escapes the characters that Markdown would interpret."""
    line = "".join(f"\\{char}" if char in "\\`*_[]<#" else char for char in printable(" ".join(text.split())))
    return f"\\{line}" if line.startswith((">", "+", "-")) else line


def _markdown_cell(value: Any, kind: str) -> str:
    text = _plain_cell(value)
    if value is None or isinstance(value, int | float) or not text or kind == "time":
        return text
    if kind in ("name", "code") and "`" not in text:
        return f"`{text}`"
    return _markdown_text(text)


def _markdown_table(columns: Columns, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Returns a Markdown table with aligned columns, so that the Markdown source is readable too."""
    kinds = columns.values()
    texts = ([_markdown_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows)
    cells = [list(columns), *([cell.replace("|", "\\|") for cell in row] for row in texts)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


_MARKDOWN: Final = _LineFormat(
    lambda text, level: [f"{'#' * level} {_markdown_text(text)}", ""],
    lambda text, mark: [mark + _markdown_text(text)],
    _markdown_table,
)
_TEXT: Final = _LineFormat(
    lambda text, level: [printable(text), " =-~~"[level] * len(printable(text))], _wrapped, _text_table
)


def moment(at_ms: int, *, seconds: bool = False) -> str:
    """Formats a time (UTC) as ``2026-01-31 12:00``, with ``seconds`` as ``2026-01-31 12:00:30``. A time outside the
    calendar's range stays a number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M" + ":%S" * seconds)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def time_text(at_ms: int) -> str:
    """Formats a time in UTC, with a precision of seconds."""
    return f"{moment(at_ms, seconds=True)} UTC"
