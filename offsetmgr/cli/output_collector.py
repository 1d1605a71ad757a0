"""`OutputCollector` collects the output of a command that runs for one of several clusters at the same time.

The functions of `offsetmgr.cli.render` and the reports of errors give their output to the collector of the present
thread, if there is one, instead of writing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol

from offsetmgr.core.errors import OffsetMgrError


class OutputCollector:
    """The rows, notes and errors of one run of a command. ``tables`` maps the columns of each table to its rows, in the
    order in which the command writes them."""

    def __init__(self) -> None:
        self.tables: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
        self.notes: list[str] = []
        self.errors: list[OffsetMgrError] = []

    def add_rows(self, columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> int:
        """Adds the rows of a table, and returns their number."""
        found = list(rows)
        self.tables.setdefault(tuple(columns), []).extend(found)
        return len(found)

    @property
    def has_rows(self) -> bool:
        return any(self.tables.values())


COLLECTOR: Final[ContextVar[OutputCollector | None]] = ContextVar("COLLECTOR", default=None)
"""The collector of the present thread."""


class WatchedOutput(Protocol):
    """Writes the rows of a command that ``--watch`` repeats. ``time`` is the time of the present output."""

    time: str

    def changes(self, columns: Sequence[Any], *, key: Sequence[str], value: str, position: str) -> Any:
        """Returns an object that computes the changes of a table since the previous output."""

    def write(self, columns: Sequence[Any], rows: Iterable[Sequence[Any]], output: Any, /) -> int:
        """Writes the rows of a table with the time, and returns their number."""


WATCHED_OUTPUT: Final[ContextVar[WatchedOutput | None]] = ContextVar("WATCHED_OUTPUT", default=None)
"""The output of ``--watch``; None without ``--watch``."""
