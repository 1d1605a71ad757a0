"""The steps that every editing command prints: the plan, its execution, the results, and how to undo them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from offsetmgr.app.edits import EditListener, EditReport, PlannedEdit
from offsetmgr.cli.render import (
    COLLECTOR,
    FAILED,
    PLANNED_WRITE,
    Column,
    OutputFormat,
    note,
    worded,
    write_plain_csv,
    write_rows,
)
from offsetmgr.config.user_directories import lost_with_container, state_directory
from offsetmgr.core.advice import Advice, for_command_line
from offsetmgr.core.errors import FileFailure, GateRefused, GroupActive, OffsetMgrError
from offsetmgr.core.model import Committed, dropped_text
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.app.edits import GroupEditPlan
    from offsetmgr.core.model import TopicPartition

FailedWrite: TypeAlias = "tuple[str, TopicPartition | None, OffsetMgrError]"
"""A group, the partition or None, and the error."""
OUTCOME: Final = (*PLANNED_WRITE[:-1], Column("outcome"), Column("note", optional=True))
MAX_FAILURES_SHOWN: Final = 200
_WRITTEN: Final = ChangeOutcome(EditStatus.WRITTEN)
_WAITING_OPERATIONS: Final = frozenset({"offsets reset", "offsets set", "offsets import", "offsets delete"})
"""The operations that have the options --wait-empty and --running."""
_WHOLE_GROUPS: Final = frozenset({"groups delete", "groups rename", "offsets import plan"})
"""The operations without the option --topic."""


class EditOutput(EditListener):
    """Prints an edit. ``as_csv`` prints only the new offsets on stdout, in the CSV format of kafka-consumer-groups
    --export. A format for programs has the outcomes of all edits of the command in one table. With ``numbers_undo``,
    the calls that undo several edits are printed last, with numbers."""

    def __init__(
        self, edit: PlannedEdit, output: OutputFormat, *, execute: bool, as_csv: bool, numbers_undo: bool
    ) -> None:
        self._edit, self._output, self._execute = edit, output, execute
        self._as_csv, self._numbers_undo = as_csv, numbers_undo
        self._executed: list[PlannedEdit] = []

    def run(self, before_image: str | None, reason: str, plan: str = "") -> int:
        """Shows the plan, executes it or saves it as the file ``plan`` unless the command is a dry run, and reports the
        results. Returns 1 if a change was rejected or failed, else 0."""
        with self._edit as edit:
            self.planned(edit)
            if not self._execute:
                edit.preview()
                if plan and not edit.counts.problems:
                    edit.save(plan)
                    note(Advice("plan saved in {}; to execute it: {}", plan, edit.saved))
                elif edit.has_work and not plan:
                    lost = lost_with_container(state_directory())
                    note("hint: add --execute to do it" if lost is None else f"warning: no edits: {lost}")
                return FAILED if edit.counts.problems else 0
            try:
                report = edit.execute(before_image, reason=reason, listener=self, raise_on_failure=False)
            except BaseException:
                with suppress(BrokenPipeError, FileFailure):  # the error of the edit is the one to report
                    self._write_outcomes(edit)
                raise
            self._write_outcomes(edit)
            return 0 if report.ok else FAILED

    def _write_outcomes(self, edit: PlannedEdit) -> None:
        for at, call in enumerate(edit.report.undo if self._numbers_undo and edit.report else (), 1):
            note(f"undo {at}: {call.command_line()}")
        for_programs = not (self._output.for_people or self._as_csv)
        if for_programs and (self._executed or not edit.has_work):
            write_rows(OUTCOME, (row for done in self._executed for row in _outcome_rows(done)), self._output)

    def planned(self, edit: PlannedEdit) -> None:
        """Prints the plan on stdout. With --execute, output for programs is printed after the writes, because it
        contains their outcomes."""
        if edit is not self._edit:
            self._executed.append(edit)
        if self._as_csv:
            write_plain_csv(_kafka_rows(edit))
        elif any(group.changes for group in edit) if self._output.for_people else not self._execute:
            write_rows(PLANNED_WRITE, _plan_rows(edit), self._output)
        if edit.counts.problems:
            _list_problems(edit, can_wait=edit.operation in _WAITING_OPERATIONS and not edit.is_running)
        if edit.counts.dropped:
            note(f"warning: the edit drops {dropped_text(edit.counts.dropped)}")

    def written(self, edit: PlannedEdit, report: EditReport) -> None:
        if edit is self._edit:
            self._executed.append(edit)
        for how in report.not_atomic:
            note(f"not atomic: {how}")
        failed = _list_failures(
            ((group, tp, error) for group, errors in report.failed.items() for tp, error in errors.items()),
            ((group, None, error) for group, error in report.failed_groups.items()),
        )
        done = f"done: {report.written:,} changed"
        if unchanged := report.unchanged - edit.counts.unchanged:
            done += f", {unchanged:,} unchanged"
        note(f"{done}, {failed:,} failed" if failed else done)
        if report.kept_deletions:
            kept = count_of(report.kept_deletions, "deleted offset")
            note(
                f"warning: the broker keeps {kept} until its next check for expired offsets or until the group is"
                " deleted; a consumer that starts before that begins at these offsets"
            )
        for call in () if self._numbers_undo else report.undo:
            note(f"undo: {call.command_line()}")


def _list_problems(edit: PlannedEdit, *, can_wait: bool) -> None:
    problems = ((g.name, c.partition, c.problem) for g in edit for c in g.changes if c.problem is not None)
    whole = ((g.name, None, g.problem) for g in edit if g.problem is not None)
    _list_failures((*whole,), problems)
    if can_wait and any(isinstance(g.problem, GroupActive) and not g.problem.lock_ends_s for g in edit):
        running = "; --running moves it without a stop" if edit.store.capabilities.conditional == "group-lock" else ""
        note(f"hint: --wait-empty SECONDS waits until the group has no members{running}")
    if any(g.problem and len({c.problem is None for c in g.changes}) == 2 for g in edit):
        choice = "" if edit.operation in _WHOLE_GROUPS else "; --topic NAME:0,1 selects the partitions of an edit"
        note(f"hint: a group is edited as a whole or not at all{choice}")


def _kafka_rows(edit: PlannedEdit) -> Iterator[tuple[str | int, ...]]:
    """Rows ``topic,partition,offset`` of all changes that are not rejected. If the plan has several groups, the group
    is the first column."""
    single = len({group.name for group in edit}) == 1
    for group in edit:
        for change in group.changes if group.problem is None else ():
            if change.problem is None and change.after is not None:
                row = (change.partition.topic, change.partition.partition, change.after.offset)
                yield row if single else (group.name, *row)


def _plan_rows(groups: Iterable[GroupEditPlan]) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        name = group.name
        for tp, before, after, text, problem, _ in group.changes:
            rejected = problem or group.problem
            old = before.offset if isinstance(before, Committed) else None
            new = after.offset if after is not None and rejected is None else None
            yield (name, *tp, old, new, _rejection(rejected) if rejected is not None else text or None)


def _rejection(error: OffsetMgrError) -> str:
    """Returns the note of a rejected row. The note of an active group does not name the members, and that of a group
    without sufficient evidence not the evidence, because the list of errors has them."""
    if isinstance(error, GroupActive | GateRefused):
        return "refused: active" if isinstance(error, GroupActive) else "refused: the error has the evidence"
    return f"refused: {for_command_line(error.why or error.what)}"


def _outcome_rows(edit: PlannedEdit) -> Iterator[tuple[Any, ...]]:
    for group in edit:
        known = None if edit.report is None else edit.report.outcomes.get(group.name)
        for row, change in zip(_plan_rows([group]), group.changes, strict=True):
            if change.problem is not None or group.problem is not None:
                outcome, text = "refused", row[-1]
            elif not change.writes:
                outcome, text = "unchanged", row[-1]
            else:
                found = None if known is None else known.get(change.partition, _WRITTEN)
                outcome = "unknown" if found is None else found.status.value
                text = worded(found.error) if found is not None and found.error is not None else row[-1]
            yield (*row[:-1], outcome, text)


def _list_failures(*failures: Iterable[FailedWrite]) -> int:
    """Prints one line on stderr for each of the first `MAX_FAILURES_SHOWN` failures, or collects their errors. Returns
    the number of failures."""
    count, collector = 0, COLLECTOR.get()
    hints: dict[str, None] = {}
    for group, tp, error in (entry for some in failures for entry in some):
        count += 1
        if count <= MAX_FAILURES_SHOWN:
            place = f"group {group}" + (f", {tp}" if tp is not None else "")
            text = " ".join(worded(error).split()).removeprefix(f"{tp}: ")
            quoted = f"group {group!r}" + (f", {tp}" if tp is not None else "")
            if collector is not None:
                collector.errors.append(OffsetMgrError(place, text.removeprefix(f"{place}: "), error.hint))
            else:
                note(f"error: {text if text.startswith((place, quoted)) else f'{place}: {text}'}")
        if error.hint and collector is None:
            hints[for_command_line(error.hint)] = None
    if count > MAX_FAILURES_SHOWN:
        note(f"error: and {count - MAX_FAILURES_SHOWN} more")
    for hint in list(hints)[:3]:
        note(f"hint: {for_command_line(hint)}")
    return count
