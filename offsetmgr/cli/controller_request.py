"""The steps of every request to the controller: show the plan, ask the user, submit the request, and wait until the
controller has completed it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from offsetmgr.cli.confirm import RunFlags, confirm
from offsetmgr.cli.errors import FAILED, Interrupted
from offsetmgr.cli.options import opt
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import printable
from offsetmgr.groups.operation_log import OperationLog, OperationStart

if TYPE_CHECKING:
    from offsetmgr.zookeeper.admin.state import RequestProgress

WAIT_S: Final = 300.0
_LOG_EVERY_S: Final = 10.0

Wait = Annotated[
    float,
    opt(
        "--wait",
        "SECONDS",
        "How long to wait for the controller. Then the command lists unfinished items and ends; the controller "
        "continues.",
        min=0,
    ),
]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the plan. ``key`` is the name of the row in `RequestProgress.open`. ``cells`` contains the values of
    all columns except outcome and note. ``needed`` is False if the topic or partition of the row already has the
    requested state."""

    key: str
    cells: tuple[Any, ...]
    needed: bool
    rejected: OffsetMgrError | None = None
    note: str = ""


class ControllerRequest:
    """One request: its rows, and the steps that submit the request and follow its progress."""

    def __init__(
        self, name: str, zookeeper: str, columns: Sequence[Column], rows: Iterable[Row], *, all_or_nothing: bool
    ) -> None:
        self.name = name
        self.zookeeper = zookeeper
        """The ZooKeeper through which the controller receives the request, for the operation log."""
        self.columns = columns
        self.rows = list(rows)
        self.all_or_nothing = all_or_nothing
        """Whether the whole request is rejected if one of its rows is rejected."""

    @property
    def rejected(self) -> list[Row]:
        return [row for row in self.rows if row.rejected is not None]

    @property
    def todo(self) -> list[Row]:
        """The rows to submit. The list is empty if a row was rejected and ``all_or_nothing`` is true."""
        if self.all_or_nothing and self.rejected:
            return []
        return [row for row in self.rows if row.needed and row.rejected is None]

    def show(self, output: OutputFormat, outcomes: Callable[[Row], tuple[str, str]] | None = None) -> None:
        """Prints the rows on stdout."""
        if outcomes is None:
            columns = [*self.columns, Column("note", optional=True)]
            write_rows(columns, ((*row.cells, _plan_note(row)) for row in self.rows), output)
            return
        columns = [*self.columns, Column("outcome"), Column("note", optional=True)]
        found = ((row, outcomes(row)) for row in self.rows)
        write_rows(columns, ((*row.cells, outcome, text or None) for row, (outcome, text) in found), output)

    def print_rejections(self) -> None:
        """Prints one line for each rejected row on stderr."""
        for row in self.rejected:
            note(f"error: {row.rejected}")
        for hint in dict.fromkeys(row.rejected.hint for row in self.rejected if row.rejected and row.rejected.hint):
            note(f"hint: {hint}")

    def run(
        self,
        *,
        action: str,
        flags: RunFlags,
        wait_s: float,
        submit: Callable[[list[Row]], None],
        poll: Callable[[list[Row]], RequestProgress],
        undo: str | None = None,
        cancel: str | None = None,
    ) -> int:
        """Runs all steps of the request and returns the exit code.

        ``action`` describes the request, as in "elect 3 leaders". ``undo`` is the command line that undoes the request,
        without ``--execute``, and ``cancel`` is the command line that cancels its unfinished rows. Both command lines
        are printed for the user. The operation log records a submitted request.
        """
        execute, yes, reason, output = flags
        todo = self.todo
        self.print_rejections()
        if not execute or not todo:
            self.show(output, self._untouched if execute and output is not OutputFormat.TABLE else None)
            if self.all_or_nothing and self.rejected:
                note("nothing was changed: one refused part refuses the whole request")
            elif not todo:
                note("nothing to change")
            else:
                note(f"dry run: would {action}; nothing was changed")
                note("hint: add --execute to do it")
            return FAILED if self.rejected else 0
        if output is OutputFormat.TABLE:
            self.show(output)
        confirm(f"{self.name}: {action}?", yes=yes)
        with OperationLog().recorded(self._operation(todo, undo, reason or "")) as recorded:
            submit(todo)
            recorded.written = len(todo)
        note("submitted to the controller")
        if undo:
            note(f"undo: {undo} --execute")
        seen = self._watch(todo, wait_s, poll)
        code = self._report(todo, seen, wait_s, output)
        if code and cancel and (seen is None or not seen.ended):
            note(f"hint: if it does not finish, cancel it: {cancel}")
        return code or (FAILED if self.rejected else 0)

    def _operation(self, todo: list[Row], undo: str | None, reason: str) -> OperationStart:
        stores = (f"zookeeper://{self.zookeeper}",)
        return OperationStart(self.name, stores, (), 0, len(todo), undo=(undo,) if undo else (), reason=reason)

    @staticmethod
    def _untouched(row: Row) -> tuple[str, str]:
        """Returns the outcome and the note of a row that was not submitted."""
        if row.rejected is not None:
            return "refused", row.rejected.why or row.rejected.what
        return ("not done", "another part is refused") if row.needed else ("unchanged", row.note)

    def _watch(
        self, todo: list[Row], wait_s: float, poll: Callable[[list[Row]], RequestProgress]
    ) -> RequestProgress | None:
        from offsetmgr.zookeeper.admin.submit import poll_progress

        line = _ProgressLine(self.name)
        seen: RequestProgress | None = None
        try:
            for found in poll_progress(lambda: poll(todo), SystemClock(), wait_s=wait_s):
                if isinstance(found, OffsetMgrError):
                    line.show(f"{found}; trying again")
                else:
                    seen = found
                    line.show(f"{found.done} of {found.total} done")
        except KeyboardInterrupt as error:
            raise Interrupted("the request was submitted, and the controller continues with it") from error
        finally:
            line.clear()
        return seen

    def _report(self, todo: list[Row], seen: RequestProgress | None, wait_s: float, output: OutputFormat) -> int:
        failed = seen is not None and seen.ended
        submitted = {row.key for row in todo}

        def outcome(row: Row) -> tuple[str, str]:
            if row.key not in submitted:
                return self._untouched(row)
            if seen is None:
                return "unknown", "the state of the request could not be read"
            if row.key not in seen.open:
                return "done", ""
            return ("failed" if failed else "open"), seen.open[row.key]

        if output is not OutputFormat.TABLE:
            self.show(output, outcome)
        outcomes = [(row, *outcome(row)) for row in todo]
        for row, state, why in outcomes:
            if state != "done":
                note(f"{state}: {row.key}: {why}")
        left = sum(state != "done" for _, state, _ in outcomes)
        if left and not failed:
            note(f"error: {self.name}: {left} of {len(todo)} still open after {wait_s:g} s; the controller continues")
        else:
            note(f"done: {len(todo) - left}" + (f", failed: {left}" if left else ""))
        return FAILED if left else 0


def _plan_note(row: Row) -> str | None:
    if row.rejected is not None:
        return f"refused: {row.rejected.why or row.rejected.what}"
    return row.note or None


class _ProgressLine:
    """Shows progress on stderr. On a terminal, each text overwrites the previous text. If stderr is not a terminal, a
    new line is printed whenever the text has changed, and at least every `_LOG_EVERY_S` seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""
        self._next = 0.0
        self._terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K" + printable(f"{self._name}: {text}"))
            sys.stderr.flush()
        elif text != self._last or time.monotonic() >= self._next:
            note(f"{self._name}: {text}")
            self._next = time.monotonic() + _LOG_EVERY_S
        self._last = text

    def clear(self) -> None:
        if self._terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
