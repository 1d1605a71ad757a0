"""Truncates a damaged log: in place, or in a copy.

A truncation in place has four steps, in this order:

1. Copy the bytes to remove, and flush the copy to disk.
2. Rename the later segments, from the last to the first, so that the log never has a gap.
3. Rename the segment's indexes, which may refer to removed entries. A broker rebuilds them.
4. Truncate the segment.

If the process is killed between two steps, every log file is either unchanged or completely processed, and another run
of the same command completes the truncation. `copy_log` and `copy_directory` write the copy under a temporary name and
rename it when the whole copy is on disk.

The caller must keep brokers out of the log directory until the truncation is done (`broker_lock.require_unused`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.atomic_file import sync_directory, write_synced
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    FileFailure,
    GateRefused,
    OffsetMgrError,
    UnknownVersion,
    UnsupportedOperation,
    UsageError,
    os_error_as,
)
from offsetmgr.segments.broker_lock import (
    check_parent_unused,
    require_idle,
    require_unused,
    require_unused_parent,
)
from offsetmgr.segments.checkpoints import RECOVERY_POINT, read_checkpoint, unusable_files
from offsetmgr.segments.entries import CHUNK
from offsetmgr.segments.partition import is_directory, partition_of, partitions_in, segments_in
from offsetmgr.segments.recovery import ExaminationResult, RecoveryOutcome, examine
from offsetmgr.segments.segment import ABORTED_INDEX, INDEX, TIME_INDEX, Segment

# Decides where to truncate a damaged log. This part examines the segments that a broker would examine after a crash, up
# to the first damaged segment. It only reads; `LogRepair` truncates. Source: kafka.log.LogLoader.recoverLog (3.9).


ShowBytes = Callable[[int, int | None], None]
"""Shows a number of bytes that were read, and the total."""


@dataclass(frozen=True, slots=True)
class ExaminedSegment:
    """A segment with the result of its examination. ``fingerprint`` shows whether the file has changed since the
    examination.

    ``later`` are the later segments of the same log. They were not examined, because the examination of the log ended
    with this segment.
    """

    segment: Segment
    result: ExaminationResult
    fingerprint: tuple[int, int, int]
    later: tuple[Segment, ...] = ()

    @property
    def partition(self) -> str:
        """The name of the directory, such as orders-0."""
        return self.segment.log.absolute().parent.name


def unflushed(directory: Path, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Returns the segments that a broker examines after a crash: the segment that contains the recovery point, and all
    later segments.

    If the broker's checkpoint file does not contain the partition or cannot be read, returns all segments, because it
    does no harm to examine more segments than a broker would.
    """
    try:
        points = read_checkpoint(directory.absolute().parent / RECOVERY_POINT)
        point = points.get(partition_of(directory), 0)
    except (CorruptData, UnknownVersion, UnsupportedOperation):
        point = 0
    first = max((number for number, segment in enumerate(segments) if segment.base_offset <= point), default=0)
    return segments[first:]


def examine_segment(segment: Segment, on_read: Callable[[int], None]) -> ExaminedSegment:
    """Examines one segment. For ``on_read`` see `recovery.examine`. Raises `FileFailure`."""
    with segment.open() as source:
        mark = fingerprint(source.fileno())
        result = examine(source, segment.base_offset, str(segment.log), end=mark[1], on_read=on_read)
    return ExaminedSegment(segment, result, mark)


def examine_log(segments: Sequence[Segment], on_read: Callable[[int], None], *, strict: bool) -> ExaminedSegment:
    """Examines the segments of a log in order. Returns the first segment that is damaged or that a broker would not
    keep, or the last segment if there is none.

    With ``strict``, a segment with a suspicious entry counts as damaged too. Raises `FileFailure`.
    """
    for segment in segments:
        examined = examine_segment(segment, on_read)
        found = examined.result
        broken = found.damage is not None or found.outcome is not RecoveryOutcome.KEPT
        if broken or (strict and found.suspicions):
            break
    return replace(examined, later=tuple(segments[segments.index(examined.segment) + 1 :]))


def _sources(path: Path, errors: list[OffsetMgrError]) -> Iterator[tuple[Path, tuple[Segment, ...]]]:
    """Yields the log files and partitions' directories under a path, each with its segments. If a directory cannot be
    read, or has a file with which a broker does not start, its error is added to ``errors``. Raises `UsageError` for a
    path without a log."""
    path_is_directory = is_directory(path)
    if path_is_directory is None:
        raise UsageError(f"path {path}", "does not exist")
    if not path_is_directory:
        yield path, (Segment.of(path),)
        return
    directories = [path] if segments_in(path) else list(partitions_in(path))
    if not directories:
        raise UsageError(f"directory {path}", "holds no log: neither segments nor directories of partitions")
    for directory in directories:
        try:
            if segments := segments_in(directory):
                errors += unusable_files(directory)
                yield directory, segments
        except OffsetMgrError as error:
            errors.append(error)


def _reader(segments: Sequence[Segment], show: ShowBytes) -> Callable[[int], None]:
    """Returns a function that adds the bytes that were read of these segments, and shows their number."""
    total = read = 0
    for segment in segments:
        with contextlib.suppress(FileFailure):  # the failure is reported when the segment is read
            total += segment.size

    def add(more: int) -> None:
        nonlocal read
        read += more
        show(read, total)

    return add


class Verification:
    """The check of ``segments`` segments. The iteration checks them, and yields the results. After it, ``unsound`` is
    the number of segments that are not sound, and ``errors`` has the errors of segments and directories that cannot be
    read, and of files with which a broker does not start. Raises `UsageError` for a path without a log."""

    def __init__(self, paths: Iterable[Path], show: ShowBytes) -> None:
        self.errors: list[OffsetMgrError] = []
        self.unsound = 0
        self._show = show
        self._found = [segment for path in paths for _, found in _sources(path, self.errors) for segment in found]
        self.segments = len(self._found)
        self._offline = {Path(error.what).parent for error in self.errors}

    def __iter__(self) -> Iterator[ExaminedSegment]:
        on_read = _reader(self._found, self._show)
        for segment in self._found:
            try:
                seen = examine_segment(segment, on_read)
            except OffsetMgrError as error:
                self.errors.append(error)
                continue
            self.unsound += seen.result.state != "sound"
            if segment.log.parent in self._offline:
                seen = replace(seen, result=replace(seen.result, outcome=RecoveryOutcome.UNKNOWN))
            yield seen


def truncation_point(examined: ExaminedSegment, *, strict: bool) -> tuple[int, int]:
    """Returns the position in the examined segment at which a broker's recovery would truncate the log, and the log end
    offset after the truncation.

    With ``strict``, a suspicious entry before the damage counts as damage too, although a broker would keep this entry.
    Without ``strict``, raises `GateRefused` if a broker would discard the whole segment, would split it, or would not
    start.
    """
    found = examined.result
    if strict and found.suspicions:
        at = found.suspicions[0].position  # before the damage, because the examination stops there
        with examined.segment.open() as source:
            before = examine(source, examined.segment.base_offset, str(examined.segment.log), end=at)
        return at, before.next_offset
    if found.outcome in (RecoveryOutcome.EMPTIED, RecoveryOutcome.UNKNOWN):
        suspicion = found.suspicions[0]
        action = "discard the whole segment" if found.outcome is RecoveryOutcome.EMPTIED else "split it, or not start"
        raise GateRefused(
            f"{examined.segment.log}, position {suspicion.position}",
            f"{suspicion.why}; a broker would {action}",
            Advice("examine the entry with log dump; {strict} truncates the log before it"),
        )
    return found.valid_bytes, found.next_offset


def fingerprint(descriptor: int) -> tuple[int, int, int]:
    """Returns the inode, size and modification time of an open file, which show whether it was changed or replaced."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


BACKUP: Final = ".cut-from-"
"""The infix of a backup's file name; the position of the first removed byte follows it."""
RENAMED: Final = ".before-cut-"
"""The infix of a renamed index's file name; the position of the truncation follows it."""
_INDEXES: Final = (INDEX, TIME_INDEX, ABORTED_INDEX)
_REMOVED_AT_STARTUP: Final = (".deleted", ".cleaned")
"""Suffixes of the files that a broker removes when it starts."""
_PART: Final = ".part"
_OTHER_KEEP: Final = Advice("name another directory with {keep}")


@dataclass(slots=True)
class RecoveredLog:
    """The repair of one log: a file or a partition's directory. The valid data ends in the segment ``examined``.

    ``action`` is "cut", "copied", "nothing to cut", "refused" or "failed", and before the repair "would be cut" or
    "would be copied". ``copy`` is the file with the removed bytes, or the repaired copy. ``position`` is the place in
    the examined segment at which the log is truncated; None if it must not be truncated. ``cut`` is the number of bytes
    that the truncation removes, and ``next_offset`` the log end offset after it.
    """

    source: Path
    examined: ExaminedSegment
    next_offset: int
    action: str = "refused"
    copy: Path | None = None
    position: int | None = None
    cut: int | None = None

    @property
    def removed(self) -> int | None:
        """The number of later segments that the truncation removes; None if there are none."""
        return None if self.position is None else len(self.examined.later) or None


class LogRepair:
    """Plans and executes the truncations of several logs, one log at a time: in place, with copies of the removed bytes
    in the directory ``keep`` or next to each log, or in copies in the directory ``to``.

    ``errors`` has the errors of files with which a broker does not start, and receives the reason for each log that
    must not be truncated. See `truncation_point` for ``strict``.
    """

    def __init__(self, to: Path | None, keep: Path | None, errors: list[OffsetMgrError], *, strict: bool) -> None:
        self._to = to
        self._keep = keep
        self._strict = strict
        self._errors = errors
        self._targets: dict[Path, Path] = {}

    def examine(self, paths: Iterable[Path], show: ShowBytes) -> tuple[list[RecoveredLog], int]:
        """Plans the truncation of each log file and each partition's directory under the paths. Also returns the number
        of segments before the recovery points, which were not examined. Raises `UsageError` for a path without a
        log."""
        logs, older = [], 0
        for source, segments in (found for path in paths for found in _sources(path, self._errors)):
            recoverable = unflushed(source, segments) if source.is_dir() else segments
            logs.append((source, recoverable))
            older += len(segments) - len(recoverable)

        ends: list[tuple[Path, ExaminedSegment]] = []
        on_read = _reader([segment for _, segments in logs for segment in segments], show)
        for source, segments in logs:
            try:
                ends.append((source, examine_log(segments, on_read, strict=self._strict)))
            except OffsetMgrError as error:
                self._errors.append(error)
        return [self.plan(*one) for one in ends], older

    def plan(self, source: Path, examined: ExaminedSegment) -> RecoveredLog:
        """Determines where to truncate a log. Does not truncate a log if a broker does not start with its directory."""
        log = RecoveredLog(source, examined, examined.result.next_offset)
        try:
            if source not in {Path(error.what).parent for error in self._errors}:
                position, next_offset = truncation_point(examined, strict=self._strict)
                cut = examined.result.size - position + sum(segment.size for segment in examined.later)
                if self._to is not None:
                    log.action, log.copy = "would be copied", self._target(source, self._to)
                elif cut:
                    require_idle(source)
                    if self._keep is not None:
                        check_parent_unused(self._keep, _OTHER_KEEP)
                    log.action, log.copy = "would be cut", backup_path(examined.segment.log, position, self._keep)
                else:
                    log.action = "nothing to cut"
                log.position, log.next_offset, log.cut = position, next_offset, cut
        except OffsetMgrError as error:
            self._errors.append(error)
        return log

    def _target(self, source: Path, to: Path) -> Path:
        target = to / (source if source.name not in ("", "..") else source.resolve()).name
        if target.exists():
            raise _exists(target)
        if target in self._targets:
            why = f"{self._targets[target]} would be copied to the same path"
            raise FileFailure(str(target), why, "recover one after the other, each with a directory of its own")
        check_parent_unused(target)
        self._targets[target] = source
        return target

    def execute(self, log: RecoveredLog, note: Callable[[str], None]) -> None:
        """Writes the repaired copy, or truncates the log in place. ``note`` receives the evidence that no broker uses
        the log."""
        assert log.position is not None
        assert log.copy is not None
        try:
            with contextlib.ExitStack() as stack:
                if self._to is None:
                    found = stack.enter_context(require_unused(log.source))
                    if self._keep is not None:
                        stack.enter_context(require_unused_parent(self._keep, _OTHER_KEEP))
                    note(f"{log.source}: {found}")
                    truncate_in_place(log.examined, log.position, self._keep)
                    log.action = "cut"
                    return
                stack.enter_context(require_unused_parent(log.copy))
                with os_error_as(FileFailure, f"directory {self._to}"):
                    self._to.mkdir(parents=True, exist_ok=True)
                copy = copy_directory if log.source.is_dir() else copy_log
                copy(log.examined, log.position, log.copy)
                log.action = "copied"
        except OffsetMgrError as error:
            self._errors.append(error)
            log.action, log.copy = "failed", None


def backup_path(log: Path, at: int, keep: Path | None) -> Path:
    """Returns the path of the backup of the bytes from position ``at`` of a log on: next to the log, or in the
    directory ``keep``."""
    name = f"{log.name}{BACKUP}{at}"
    # Segments of different partitions can have the same file name, so add the name of the directory.
    return log.with_name(name) if keep is None else keep / f"{log.absolute().parent.name}.{name}"


def truncate_in_place(examined: ExaminedSegment, position: int, keep: Path | None) -> None:
    """Truncates the log in the four steps that the module's docstring lists.

    The later segments become backups as well: they are renamed, or moved to ``keep`` if it is given. Raises
    `FileFailure` if a step fails. Raises `Conflict` if the log has changed since it was examined, or if a file exists
    that has the backup's name and different content.
    """
    log = examined.segment.log
    copy = backup_path(log, position, keep)
    with os_error_as(FileFailure, f"file {log}", "the log is unchanged"):
        source = log.open("r+b")
    with source:
        if fingerprint(source.fileno()) != examined.fingerprint:
            raise Conflict(f"file {log}", "has changed since it was examined", "run the same command again")
        _back_up(source, position, copy)
        for segment in reversed(examined.later):
            _remove_segment(segment, keep)
        with os_error_as(FileFailure, f"indexes of {log}", "the log itself is unchanged; run the same command again"):
            _rename_indexes(examined.segment, position)
            sync_directory(log.parent)
        with os_error_as(FileFailure, f"cannot truncate {log}", f"the bytes to remove have been copied to {copy}"):
            os.ftruncate(source.fileno(), position)
            os.fsync(source.fileno())


def _back_up(source: BinaryIO, start: int, copy: Path) -> None:
    """Copies the bytes to remove, from ``start`` on, to ``copy``. If an interrupted run has already written the same
    copy, keeps that copy."""
    if copy.exists():
        with os_error_as(FileFailure, f"file {copy}", "the log is unchanged"), copy.open("rb") as before:
            if not _is_same(before, source, start):
                raise Conflict(
                    f"file {copy}",
                    "already exists, and its content is not a copy of the bytes to remove",
                    "move it elsewhere",
                )
        return
    hint = Advice("the log is unchanged; free disk space, or name another directory with {keep}")
    with _written(copy, f"file {copy}", hint, copy.with_name(copy.name + _PART)) as part:
        _copy(source, start, part)


def _remove_segment(segment: Segment, keep: Path | None) -> None:
    log = segment.log
    backup = backup_path(log, 0, keep)
    if keep is not None:
        with segment.open() as source:
            _back_up(source, 0, backup)
    elif backup.exists():
        raise Conflict(f"file {backup}", "exists already", "move it elsewhere")
    with os_error_as(FileFailure, f"file {log}", "the removed bytes are backed up; run the same command again"):
        _rename_indexes(segment, 0)
        if keep is None:
            log.rename(backup)
        else:
            log.unlink()
        sync_directory(log.parent)


def _rename_indexes(segment: Segment, at: int) -> None:
    for suffix in _INDEXES:
        index = segment.index_path(suffix)
        if index.exists():
            index.rename(index.with_name(f"{index.name}{RENAMED}{at}"))


def copy_log(examined: ExaminedSegment, position: int, target: Path) -> None:
    """Writes the valid part of one log file to ``target``, a new file. Raises `FileFailure`."""
    with _new_target(target) as part, examined.segment.open() as source:
        _copy(source, 0, part, position)


def copy_directory(examined: ExaminedSegment, position: int, target: Path) -> None:
    """Copies a partition's directory to ``target``, a new directory. Of the damaged segment, only the valid part is
    copied. The copy omits the indexes of this segment (a broker rebuilds them), the later segments, and the files that
    a broker would remove at its start. Raises `FileFailure`.
    """
    log = examined.segment.log
    removed = (examined.segment, *examined.later)
    omitted = {file.name for segment in removed for file in (segment.log, *map(segment.index_path, _INDEXES))}
    with _new_target(target) as part:
        _remove(part)  # from an interrupted run
        part.mkdir()
        for file in sorted(log.parent.iterdir()):
            leftover = file.name.endswith(_REMOVED_AT_STARTUP) or BACKUP in file.name or RENAMED in file.name
            if file.is_file() and file.name not in omitted and not leftover:
                with file.open("rb") as source:
                    _copy(source, 0, part / file.name)
        with examined.segment.open() as source:
            _copy(source, 0, part / log.name, position)
        sync_directory(part)


def _copy(source: BinaryIO, start: int, target: Path, end: int | None = None) -> None:
    """Copies the bytes between two positions to ``target`` and flushes them to disk."""

    def write(out: BinaryIO) -> int | None:
        source.seek(start)
        remaining = None if end is None else end - start
        while piece := source.read(CHUNK if remaining is None else min(CHUNK, remaining)):
            if remaining is not None:
                remaining -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(out.fileno(), view) :]
        return remaining

    if remaining := write_synced(target, write):
        raise OSError(f"the log became {remaining} bytes shorter during the copy")


def _is_same(before: BinaryIO, source: BinaryIO, start: int) -> bool:
    source.seek(start)
    while True:
        one, other = before.read(CHUNK), source.read(CHUNK)
        if one != other:
            return False
        if not one:
            return True


def _exists(target: Path) -> FileFailure:
    return FileFailure(str(target), "exists already", Advice("name another directory with {to}"))


def _new_target(target: Path) -> contextlib.AbstractContextManager[Path]:
    if target.exists():
        raise _exists(target)
    hint = Advice("the incomplete copy was removed; free disk space, or name another directory with {to}")
    return _written(target, str(target), hint, target.with_name(f".{target.name}{_PART}"))


@contextlib.contextmanager
def _written(target: Path, what: str, hint: str, part: Path) -> Iterator[Path]:
    """Renames ``part``, which the caller writes, to ``target``. If a step fails, removes it and raises
    `FileFailure`."""
    with os_error_as(FileFailure, what, hint):
        try:
            yield part
            part.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                _remove(part)
            raise
        sync_directory(target.parent)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)
