"""The text of a table's cells, cached because most values of a column occur repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from offsetmgr.cli.table_fit import padded
from offsetmgr.core.plurals import printable

_MAX_CACHED: Final = 20_000


class CellCache(dict[Any, str]):
    """A cache of formatted values. The cache saves time because most values of a column occur repeatedly."""

    def __init__(self, encode: Callable[[Any], str]) -> None:
        self._encode = encode

    def __missing__(self, value: Any) -> str:
        if len(self) >= _MAX_CACHED:
            self.clear()
        text = self._encode(value)
        self[value] = text
        return text


class PaddedCells(CellCache):
    """A cache of the padded cells of one column of a table."""

    def __init__(self, encode: Callable[[Any], str], width: int, *, right: bool) -> None:
        self.width = width
        self.padded: Callable[[str], str] = lambda text: padded(text, width, right=right)
        super().__init__(lambda value: padded(encode(value), width, right=right))


def cell_text(value: Any) -> str:
    """Formats a value for display, and escapes its control characters."""
    return "-" if value is None else printable(str(value))


def time_cell(value: int | None) -> str:
    """Formats milliseconds since 1970 as a time. A time that Python's calendar cannot represent stays a number."""
    if value is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec='milliseconds')[:-6]}Z"
    except (ValueError, OverflowError, OSError):
        return str(value)
