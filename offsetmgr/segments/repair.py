"""Cutting a segment where it is no longer sound: in place, or in a copy.

Ordering contract of a cut in place: what is cut is copied and on the disk before anything else happens; then the
segments behind the cut are put aside, from the last to the first, so that the log never has a hole; then the segment's
indexes, which may tell of what is cut, are renamed (a broker builds them again from the log); then the log is cut.
Killed between any two steps it leaves every segment as it was, or cut or put aside with all that went; run again, it
goes on. A copy of a log is written under another name and gets its own when all of it is on the disk.

Whoever calls keeps brokers out meanwhile (`standing.alone`).
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
"""In the name of the copy of what was cut, before the position."""
ASIDE: Final = ".before-cut-"
"""In the name of an index that was put aside, before the position."""
_INDEXES: Final = (INDEX, TIME_INDEX, ABORTED_INDEX)
_DOOMED: Final = (".deleted", ".cleaned")
"""What a broker would remove when it starts."""
_PART: Final = ".part"
_CHUNK: Final = 1024 * 1024


def kept_copy(cut: TruncationPoint, keep: Path | None = None) -> Path:
    """Where the copy of what is cut goes: beside the log, or into the directory ``keep``."""
    return _kept(cut.seen.segment.log, cut.at, keep)


def _kept(log: Path, at: int, keep: Path | None) -> Path:
    name = f"{log.name}{CUT}{at}"
    # Logs of different partitions have the same names.
    return log.with_name(name) if keep is None else keep / f"{log.absolute().parent.name}.{name}"


def cut_in_place(cut: TruncationPoint, keep: Path | None = None) -> Path:
    """Cuts the log, and gives the copy of what was cut of the segment. See the module for the order of the steps.

    Segments behind it are renamed as if they were cut at 0, or moved to ``keep``.

    Raises `FileFailure`, with the log as it was; `Conflict` where it has changed since it was examined, or another copy
    of that name exists.
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
            _sync_folder(log.parent)
        with _told(f"file {log} cannot be cut", f"what would be cut has been copied to {copy}"):
            os.ftruncate(source.fileno(), cut.at)
            os.fsync(source.fileno())
    return copy


def _keep(source: BinaryIO, cut: TruncationPoint, copy: Path) -> None:
    """What will be cut, copied; a copy that an interrupted run has made is taken for ours."""
    if copy.exists():
        with _told(f"file {copy}", "the log is as it was"), copy.open("rb") as before:
            if not _same(before, source, cut.at):
                raise Conflict(f"file {copy}", "exists, and does not hold what is to be cut", "move it away")
        return
    part = copy.with_name(copy.name + _PART)
    with _told(f"file {copy}", "the log is as it was; make room, or name another folder with --keep"):
        try:
            _copy(source, cut.at, part)
            part.rename(copy)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        _sync_folder(copy.parent)


def _put_aside(segment: Segment, keep: Path | None) -> None:
    log = segment.log
    aside = _kept(log, 0, keep)
    if keep is not None:
        whole = TruncationPoint(look(segment), 0, segment.base_offset)
        with segment.open() as source:
            _keep(source, whole, aside)
    elif aside.exists():
        raise Conflict(f"file {aside}", "exists", "move it away")
    with _told(f"file {log}", "what was cut so far has been kept; run the same command again"):
        _rename_indexes(segment, 0)
        if keep is None:
            log.rename(aside)
        else:
            log.unlink()
        _sync_folder(log.parent)


def _rename_indexes(segment: Segment, at: int) -> None:
    for suffix in _INDEXES:
        index = segment.beside(suffix)
        if index.exists():
            index.rename(index.with_name(f"{index.name}{ASIDE}{at}"))


def copy_log(cut: TruncationPoint, target: Path) -> None:
    """Writes what is sound of one log file to ``target``, a new file. Raises `FileFailure`."""
    part = target.with_name(f".{target.name}{_PART}")
    with _new(target), cut.seen.segment.open() as source:
        try:
            _copy(source, 0, part, cut.at)
            part.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def copy_folder(cut: TruncationPoint, target: Path) -> None:
    """Writes a partition's directory to ``target``, a new directory, with what is sound of the segment that is cut.

    That segment's indexes are left out, since a broker builds them from the log; and so are the segments behind it, and
    what a broker would remove. Raises `FileFailure`.
    """
    log = cut.seen.segment.log
    gone = (cut.seen.segment, *cut.seen.behind)
    left_out = {file.name for segment in gone for file in (segment.log, *map(segment.beside, _INDEXES))}
    part = target.with_name(f".{target.name}{_PART}")
    with _new(target):
        shutil.rmtree(part, ignore_errors=True)  # an interrupted run's
        try:
            part.mkdir()
            for file in sorted(log.parent.iterdir()):
                if file.is_file() and file.name not in left_out and not _leftover(file.name):
                    with file.open("rb") as source:
                        _copy(source, 0, part / file.name)
            with cut.seen.segment.open() as source:
                _copy(source, 0, part / log.name, cut.at)
            _sync_folder(part)
            part.rename(target)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        _sync_folder(target.parent)


def _leftover(name: str) -> bool:
    return name.endswith(_DOOMED) or CUT in name or ASIDE in name


def _copy(source: BinaryIO, start: int, target: Path, end: int | None = None) -> None:
    """The bytes between two positions, on the disk when this returns."""
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _new(target: Path) -> Iterator[None]:
    if target.exists():
        raise FileFailure(str(target), "exists already", "name another folder with --to")
    with _told(str(target), "nothing is left of the copy; make room, or name another folder with --to"):
        yield


@contextlib.contextmanager
def _told(what: str, hint: str) -> Iterator[None]:
    """What the system refuses is a failure of ours."""
    try:
        yield
    except OSError as error:
        raise FileFailure(what, error.strerror or str(error), hint) from error
