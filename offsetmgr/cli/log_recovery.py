"""``offsetmgr log recover``: truncates damaged Kafka logs, in a copy or in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.errors import fail_if, report_and_exit_code
from offsetmgr.cli.log_segments import SEGMENT, Paths, columns, mib_in, note_scope, sources
from offsetmgr.cli.options import Execute, FormatOption, Reason, Yes, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UsageError
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart

if TYPE_CHECKING:
    from offsetmgr.segments.truncation import ExaminedSegment, TruncationPoint

app = typer.Typer()

_RECOVER: Final = (
    *SEGMENT,
    Column("cut", right=True),
    Column("removed", right=True, optional=True),
    Column("action"),
    Column("copy", optional=True),
)
_KEEP_HINT: Final = "name another directory with --keep"


@app.command("recover")
def recover(
    paths: Paths,
    to: Annotated[
        Path | None,
        opt("--to", "DIR", "Write repaired copies into this directory."),
    ] = None,
    in_place: Annotated[
        bool, flag("--in-place", "Truncate the logs themselves, after copying the removed bytes.")
    ] = False,
    keep: Annotated[
        Path | None,
        opt(
            "--keep",
            "DIR",
            "With --in-place: directory for the copies of the removed bytes (default: next to each log).",
        ),
    ] = None,
    strict: Annotated[
        bool, flag("--strict", "Also cut before the first entry whose offset or version is in doubt.")
    ] = False,
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Truncate logs after their last valid entry, as a broker does after a crash: in a copy, or in place.

    For a partition's directory, the command checks the segments that a broker would recover, from its recovery point to
    the newest. If it truncates a segment, it REMOVES the later ones. If a single segment file is given, the command
    processes only that file. The command never writes to logs of a running broker, and reports how it determined that
    no broker is running.
    """
    if in_place == (to is not None):
        both = "both --to and --in-place are given" if in_place else "neither --to nor --in-place is given"
        raise UsageError("log recover", both, "--to DIR writes repaired copies, --in-place cuts the logs themselves")
    if keep is not None and not in_place:
        raise UsageError("--keep", "works only with --in-place", "add --in-place, or leave out --keep")
    if keep is not None and not keep.is_dir():
        raise FileFailure(f"--keep {keep}", "is no directory")
    errors: list[OffsetMgrError] = []
    recovery = _Recovery(to, keep, strict, errors)
    cuts = [recovery.plan(source, segment_end) for source, segment_end in recovery.examined(paths)]
    possible = [one for one in cuts if one.cut is not None]
    if execute and possible:
        needed = [one for one in possible if to is not None or one.size]
        size = sum(one.size for one in needed)
        if in_place and needed:
            confirm(f"log recover: cut {size:,} bytes from {count_of(len(needed), 'log')} in place?", yes=yes)
        with _recorded(needed, reason) if in_place and needed else nullcontext(OperationProgress("")) as recorded:
            for one in progress(needed, "logs", len(needed)):
                recovery.execute(one)
                recorded.written += one.action == "cut"
                recorded.failed += one.action == "failed"
    write_rows(_RECOVER, (one.row() for one in cuts), output)
    note_scope(paths)
    if not execute:
        note("dry run: nothing was written; add --execute to do it")
    fail_if(report_and_exit_code(errors))


def _recorded(needed: list[_PlannedRecovery], reason: str | None) -> AbstractContextManager[OperationProgress]:
    """Returns a context that records the truncation of logs in the operation log. ``files`` are the copies of the
    removed bytes."""
    sources = tuple(str(one.source.absolute()) for one in needed)
    copies = tuple(str(one.copy.absolute()) for one in needed if one.copy is not None)
    return OperationLog().recorded(
        OperationStart("log recover", sources, (), 0, len(needed), copies, reason=reason or "")
    )


class _PlannedRecovery:
    """A log, the position at which the command truncates it, and the outcome."""

    def __init__(
        self, source: Path, segment_end: ExaminedSegment, cut: TruncationPoint | None, action: str, copy: Path | None
    ) -> None:
        self.source = source
        self.segment_end = segment_end
        self.cut = cut
        self.size = 0 if cut is None else cut.size
        self.action = action
        self.copy = copy

    def row(self) -> tuple[Any, ...]:
        cells = list(columns(self.segment_end))
        if self.cut is not None:
            cells[5] = self.cut.next_offset
        size = None if self.cut is None else self.size
        behind = None if self.cut is None else len(self.segment_end.later)
        return (*cells, size, behind or None, self.action, None if self.copy is None else str(self.copy))


class _Recovery:
    """Plans and executes the truncations of one ``log recover`` command, one log at a time."""

    def __init__(self, to: Path | None, keep: Path | None, strict: bool, errors: list[OffsetMgrError]) -> None:
        self._to = to
        self._keep = keep
        self._strict = strict
        self._errors = errors
        self._targets: dict[Path, Path] = {}

    def examined(self, paths: Iterable[Path]) -> list[tuple[Path, ExaminedSegment]]:
        """Returns each log file and each partition's directory, with the segment in which the valid data ends."""
        from offsetmgr.segments.truncation import scan_in_steps, unflushed

        logs = []
        older = 0
        for path in paths:
            for source, segments in sources(path, self._errors):
                recoverable = unflushed(source, segments) if source.is_dir() else segments
                logs.append((source, recoverable))
                older += len(segments) - len(recoverable)

        def steps() -> Iterator[tuple[Path, ExaminedSegment] | None]:
            for source, segments in logs:
                try:
                    for segment_end in scan_in_steps(segments, strict=self._strict):
                        yield None if segment_end is None else (source, segment_end)
                except OffsetMgrError as error:
                    self._errors.append(error)

        found = progress(steps(), "MiB", mib_in(segment for _, segments in logs for segment in segments))
        ends = [one for one in found if one is not None]
        if older:
            note(f"{count_of(older, 'segment')} before the recovery points not checked; log verify checks all")
        return ends

    def plan(self, source: Path, segment_end: ExaminedSegment) -> _PlannedRecovery:
        """Determines where to truncate a log. If the log must not be truncated, or a broker does not start with its
        directory, the errors have the reason."""
        from offsetmgr.segments.broker_lock import Use, check_parent_unused, detect_broker, in_use_error
        from offsetmgr.segments.repair import backup_path
        from offsetmgr.segments.truncation import truncation_point

        try:
            if source in {Path(error.what).parent for error in self._errors}:
                return _PlannedRecovery(source, segment_end, None, "refused", None)
            cut = truncation_point(segment_end, strict=self._strict)
            if self._to is not None:
                target = self._to / (source if source.name not in ("", "..") else source.resolve()).name
                if target.exists():
                    raise FileFailure(str(target), "exists already", "name another directory with --to")
                if target in self._targets:
                    why = f"{self._targets[target]} would be copied to the same path"
                    raise FileFailure(str(target), why, "recover one after the other, each with a directory of its own")
                check_parent_unused(target)
                self._targets[target] = source
                return _PlannedRecovery(source, segment_end, cut, "would be copied", target)
            if not cut.size:
                return _PlannedRecovery(source, segment_end, cut, "nothing to cut", None)
            found = detect_broker(source)
            if found.use is not Use.IDLE:
                raise in_use_error(source, found)
            if self._keep is not None:
                check_parent_unused(self._keep, _KEEP_HINT)
            return _PlannedRecovery(source, segment_end, cut, "would be cut", backup_path(cut, self._keep))
        except OffsetMgrError as error:
            self._errors.append(error)
            return _PlannedRecovery(source, segment_end, None, "refused", None)

    def execute(self, one: _PlannedRecovery) -> None:
        """Writes the repaired copy, or truncates the log in place. Failures are added to the errors."""
        from offsetmgr.segments.broker_lock import require_unused, require_unused_parent
        from offsetmgr.segments.repair import copy_directory, copy_log, truncate_in_place

        assert one.cut is not None
        try:
            with ExitStack() as stack:
                if self._to is None:
                    found = stack.enter_context(require_unused(one.source))
                    if self._keep is not None:
                        stack.enter_context(require_unused_parent(self._keep, _KEEP_HINT))
                    note(f"{one.source}: {found}")
                    truncate_in_place(one.cut, self._keep)
                    one.action = "cut"
                    return
                assert one.copy is not None
                stack.enter_context(require_unused_parent(one.copy))
                _make_directory(self._to)
                (copy_directory if one.source.is_dir() else copy_log)(one.cut, one.copy)
                one.action = "copied"
        except OffsetMgrError as error:
            self._errors.append(error)
            one.action, one.copy = "failed", None


def _make_directory(directory: Path) -> None:
    with os_error_as(FileFailure, f"directory {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
