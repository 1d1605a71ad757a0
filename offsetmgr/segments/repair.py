"""Truncates a segment at its first damage: in place, or in a copy.

Ordering contract of a truncation in place: the removed bytes are first copied and made durable; then later segments are
renamed, from the last to the first, so that the log never has a hole; then the segment's indexes, which may refer to
removed entries, are renamed (a broker rebuilds them); then the log is truncated. If the process is killed between any
two steps, every segment is either unchanged or completely processed; another run continues. A copy of a log is written
under a temporary name and renamed when all of it is on disk.

The caller keeps brokers out meanwhile (`broker_lock.require_unused`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from offsetmgr.core.errors import Conflict, FileFailure
from offsetmgr.segments.segment import ABORTED_INDEX, INDEX, TIME_INDEX, Segment
from offsetmgr.segments.truncation import TruncationPoint, fingerprint, look

CUT: Final = ".cut-from-"
"""In the name of the copy of the removed bytes, before the position."""
ASIDE: Final = ".before-cut-"
"""In the name of a renamed index, before the position."""
_INDEXES: Final = (INDEX, TIME_INDEX, ABORTED_INDEX)
_DOOMED: Final = (".deleted", ".cleaned")
"""Files that a broker would remove when it starts."""
_PART: Final = ".part"
_CHUNK: Final = 1024 * 1024


def kept_copy(cut: TruncationPoint, keep: Path | None = None) -> Path:
    """Returns the path of the copy of the removed bytes: next to the log, or in the directory ``keep``."""
    return _kept(cut.seen.segment.log, cut.at, keep)


def _kept(log: Path, at: int, keep: Path | None) -> Path:
    name = f"{log.name}{CUT}{at}"
    # Logs of different partitions have the same names.
    return log.with_name(name) if keep is None else keep / f"{log.absolute().parent.name}.{name}"


def cut_in_place(cut: TruncationPoint, keep: Path | None = None) -> Path:
    """Truncates the log in the order of the module's docstring, and returns the path of the copy of the removed bytes.

    Later segments are renamed as if they were truncated at 0, or moved to ``keep``.

    Raises `FileFailure`, with the log unchanged; `Conflict` if it has changed since it was examined, or another copy of
    that name exists.
    """
    log = cut.seen.segment.log
    copy = kept_copy(cut, keep)
    with _told(f"file {log}", "nothing was done"):
        source = log.open("r+b")
    with source:
        if fingerprint(source.fileno()) != cut.seen.mark:
            raise Conflict(f"file {log}", "has changed since it was examined", "run the same command again")
        _keep(source, cut, copy)
        for segment in reversed(cut.seen.behind):
            _put_aside(segment, keep)
        with _told(f"indexes of {log}", "the log is as it was"):
            _rename_indexes(cut.seen.segment, cut.at)
            _sync_directory(log.parent)
        with _told(f"file {log} cannot be cut", f"the bytes to remove have been copied to {copy}"):
            os.ftruncate(source.fileno(), cut.at)
            os.fsync(source.fileno())
    return copy


def _keep(source: BinaryIO, cut: TruncationPoint, copy: Path) -> None:
    """Copies the bytes to remove; accepts a copy of an interrupted run."""
    if copy.exists():
        with _told(f"file {copy}", "the log is as it was"), copy.open("rb") as before:
            if not _same(before, source, cut.at):
                raise Conflict(f"file {copy}", "exists, and does not contain the bytes to remove", "move it away")
        return
    part = copy.with_name(copy.name + _PART)
    with _told(f"file {copy}", "the log is as it was; make room, or name another directory with --keep"):
        try:
            _copy(source, cut.at, part)
            part.rename(copy)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        _sync_directory(copy.parent)


def _put_aside(segment: Segment, keep: Path | None) -> None:
    log = segment.log
    aside = _kept(log, 0, keep)
    if keep is not None:
        whole = TruncationPoint(look(segment), 0, segment.base_offset)
        with segment.open() as source:
            _keep(source, whole, aside)
    elif aside.exists():
        raise Conflict(f"file {aside}", "exists", "move it away")
    with _told(f"file {log}", "removed bytes have been saved; run the same command again"):
        _rename_indexes(segment, 0)
        if keep is None:
            log.rename(aside)
        else:
            log.unlink()
        _sync_directory(log.parent)


def _rename_indexes(segment: Segment, at: int) -> None:
    for suffix in _INDEXES:
        index = segment.beside(suffix)
        if index.exists():
            index.rename(index.with_name(f"{index.name}{ASIDE}{at}"))


def copy_log(cut: TruncationPoint, target: Path) -> None:
    """Writes the sound part of one log file to ``target``, a new file. Raises `FileFailure`."""
    part = target.with_name(f".{target.name}{_PART}")
    with _new(target), cut.seen.segment.open() as source:
        try:
            _copy(source, 0, part, cut.at)
            part.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)


def copy_directory(cut: TruncationPoint, target: Path) -> None:
    """Writes a partition's directory to ``target``, a new directory, with the sound part of the truncated segment.

    It omits that segment's indexes, which a broker rebuilds, later segments, and files that a broker would remove.
    Raises `FileFailure`.
    """
    log = cut.seen.segment.log
    gone = (cut.seen.segment, *cut.seen.behind)
    left_out = {file.name for segment in gone for file in (segment.log, *map(segment.beside, _INDEXES))}
    part = target.with_name(f".{target.name}{_PART}")
    with _new(target):
        shutil.rmtree(part, ignore_errors=True)  # from an interrupted run
        try:
            part.mkdir()
            for file in sorted(log.parent.iterdir()):
                if file.is_file() and file.name not in left_out and not _leftover(file.name):
                    with file.open("rb") as source:
                        _copy(source, 0, part / file.name)
            with cut.seen.segment.open() as source:
                _copy(source, 0, part / log.name, cut.at)
            _sync_directory(part)
            part.rename(target)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        _sync_directory(target.parent)


def _leftover(name: str) -> bool:
    return name.endswith(_DOOMED) or CUT in name or ASIDE in name


def _copy(source: BinaryIO, start: int, target: Path, end: int | None = None) -> None:
    """Copies the bytes between two positions and makes them durable."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        source.seek(start)
        left = None if end is None else end - start
        while piece := source.read(_CHUNK if left is None else min(_CHUNK, left)):
            if left is not None:
                left -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if left:
        raise OSError(f"the log became {left} bytes shorter while it was copied")


def _same(before: BinaryIO, source: BinaryIO, start: int) -> bool:
    source.seek(start)
    while True:
        one, other = before.read(_CHUNK), source.read(_CHUNK)
        if one != other:
            return False
        if not one:
            return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _new(target: Path) -> Iterator[None]:
    if target.exists():
        raise FileFailure(str(target), "exists already", "name another directory with --to")
    with _told(str(target), "nothing is left of the copy; make room, or name another directory with --to"):
        yield


@contextlib.contextmanager
def _told(what: str, hint: str) -> Iterator[None]:
    """Turns errors of the operating system into `FileFailure`."""
    try:
        yield
    except OSError as error:
        raise FileFailure(what, error.strerror or str(error), hint) from error
