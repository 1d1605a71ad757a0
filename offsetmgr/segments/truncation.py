"""Decides where to truncate a damaged log.

This module examines the segments that a broker would examine after a crash, up to the first damaged segment. It only
reads; `repair` truncates. Source: kafka.log.LogLoader.recoverLog (3.9).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import CorruptData, GateRefused, UnknownVersion, UnsupportedOperation
from offsetmgr.segments.checkpoints import RECOVERY_POINT, read_checkpoint
from offsetmgr.segments.partition import partition_of
from offsetmgr.segments.recovery import Examination, ExaminationResult, RecoveryOutcome, examine
from offsetmgr.segments.segment import Segment


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


@dataclass(frozen=True, slots=True)
class TruncationPoint:
    """The place at which a log will be truncated: byte ``position`` of the examined segment. ``next_offset`` is the log
    end offset after the truncation."""

    examined: ExaminedSegment
    position: int
    next_offset: int

    @property
    def size(self) -> int:
        """Returns the number of bytes that the truncation removes: the end of the examined segment, and all later
        segments."""
        return self.examined.result.size - self.position + sum(segment.size for segment in self.examined.later)


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


def examine_segment(segment: Segment) -> ExaminedSegment:
    """Examines one segment. Raises `FileFailure`."""
    return next(examined for examined in examine_in_steps(segment) if examined is not None)


def examine_in_steps(segment: Segment) -> Iterator[ExaminedSegment | None]:
    """Examines one segment like `examine_segment`, in steps of about 1 MiB. Yields `None` after each step, and finally
    the result."""
    with segment.open() as source:
        mark = fingerprint(source.fileno())
        examination = Examination(source, segment.base_offset, str(segment.log), end=mark[1])
        for _ in examination:
            yield None
        yield ExaminedSegment(segment, examination.result(), mark)


def scan_in_steps(segments: Sequence[Segment], *, strict: bool = False) -> Iterator[ExaminedSegment | None]:
    """Examines the segments of a log in order, up to the first segment that is damaged or that a broker would not keep.
    Yields `None` after each step of `examine_in_steps`, and finally this segment. If a broker would keep all segments
    and none is damaged, finally yields the last segment of the log.

    With ``strict``, a segment with a suspicious entry counts as damaged too. Raises `FileFailure`.
    """
    for number, segment in enumerate(segments, 1):
        for examined in examine_in_steps(segment):
            if examined is None:
                yield None
            elif number == len(segments) or _ends(examined.result, strict):
                yield replace(examined, later=tuple(segments[number:]))
                return


def _ends(found: ExaminationResult, strict: bool) -> bool:
    return found.damage is not None or found.outcome is not RecoveryOutcome.KEPT or (strict and bool(found.suspicions))


def truncation_point(examined: ExaminedSegment, *, strict: bool = False) -> TruncationPoint:
    """Returns the place at which a broker's recovery would truncate the log.

    With ``strict``, a suspicious entry before the damage counts as damage too, although a broker would keep this entry.
    Without ``strict``, raises `GateRefused` if a broker would discard the whole segment, would split it, or would not
    start.
    """
    found = examined.result
    if strict and found.suspicions:
        at = found.suspicions[0].position  # before the damage, because the examination stops there
        with examined.segment.open() as source:
            before = examine(source, examined.segment.base_offset, str(examined.segment.log), end=at)
        return TruncationPoint(examined, at, before.next_offset)
    if found.outcome in (RecoveryOutcome.EMPTIED, RecoveryOutcome.UNKNOWN):
        suspicion = found.suspicions[0]
        action = "discard the whole segment" if found.outcome is RecoveryOutcome.EMPTIED else "split it, or not start"
        raise GateRefused(
            f"{examined.segment.log}, position {suspicion.position}",
            f"{suspicion.why}; a broker would {action}",
            Advice("examine the entry with log dump; {strict} truncates the log before it"),
        )
    return TruncationPoint(examined, found.valid_bytes, found.next_offset)


def fingerprint(descriptor: int) -> tuple[int, int, int]:
    """Returns the inode, size and modification time of an open file, which show whether it was changed or replaced."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns
