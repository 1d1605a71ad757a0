"""Cutting a segment where it is no longer sound: in place, or in a copy.

Ordering contract of a cut in place: what is cut is copied and on the disk before anything else happens; then the
segment's indexes, which may tell of what is cut, are renamed (a broker builds them anew from the log); then the log is
cut.  Killed between any two steps it leaves the old log whole, or the cut one and the copy; run again, it goes on.
A copy of a log is written under another name and gets its own when all of it is on the disk.

Whoever calls keeps brokers out meanwhile (`standing.alone`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from offsetmgr.errors import Conflict, FileFailure, GateRefused
from offsetmgr.segments.recovery import Examination, Examined, Outcome, examine
from offsetmgr.segments.segment import ABORTED_INDEX, INDEX, TIME_INDEX, Segment

CUT: Final = ".cut-from-"
"""In the name of the copy of what was cut, before the position."""
ASIDE: Final = ".before-cut-"
"""In the name of an index that was put aside, before the position."""
_INDEXES: Final = (INDEX, TIME_INDEX, ABORTED_INDEX)
_DOOMED: Final = (".deleted", ".cleaned")
"""What a broker would remove when it starts."""
_PART: Final = ".part"
_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """A segment as it was examined; ``mark`` tells whether its file has changed since."""

    segment: Segment
    found: Examined
    mark: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a segment will be cut: at byte ``at``, behind which the log goes on with ``next_offset``."""

    seen: Seen
    at: int
    next_offset: int

    @property
    def size(self) -> int:
        """Bytes that go."""
        return self.seen.found.size - self.at


def look(segment: Segment) -> Seen:
    """Examines a segment. Raises `FileFailure`."""
    for seen in looking(segment):
        if seen is not None:
            return seen
    raise AssertionError("unreachable")


def looking(segment: Segment) -> Iterator[Seen | None]:
    """`look` in pieces of about a MiB, for whoever tells how far it is: None after each, what was seen at the end."""
    with segment.open() as source:
        mark = _mark(source.fileno())
        examination = Examination(source, segment.base_offset, str(segment.log), end=mark[1])
        for _ in examination:
            yield None
        yield Seen(segment, examination.result(), mark)


def cut_of(seen: Seen, *, strict: bool = False) -> Cut:
    """Where to cut: where a broker's recovery does; ``strict``: also before the first entry whose offset or version is
    in doubt, which a broker keeps.

    Raises `GateRefused` where a broker would not cut but empty the segment, or not start, and it is not ``strict``.
    """
    found = seen.found
    if strict and found.doubts and found.doubts[0].position < found.sound:
        at = found.doubts[0].position
        with seen.segment.open() as source:
            before = examine(source, seen.segment.base_offset, str(seen.segment.log), end=at)
        return Cut(seen, at, before.next_offset)
    if found.outcome in (Outcome.EMPTIED, Outcome.UNKNOWN):
        doubt = found.doubts[0]
        fate = "throw the whole segment away" if found.outcome is Outcome.EMPTIED else "split it, or not start"
        raise GateRefused(
            f"{seen.segment.log}, position {doubt.position}",
            f"{doubt.why}; a broker would {fate}",
            "look at it with log dump; --strict cuts before it",
        )
    return Cut(seen, found.sound, found.next_offset)


def kept_copy(cut: Cut, keep: Path | None = None) -> Path:
    """Where the copy of what is cut goes: beside the log, or into the folder ``keep``."""
    log = cut.seen.segment.log
    name = f"{log.name}{CUT}{cut.at}"
    # Logs of different partitions have the same names.
    return log.with_name(name) if keep is None else keep / f"{log.parent.name}.{name}"


def cut_in_place(cut: Cut, keep: Path | None = None) -> Path:
    """Cuts the log, and gives the copy of what was cut. See the module for the order of the steps.

    Raises `FileFailure`, with the log as it was; `Conflict` where it has changed since it was examined, or another copy
    of that name exists.
    """
    log = cut.seen.segment.log
    copy = kept_copy(cut, keep)
    with _told(f"file {log}", "nothing was done"):
        source = log.open("r+b")
    with source:
        if _mark(source.fileno()) != cut.seen.mark:
            raise Conflict(f"file {log}", "has changed since it was examined", "run the same command again")
        _keep(source, cut, copy)
        with _told(f"indexes of {log}", "the log is as it was"):
            for suffix in _INDEXES:
                index = cut.seen.segment.beside(suffix)
                if index.exists():
                    index.rename(index.with_name(f"{index.name}{ASIDE}{cut.at}"))
            _sync_folder(log.parent)
        with _told(f"file {log} cannot be cut", f"what would be cut has been copied to {copy}"):
            os.ftruncate(source.fileno(), cut.at)
            os.fsync(source.fileno())
    return copy


def _keep(source: BinaryIO, cut: Cut, copy: Path) -> None:
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


def copy_log(cut: Cut, target: Path) -> None:
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


def copy_folder(cut: Cut, target: Path) -> None:
    """Writes a partition's folder to ``target``, a new folder, with what is sound of the segment that is cut.

    That segment's indexes are left out, since a broker builds them from the log, and so is what a broker would remove.
    Raises `FileFailure`.
    """
    log = cut.seen.segment.log
    left_out = {log.name, *(cut.seen.segment.beside(suffix).name for suffix in _INDEXES)}
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


def _mark(descriptor: int) -> tuple[int, int, int]:
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


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
