"""Decides where to truncate a log: examines what a broker would examine after a crash, up to the segment in which the
log ends.

It only reads; `repair` truncates. Source: kafka.log.LogLoader.recoverLog (3.9).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from offsetmgr.core.errors import CorruptData, GateRefused, UnknownVersion, UnsupportedOperation
from offsetmgr.segments.checkpoints import RECOVERY_POINT, read_checkpoint
from offsetmgr.segments.partition import partition_of
from offsetmgr.segments.recovery import Examination, ExaminationResult, RecoveryOutcome, examine
from offsetmgr.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class ExaminedSegment:
    """An examined segment; ``mark`` shows whether its file has changed since.

    ``behind`` are the later segments of the same log, which were not examined, because the log ends in this one.
    """

    segment: Segment
    found: ExaminationResult
    mark: tuple[int, int, int]
    behind: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class TruncationPoint:
    """The position at which a log will be truncated: at byte ``at`` of a segment; the log continues with
    ``next_offset``."""

    seen: ExaminedSegment
    at: int
    next_offset: int

    @property
    def size(self) -> int:
        """Returns the removed bytes of the segment and of later ones."""
        return self.seen.found.size - self.at + sum(segment.size for segment in self.seen.behind)


def unflushed(directory: Path, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Returns the segments that a broker examines after a crash: from the one with the recovery point on.

    All of them if the broker's checkpoint does not have it, or cannot be read: examining more is never wrong.
    """
    try:
        points = read_checkpoint(directory.absolute().parent / RECOVERY_POINT)
        point = points.get(partition_of(directory), 0)
    except (CorruptData, UnknownVersion, UnsupportedOperation):
        point = 0
    first = max((number for number, segment in enumerate(segments) if segment.base_offset <= point), default=0)
    return segments[first:]


def look(segment: Segment) -> ExaminedSegment:
    """Examines one segment. Raises `FileFailure`."""
    return scan_segments((segment,))


def scan_segments(segments: Sequence[Segment], *, strict: bool = False) -> ExaminedSegment:
    """Examines a log's segments up to the first in which it ends, or with a suspicion that matters (with ``strict``:
    any suspicion).

    Raises `FileFailure`.
    """
    return next(seen for seen in looking_through(segments, strict=strict) if seen is not None)


def looking(segment: Segment) -> Iterator[ExaminedSegment | None]:
    """Works as `look` in pieces of about a MiB, for progress: yields None after each, and the result at the end."""
    with segment.open() as source:
        mark = fingerprint(source.fileno())
        examination = Examination(source, segment.base_offset, str(segment.log), end=mark[1])
        for _ in examination:
            yield None
        yield ExaminedSegment(segment, examination.result(), mark)


def looking_through(segments: Sequence[Segment], *, strict: bool = False) -> Iterator[ExaminedSegment | None]:
    """Works as `scan_segments` in pieces, as `looking`."""
    for number, segment in enumerate(segments, 1):
        for seen in looking(segment):
            if seen is None:
                yield None
            elif number == len(segments) or _ends(seen.found, strict):
                yield replace(seen, behind=tuple(segments[number:]))
                return


def _ends(found: ExaminationResult, strict: bool) -> bool:
    return found.damage is not None or found.outcome is not RecoveryOutcome.KEPT or (strict and bool(found.doubts))


def cut_of(seen: ExaminedSegment, *, strict: bool = False) -> TruncationPoint:
    """Returns where to truncate: where a broker's recovery does; with ``strict`` also before the first suspicious
    entry, which a broker keeps.

    Raises `GateRefused` if a broker would empty the segment, or not start, and it is not ``strict``.
    """
    found = seen.found
    if strict and found.doubts:
        at = found.doubts[0].position  # it is before the damage, because nothing after that was examined
        with seen.segment.open() as source:
            before = examine(source, seen.segment.base_offset, str(seen.segment.log), end=at)
        return TruncationPoint(seen, at, before.next_offset)
    if found.outcome in (RecoveryOutcome.EMPTIED, RecoveryOutcome.UNKNOWN):
        doubt = found.doubts[0]
        fate = "throw the whole segment away" if found.outcome is RecoveryOutcome.EMPTIED else "split it, or not start"
        raise GateRefused(
            f"{seen.segment.log}, position {doubt.position}",
            f"{doubt.why}; a broker would {fate}",
            "look at it with log dump; --strict cuts before it",
        )
    return TruncationPoint(seen, found.sound, found.next_offset)


def fingerprint(descriptor: int) -> tuple[int, int, int]:
    """Returns a value that changes when an open file is written, or is another file."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns
