"""``--watch``: repeats a command's output until Ctrl-C, with its time and the changes since the previous output."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias

import typer

from offsetmgr.cli.options import flag, opt, seconds_option
from offsetmgr.cli.render import (
    COLLECTOR,
    FAILED,
    PROMETHEUS,
    WATCHED_OUTPUT,
    Column,
    Meter,
    OutputCollector,
    OutputFormat,
    WatchedOutput,
    note,
    rank_of,
    separate_tables,
    table_width,
    worded,
    write_rows,
)
from offsetmgr.core.batches import in_threads
from offsetmgr.core.durations import parse_seconds
from offsetmgr.core.errors import ConfigError, GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of

DEFAULT_WATCH: Final = "5"
Watch = Annotated[
    float | None,
    seconds_option(
        "--watch",
        f"Repeat the output at this interval (default: {DEFAULT_WATCH} s), such as 10 or 1m, until Ctrl-C; JSON has "
        "one row a line.",
        least=0.1,
        metavar="[SECONDS]",
    ),
]
Count = Annotated[int | None, opt("--count", None, "End --watch after this many outputs.", min=1)]


class RepeatFlags(NamedTuple):
    """The options that repeat a command."""

    watch: Watch = None
    times: Count = None  # a named tuple has a method count


class NamedCommand(typer.core.TyperCommand):
    """A command that each error from the option parser names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # for an option without its value
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class WatchCommand(NamedCommand):
    """A command whose option ``--watch`` may be given without a number. ``defaults`` are the values of such options."""

    defaults: ClassVar[Mapping[str, str]] = {"--watch": DEFAULT_WATCH}

    @staticmethod
    def is_value(text: str) -> bool:
        """Whether the argument after such an option is its value."""
        try:
            return text[:1] in tuple(".0123456789") and parse_seconds(text, "--watch") >= 0
        except UsageError:
            return False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remaining_args: list[str] = []
        for argument, following in zip(args, [*args[1:], "-"], strict=False):
            remaining_args.append(argument)
            if argument in self.defaults and not self.is_value(following):
                remaining_args.append(self.defaults[argument])
        return super().parse_args(ctx, remaining_args)


def watch_command(once: Callable[[], int], seconds: float | None, count: int | None) -> int:
    """Calls ``once`` every ``seconds`` seconds, and at most ``count`` times if ``count`` is given. If ``seconds`` is
    None, calls ``once`` only one time. Returns the exit code of the last call.

    Prints an error in one line with the time, and continues, because a server may respond again later. The first call
    may also find that the command line is wrong; then the error ends the command.
    """
    if seconds is None:
        return once()
    code = 0
    done = 0
    output = WatchedOutput()
    token = WATCHED_OUTPUT.set(output)
    try:
        while True:
            output.begin(seconds)
            try:
                code = once()
            except OffsetMgrError as error:
                if isinstance(error, UsageError) or not (done or error.retriable):
                    raise
                note(f"error: {output.time}: {worded(error)}")
                code = FAILED
            done += 1
            if count is not None and done >= count:
                return code
            time.sleep(seconds)
    except KeyboardInterrupt:
        return code
    finally:
        WATCHED_OUTPUT.reset(token)


def reject_watch_of_one_read(seconds: float | None, values: Mapping[str, Any]) -> None:
    """Raises `UsageError` if ``--watch`` would repeat an output that a program needs once."""
    once = {"--fail-above": values.get("fail_above"), "--format prometheus": values.get("output") == PROMETHEUS or None}
    if seconds is not None and (option := next((name for name, given in once.items() if given is not None), None)):
        raise UsageError(f"{option} with --watch", "it is for one read", "leave out --watch, and repeat the command")


# ``--sort``, ``--top`` and ``--totals`` of the tables of partitions, and their changes with ``--watch``.

TOTALS: Final = (
    Column("group"),
    Column("partitions", right=True),
    Column("lag", right=True, attention=True),
    Column("largest_lag", right=True),
    Column("unknown_lags", right=True, attention=True),
)


class PartitionFlags(NamedTuple):
    """The options of tables of partitions."""

    show_totals: Annotated[
        bool, flag("--totals", "Show one row for each group: partitions, total lag, largest lag.")
    ] = False
    sort: Annotated[
        str | None,
        opt(
            "--sort",
            "COLUMN",
            "Sort by a column, such as lag: numbers from the largest, texts from A; unknown values last.",
        ),
    ] = None
    top: Annotated[int | None, opt("--top", "N", "Show only the first N rows; sorts by lag without --sort.", min=1)] = (
        None
    )


class PartitionTable:
    """Writes the rows of partitions, or the `total_row` of each group. Adds their `Changes` if ``--watch`` repeats the
    command.

    ``key``, ``value`` and ``position`` are columns, as in `Changes`. Raises `UsageError` if no column has the name that
    ``--sort`` gives.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        flags: PartitionFlags,
        output: OutputFormat,
        *,
        key: Sequence[str] = ("group", "topic", "partition"),
        value: str = "lag",
        position: str = "offset",
    ) -> None:
        self._flags, self._output = flags, output
        if flags.show_totals:
            columns, key, position = TOTALS, ("group",), value
        self.columns: Sequence[Column] = columns
        self._changes = None
        if (watched := WATCHED_OUTPUT.get()) is not None:
            self._changes = watched.changes(columns, key=key, value=value, position=position)
            self.columns = self._changes.columns
        _sort_column(self.columns, flags.sort)

    def write(self, rows: Iterable[Sequence[Any]]) -> int:
        """Writes the rows, and returns how many were written."""
        _, sort, top = self._flags
        if self._changes is not None:
            rows = self._changes.add(rows)
        if sort is not None or top is not None:
            rows = ordered(self.columns, rows, sort, top)
        return write_rows(self.columns, rows, self._output)


def _sort_column(columns: Sequence[Column], sort: str | None) -> int:
    names = [column.name for column in columns]
    name = (sort or "lag").lower().replace("-", "_")
    if sort is not None and name not in names:
        raise UsageError(f"--sort {sort}", "no column has this name", f"columns: {', '.join(names)}")
    return names.index(name) if name in names else 0


def ordered(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], sort: str | None, top: int | None
) -> Iterable[Sequence[Any]]:
    """Sorts the rows by the column ``sort`` (default: lag), and keeps the first ``top`` rows."""
    at = _sort_column(columns, sort)
    descending = columns[at].right

    def key(row: Sequence[Any]) -> tuple[bool, Any]:
        value = row[at]
        return (value is None, 0 if value is None else -value if descending and isinstance(value, int) else value)

    return sorted(rows, key=key) if top is None else heapq.nsmallest(top, rows, key=key)


def total_row(group: str, lags: Sequence[int | None]) -> tuple[Any, ...]:
    """Returns the row of `TOTALS` of a group, whose partitions have these lags.

    The total contains the known lags; it is unknown if no lag is known.
    """
    known = [lag for lag in lags if lag is not None]
    return (group, len(lags), sum(known) if known else None, max(known, default=None), len(lags) - len(known))


# Runs a read-only command for many contexts at the same time, and merges its tables.
# `offsetmgr.cli.connect_flags.command` uses `run_for_contexts` if ``--context`` selects several contexts. Each
# context has its own thread with its own connections and an `OutputCollector`, so a cluster that does not respond
# delays no other cluster.

CLUSTER: Final = Column("cluster")
ERROR: Final = Column("error", optional=True)
_POLL_S: Final = 0.1

RowOrder: TypeAlias = Callable[[Sequence[Column], Iterable[Sequence[Any]]], Iterable[Sequence[Any]]]
"""Sorts and selects the merged rows of a table with these columns."""


class ClusterRun(OutputCollector):
    """One run of the command, for one context, with its output and its exit code."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.code = 0

    def execute(self, command: Callable[[str], None]) -> None:
        """Runs the command in the present thread. ``--watch`` shows the merged output, not that of one run."""
        COLLECTOR.set(self)
        WATCHED_OUTPUT.set(None)
        try:
            command(self.name)
        except typer.Exit as ended:
            self.code = ended.exit_code
        except OffsetMgrError as error:
            self.errors.append(error)
            self.code = FAILED


def run_for_contexts(
    names: Sequence[str], command: Callable[[str], None], output: OutputFormat, order: RowOrder | None = None
) -> int:
    """Calls ``command`` with each name, in one thread each. Writes the merged tables, and returns the exit code.

    A cluster with errors and without rows is a row with its first error, after the rows that ``order`` returns. Raises
    the error if all runs raised the same `UsageError`, and the first exception that is a bug.
    """
    from concurrent.futures import wait

    runs = [ClusterRun(name) for name in names]
    meter, ended = Meter("clusters"), in_threads(partial(run.execute, command) for run in runs)
    while (found := wait(ended, _POLL_S)).not_done:
        meter.show(len(found.done), len(runs))
    meter.clear()
    for one in ended:
        one.result()  # raises an exception that is a bug of offsetmgr
    # If a `UsageError` is the only result of each run, the command line is wrong, not a cluster.
    errors = [run.errors[0] if run.errors and not run.has_rows else None for run in runs]
    first = errors[0]
    same = all(type(error) is type(first) and str(error) == str(first) for error in errors)
    if same and isinstance(first, UsageError) and not isinstance(first, ConfigError):
        raise first
    missing = _drop_missing_groups(runs)
    _write(runs, output, order)
    for text in missing:
        note(text)
    _report(runs, output)
    return max(FAILED if run.errors else run.code for run in runs)


def _drop_missing_groups(runs: list[ClusterRun]) -> list[str]:
    """Drops the errors of clusters that do not have a named group, if another cluster has it. Returns a note for
    each: the number of clusters in which a group does not exist, and the text of any other reason, such as a topic in
    which the group has no offsets."""
    if not any(run.has_rows for run in runs):
        return []
    named = ({error.what for error in run.errors if isinstance(error, GroupNotFound)} for run in runs)
    found = Counter(what for names in named for what in names)
    missing = {what for what, count in found.items() if count < len(runs)}
    absent: Counter[str] = Counter()
    others: list[str] = []
    for run in runs:
        dropped = [e for e in run.errors if isinstance(e, GroupNotFound) and e.what in missing]
        for error in {str(error): error for error in dropped}.values():
            if error.why.startswith("does not exist"):
                absent[error.what] += 1
            else:
                others.append(f"{run.name}: {worded(error)}")
        if dropped and len(dropped) == len(run.errors):
            run.code = 0
        run.errors[:] = [error for error in run.errors if error not in dropped]
    texts = [f"{what} does not exist in {count_of(count, 'cluster')} of {len(runs)}" for what, count in absent.items()]
    return texts + others


def _write(runs: list[ClusterRun], output: OutputFormat, order: RowOrder | None) -> None:
    """Writes each table once, with the rows of all clusters. A terminal shows the error of a cluster in the last column
    if this is a column of text, because it wraps only one column."""
    tables: list[tuple[Column, ...]] = list(dict.fromkeys(table for run in runs for table in run.tables)) or [()]
    for number, table in enumerate(tables):
        own = next((at for at, column in enumerate(table) if column.name == ERROR.name), None)
        label = ""
        if own is None and output.for_people and table_width() is not None and _is_text(table):
            own, label = len(table) - 1, "error: "
        columns = (CLUSTER, *table) if own is not None else (CLUSTER, *table, ERROR)
        rows: list[Sequence[Any]] = []
        failed: list[Sequence[Any]] = []
        for run in runs:
            found = run.tables.get(table, [])
            rows += [(run.name, *row) if own is not None else (run.name, *row, None) for row in found]
            if not number and not run.has_rows and run.errors:
                cells: list[Any] = [run.name, *([None] * (len(columns) - 1))]
                cells[-1 if own is None else own + 1] = label + worded(run.errors[0])
                (rows if order is None else failed).append(tuple(cells))
        if order is not None:
            rows = [*order(columns, rows), *failed]
        if number:
            separate_tables()
        write_rows(columns, rows, output)


def _is_text(table: Sequence[Column]) -> bool:
    last = table[-1] if table else None
    return last is not None and not (last.right or last.time or last.detail or rank_of(last.name, last.rank))


def _report(runs: list[ClusterRun], output: OutputFormat) -> None:
    """Prints the notes and the errors of each cluster that its rows do not show."""
    for run in runs:
        for text in dict.fromkeys(run.notes):
            note(f"{run.name}: {text}")
        shown = run.errors if run.has_rows or output == PROMETHEUS else run.errors[1:]
        for text in dict.fromkeys(worded(error) for error in shown):
            note(f"error: {run.name}: {text}")
    failed = [run.name for run in runs if run.errors]
    if failed:
        note(f"error: {len(failed)} of {count_of(len(runs), 'cluster')} failed: {', '.join(failed)}")
