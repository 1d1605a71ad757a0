"""Fits tables into the terminal: shortens identifiers in the middle, leaves out the least important ones, and wraps the
last column. Names of groups and topics are shortened before the most important identifier is left out.

`set_wide` switches this off for one command line, which then shows all columns and all values in full.
"""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Final

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
    then the columns with the largest rank are left out. Names (`NAME_RANK`) are shortened before columns with rank 1
    are left out. The last column can be wrapped, so it needs at most `MIN_WRAP_WIDTH`. If it is wrapped, names that are
    longer than `LONG_NAME` are shortened to give it more space.
    """
    by_rank = sorted((i for i, rank in enumerate(ranks) if rank > 0), key=lambda i: -ranks[i])
    names = [i for i, rank in enumerate(ranks) if rank == NAME_RANK]
    fitted: list[int | None] = list(widths)
    for count in range(len(by_rank) + 1):
        kept = by_rank[count:]
        fitted = [None if i in by_rank[:count] else width for i, width in enumerate(widths)]
        shortest = SHORTEST if len(kept) > 1 else SHORTEST_LAST
        excess = _needed(fitted, wraps=not ranks[-1]) - available
        excess = _shorten(fitted, [i for i in kept if ranks[i] < WHOLE_RANK], shortest, excess)
        if all(ranks[i] == 1 for i in kept):
            excess = _shorten(fitted, names, SHORTEST, excess)
        if excess <= 0:
            break
    if not ranks[-1]:
        _shorten(fitted, names, LONG_NAME, _needed(fitted, wraps=False) - available)
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


def _needed(widths: Sequence[int | None], *, wraps: bool) -> int:
    shown = [width for width in widths if width is not None]
    if wraps and widths[-1] is not None:
        shown[-1] = min(shown[-1], MIN_WRAP_WIDTH)
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
