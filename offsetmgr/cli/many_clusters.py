"""Runs a read-only command for many contexts at the same time, and merges its tables.

`offsetmgr.cli.connect_flags.command` uses `run_for_contexts` if ``--context`` selects several contexts. Each context
has its own thread with its own connections and an `OutputCollector`, so a cluster that does not respond delays no other
cluster.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import typer

from offsetmgr.cli.errors import FAILED, worded
from offsetmgr.cli.render import (
    COLLECTOR,
    Column,
    Meter,
    OutputCollector,
    OutputFormat,
    note,
    rank_of,
    separate_tables,
    table_width,
    write_rows,
    write_structured_rows,
)
from offsetmgr.core.errors import ConfigError, GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of

CLUSTER: Final = Column("cluster")
ERROR: Final = Column("error", optional=True)
_POLL_S: Final = 0.1

RowOrder: TypeAlias = Callable[[Sequence[Column], Iterable[Sequence[Any]]], Iterable[Sequence[Any]]]
"""Sorts and selects the merged rows of a table with these columns."""


class ClusterRun:
    """One run of the command, for one context. ``failure`` is an exception that is a bug of offsetmgr."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.output = OutputCollector()
        self.code = 0
        self.failure: BaseException | None = None
        self.done = threading.Event()

    def execute(self, command: Callable[[str], None]) -> None:
        """Runs the command in the present thread."""
        COLLECTOR.set(self.output)
        try:
            command(self.name)
        except typer.Exit as ended:
            self.code = ended.exit_code
        except OffsetMgrError as error:
            self.output.errors.append(error)
            self.code = FAILED
        except BaseException as error:  # the main thread raises it
            self.failure = error
        finally:
            self.done.set()


def run_for_contexts(
    names: Sequence[str], command: Callable[[str], None], output: OutputFormat, order: RowOrder | None = None
) -> int:
    """Calls ``command`` with each name, in one thread each. Writes the merged tables, and returns the exit code.

    A cluster with errors and without rows is a row with its first error, after the rows that ``order`` returns. Raises
    the error if all runs raised the same `UsageError`, and the first exception that is a bug.
    """
    runs = [ClusterRun(name) for name in names]
    for run in runs:
        threading.Thread(target=run.execute, args=(command,), name=f"context {run.name}", daemon=True).start()
    _wait(runs)
    for run in runs:
        if run.failure is not None:
            raise run.failure
    _raise_common_error(runs)
    missing = _drop_missing_groups(runs)
    _write(runs, output, order)
    for text in missing:
        note(text)
    _report(runs)
    return max(FAILED if run.output.errors else run.code for run in runs)


def _wait(runs: list[ClusterRun]) -> None:
    meter = Meter("clusters")
    while waiting := [run for run in runs if not run.done.is_set()]:
        meter.show(len(runs) - len(waiting), len(runs))
        waiting[0].done.wait(_POLL_S)
    meter.clear()


def _raise_common_error(runs: list[ClusterRun]) -> None:
    """Raises a `UsageError` that is the only result of each run: the command line is wrong, not a cluster."""
    errors = [run.output.errors[0] if run.output.errors and not run.output.has_rows else None for run in runs]
    first = errors[0]
    same = all(type(error) is type(first) and str(error) == str(first) for error in errors)
    if same and isinstance(first, UsageError) and not isinstance(first, ConfigError):
        raise first


def _drop_missing_groups(runs: list[ClusterRun]) -> list[str]:
    """Drops the errors of clusters that do not have a named group, if another cluster has it. Returns a note for
    each: the number of clusters in which a group does not exist, and the text of any other reason, such as a topic in
    which the group has no offsets."""
    if not any(run.output.has_rows for run in runs):
        return []
    named = ({error.what for error in run.output.errors if isinstance(error, GroupNotFound)} for run in runs)
    found = Counter(what for names in named for what in names)
    missing = {what for what, count in found.items() if count < len(runs)}
    absent: Counter[str] = Counter()
    others: list[str] = []
    for run in runs:
        dropped = [e for e in run.output.errors if isinstance(e, GroupNotFound) and e.what in missing]
        for error in {str(error): error for error in dropped}.values():
            if error.why.startswith("does not exist"):
                absent[error.what] += 1
            else:
                others.append(f"{run.name}: {worded(error)}")
        if dropped and len(dropped) == len(run.output.errors):
            run.code = 0
        run.output.errors[:] = [error for error in run.output.errors if error not in dropped]
    texts = [f"{what} does not exist in {count_of(count, 'cluster')} of {len(runs)}" for what, count in absent.items()]
    return texts + others


def _write(runs: list[ClusterRun], output: OutputFormat, order: RowOrder | None) -> None:
    """Writes each table once, with the rows of all clusters. A terminal shows the error of a cluster in the last column
    if this is a column of text, because it wraps only one column."""
    tables: list[tuple[Column, ...]] = list(dict.fromkeys(table for run in runs for table in run.output.tables)) or [()]
    for number, table in enumerate(tables):
        own = next((at for at, column in enumerate(table) if column.name == ERROR.name), None)
        label = ""
        if own is None and output is OutputFormat.TABLE and table_width() is not None and _is_text(table):
            own, label = len(table) - 1, "error: "
        columns = (CLUSTER, *table) if own is not None else (CLUSTER, *table, ERROR)
        rows: list[Sequence[Any]] = []
        failed: list[Sequence[Any]] = []
        for run in runs:
            found = run.output.tables.get(table, [])
            rows += [(run.name, *row) if own is not None else (run.name, *row, None) for row in found]
            if not number and not run.output.has_rows and run.output.errors:
                cells: list[Any] = [run.name, *([None] * (len(columns) - 1))]
                cells[-1 if own is None else own + 1] = label + worded(run.output.errors[0])
                (rows if order is None else failed).append(tuple(cells))
        if order is not None:
            rows = [*order(columns, rows), *failed]
        if number:
            separate_tables()
        structured = any(isinstance(cell, dict | list) for row in rows for cell in row)
        if structured and output is not OutputFormat.TABLE:
            write_structured_rows(columns, rows, output)
        else:
            write_rows(columns, rows, output)


def _is_text(table: Sequence[Column]) -> bool:
    last = table[-1] if table else None
    return last is not None and not (last.right or last.time or last.detail or rank_of(last.name, last.rank))


def _report(runs: list[ClusterRun]) -> None:
    """Prints the notes and the remaining errors of each cluster."""
    for run in runs:
        for text in dict.fromkeys(run.output.notes):
            note(f"{run.name}: {text}")
        shown = run.output.errors if run.output.has_rows else run.output.errors[1:]
        for text in dict.fromkeys(worded(error) for error in shown):
            note(f"error: {run.name}: {text}")
    failed = [run.name for run in runs if run.output.errors]
    if failed:
        note(f"error: {len(failed)} of {count_of(len(runs), 'cluster')} failed: {', '.join(failed)}")
