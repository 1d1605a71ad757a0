"""``--watch``: repeats a command's output until Ctrl-C, with the changes since the previous output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from offsetmgr.cli.render import Column, OutputFormat, note, write_json_lines, write_rows

DEFAULT_WATCH: Final = "5"
CHANGES: Final = (
    Column("change", right=True),
    Column("rate", right=True, title="PER-SECOND"),
)
"""The columns that `Changes` adds: the change of the watched value since the previous output, and the change of the
offset per second."""

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        min=0.1,
        help=f"Repeat the output at this interval (default: {DEFAULT_WATCH} s) until Ctrl-C; JSON has one row a line.",
        show_default=False,
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", min=1, help="End --watch after this many outputs.", show_default=False)
]


class WatchCommand(typer.core.TyperCommand):
    """A command whose option ``--watch`` may be given without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remaining_args: list[str] = []
        for at, argument in enumerate(args):
            remaining_args.append(argument)
            if argument == "--watch" and not _is_number(args[at + 1] if at + 1 < len(args) else ""):
                remaining_args.append(DEFAULT_WATCH)
        return super().parse_args(ctx, remaining_args)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def watch_command(once: Callable[[], int], seconds: float | None, count: int | None) -> int:
    """Calls ``once`` every ``seconds`` seconds, and at most ``count`` times if ``count`` is given. If ``seconds`` is
    None, calls ``once`` only one time. Returns the exit code of the last call."""
    if seconds is None:
        return once()
    code = 0
    done = 0
    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[2J\x1b[H")
                sys.stdout.flush()
                note(f"{_now()}, every {seconds:g} s; Ctrl-C ends")
            code = once()
            done += 1
            if count is not None and done >= count:
                return code
            time.sleep(seconds)
    except KeyboardInterrupt:
        return code


def _now() -> str:
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


class Changes:
    """Computes the changes of the rows between two outputs of a watched command.

    ``key`` is the number of leading columns that identify a row. ``value`` is the column of which the change is shown,
    and ``position`` the column of which the rate is shown.
    """

    def __init__(self, columns: Sequence[Column], *, key: Sequence[str], value: str, position: str) -> None:
        names = [column.name for column in columns]
        self.columns = (*columns[:-1], *CHANGES, columns[-1])
        self._key = [names.index(name) for name in key]
        self._value, self._position = names.index(value), names.index(position)
        self._before: dict[tuple[Any, ...], tuple[int | None, int | None, float]] = {}

    def add(self, rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        """Yields the rows with the columns `CHANGES`. They are unknown in the first output."""
        for row in rows:
            key = tuple(row[at] for at in self._key)
            value, position, now = row[self._value], row[self._position], time.monotonic()
            before = self._before.get(key)
            change = rate = None
            if before is not None:
                change = None if None in (value, before[0]) else value - (before[0] or 0)
                moved = None if None in (position, before[1]) else position - (before[1] or 0)
                rate = None if moved is None else round(moved / max(now - before[2], 1e-3), 1)
            self._before[key] = (value, position, now)
            yield (*row[:-1], change, rate, row[-1])


def write_watched(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], output: OutputFormat, *, watched: bool
) -> int:
    """Writes rows like `write_rows`. With ``--watch`` and JSON, writes one object a line, with the time of the output,
    so that a program can read the rows as they arrive."""
    if not watched or output is not OutputFormat.JSON:
        return write_rows(columns, rows, output)
    now = _now()
    return write_json_lines((Column("time"), *columns), ((now, *row) for row in rows))
