"""Fits tables into the terminal: shortens identifiers in the middle, leaves out the least important ones, and wraps the
last column. If that is not enough, it also shortens the names of groups and topics.

`set_wide` switches this off for one command line, which then shows all columns and all values in full.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

SHORTEST: Final = 16
"""The smallest number of characters to which identifiers are shortened."""
SHORTEST_LAST: Final = 10
"""The same for the last identifier that a table still shows."""
MIN_WRAP_WIDTH: Final = 20
"""A table's last column is wrapped only if the terminal has at least this width left for the column."""
NAME_RANK: Final = -1
"""The rank of names. They are shortened only after all other columns, and never left out."""
_NAMES: Final = frozenset({"group", "target_group", "topic"})
_GAP: Final = 2
_wide: Final = ContextVar("_wide", default=False)


def set_wide(wide: bool) -> None:
    """Whether tables ignore the width of the terminal, as with ``--wide``."""
    _wide.set(wide)


def table_width() -> int | None:
    """Returns the width to which tables are fitted, or None if stdout is not a terminal or ``--wide`` is given."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and not _wide.get() else None


def rank_of(column: str, rank: int) -> int:
    """Returns the rank of the column with this name, which is `NAME_RANK` for names of groups and topics."""
    return NAME_RANK if column in _NAMES else rank


def fit_note(columns: Sequence[str], whole: Sequence[int], fitted: Sequence[int | None]) -> str:
    """Returns a note about the columns that a table leaves out, and about shortened names, or an empty string.

    ``whole`` are the widths of the complete values.
    """
    titles = [column.upper().replace("_", "-") for column in columns]
    left_out = [title for title, width in zip(titles, fitted, strict=True) if width is None]
    changes = [f"left out: {', '.join(left_out)}"] if left_out else []
    found = zip(columns, titles, whole, fitted, strict=True)
    if names := [title for column, title, width, now in found if column in _NAMES and now != width]:
        changes.append(f"shortened: {', '.join(names)}")
    return f"{'; '.join(changes)}; --wide shows all columns{' and names' if names else ''}" if changes else ""


def fitted_widths(widths: Sequence[int], ranks: Sequence[int], available: int) -> list[int | None]:
    """Returns the width of each column of a table that is at most ``available`` wide, if possible. None means that the
    table leaves the column out.

    ``widths`` are the widths of the complete values. First, columns with a rank above 0 are changed: all of them are
    shortened, the widest first; then those with the largest rank are left out. Then names (`NAME_RANK`) are shortened.
    The last column can be wrapped, so it needs at most `MIN_WRAP_WIDTH`, or half of the line if names are shortened.
    """
    left_out: set[int] = set()
    by_rank = sorted((i for i, rank in enumerate(ranks) if rank > 0), key=lambda i: -ranks[i])
    wraps = ranks[-1] == 0
    for dropped in (None, *by_rank):
        if dropped is not None:
            left_out.add(dropped)
        fitted: list[int | None] = [None if i in left_out else width for i, width in enumerate(widths)]
        shortest = SHORTEST if len(by_rank) - len(left_out) > 1 else SHORTEST_LAST
        excess = _shorten(
            fitted, [i for i in by_rank if i not in left_out], shortest, _needed(fitted, wraps) - available
        )
        if excess <= 0:
            return fitted
    names = [i for i, rank in enumerate(ranks) if rank == NAME_RANK]
    _shorten(fitted, names, SHORTEST, _needed(fitted, wraps, available // 2) - available)
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


def _needed(widths: Sequence[int | None], wraps: bool, wrap_width: int = MIN_WRAP_WIDTH) -> int:
    shown = [width for width in widths if width is not None]
    if wraps and widths[-1] is not None:
        shown[-1] = min(shown[-1], wrap_width)
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


def shortened(text: str, width: int) -> str:
    """Returns the text without its middle if it is wider than ``width``. The end stays, because the end of a member id
    identifies the member."""
    if text_width(text) <= width:
        return text
    end = (width - 2) // 2
    return f"{_beginning(text, width - 2 - end)}..{_beginning(text[::-1], end)[::-1]}"


def _beginning(text: str, width: int) -> str:
    kept = text[:width]
    while text_width(kept) > width:
        kept = kept[:-1]
    return kept


class _CommaWrapper(textwrap.TextWrapper):
    """Breaks lines at spaces and after commas, but not in words."""

    wordsep_simple_re = re.compile(r"([\t\n\x0b\x0c\r ]+|(?<=,))")


def wrapped_line(cells: Sequence[str], widths: Sequence[int], available: int) -> str:
    """Joins the padded cells of a line. Wraps the last cell at the width of the terminal, unless little of the width is
    left for it or an earlier cell is too wide for its column."""
    line = "  ".join(cells).rstrip()
    indent = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    aligned = all(text_width(cell) == width for cell, width in zip(cells[:-1], widths[:-1], strict=True))
    if text_width(line) <= available or available - indent < MIN_WRAP_WIDTH or not aligned:
        return line
    wrapper = _CommaWrapper(available - indent, break_long_words=False, break_on_hyphens=False)
    before = "  ".join((*cells[:-1], ""))
    return before + f"\n{' ' * indent}".join(wrapper.wrap(cells[-1].rstrip()))
