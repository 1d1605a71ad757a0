"""Fits tables into the terminal: shortens identifiers in the middle, leaves out the least important ones, and wraps the
last column.

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
_GAP: Final = 2
_wide: Final = ContextVar("_wide", default=False)


def set_wide(wide: bool) -> None:
    """Whether tables ignore the width of the terminal, as with ``--wide``."""
    _wide.set(wide)


def table_width() -> int | None:
    """Returns the width to which tables are fitted, or None if stdout is not a terminal or ``--wide`` is given."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and not _wide.get() else None


def fitted_widths(widths: Sequence[int], ranks: Sequence[int], available: int) -> list[int | None]:
    """Returns the width of each column of a table that is at most ``available`` wide, if possible. None means that the
    table leaves the column out.

    ``widths`` are the widths of the complete values. Only columns with a rank above 0 are changed: all of them are
    shortened, the widest first; then those with the largest rank are left out. The last column can be wrapped, so it
    needs at most `MIN_WRAP_WIDTH`.
    """
    left_out: set[int] = set()
    by_rank = sorted((i for i, rank in enumerate(ranks) if rank), key=lambda i: -ranks[i])
    for dropped in (None, *by_rank):
        if dropped is not None:
            left_out.add(dropped)
        fitted: list[int | None] = [None if i in left_out else width for i, width in enumerate(widths)]
        shortest = SHORTEST if len(by_rank) - len(left_out) > 1 else SHORTEST_LAST
        excess = _needed(fitted, wraps=not ranks[-1]) - available
        while excess > 0:
            widest = max((i for i in by_rank if i not in left_out), key=lambda i: fitted[i] or 0, default=None)
            if widest is None or (fitted[widest] or 0) <= shortest:
                break
            fitted[widest] = (fitted[widest] or 0) - 1
            excess -= 1
        if excess <= 0:
            break
    return fitted


def _needed(widths: Sequence[int | None], *, wraps: bool) -> int:
    shown = [width for width in widths if width is not None]
    if wraps and widths[-1] is not None:
        shown[-1] = min(shown[-1], MIN_WRAP_WIDTH)
    return sum(shown) + _GAP * (len(shown) - 1)


def shortened(text: str, width: int) -> str:
    """Returns the text without its middle if it is longer than ``width``. The end stays, because the end of a member id
    identifies the member."""
    if len(text) <= width:
        return text
    end = (width - 2) // 2
    return f"{text[: width - 2 - end]}..{text[-end:]}"


class _CommaWrapper(textwrap.TextWrapper):
    """Breaks lines at spaces and after commas, but not in words."""

    wordsep_simple_re = re.compile(r"([\t\n\x0b\x0c\r ]+|(?<=,))")


def wrapped_line(cells: Sequence[str], widths: Sequence[int], available: int) -> str:
    """Joins the padded cells of a line. Wraps the last cell at the width of the terminal, unless little of the width is
    left for it or an earlier cell is too wide for its column."""
    line = "  ".join(cells).rstrip()
    indent = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    aligned = all(len(cell) == width for cell, width in zip(cells[:-1], widths[:-1], strict=True))
    if len(line) <= available or available - indent < MIN_WRAP_WIDTH or not aligned:
        return line
    wrapper = _CommaWrapper(available - indent, break_long_words=False, break_on_hyphens=False)
    return line[:indent] + f"\n{' ' * indent}".join(wrapper.wrap(line[indent:]))
