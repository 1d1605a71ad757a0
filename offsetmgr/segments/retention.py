"""Reports which segments of a log a deletion policy would delete; it deletes nothing.

Whole segments are deleted, the oldest first. A policy is applied to one after the other and stops at the first that it
keeps, so a log never gets a hole. If even the last one would be deleted, a broker first begins a new one, so that the
log's end is not lost; an empty last one stays.

Source: Kafka 0.10.1, Implementation, 5.5 "Deletes"; kafka.log.UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from offsetmgr.segments.segment import Segment


class SegmentDecision(NamedTuple):
    """A segment for a policy: ``newest`` is the largest time of its messages, or, without times, the last write of its
    file (milliseconds since 1970). ``behind`` is the number of bytes of all later segments."""

    segment: Segment
    size: int
    newest: int
    behind: int


class DeletionPolicy(Protocol):
    """Decides on one segment. Pure: the time is a parameter (milliseconds since 1970)."""

    def reason(self, judged: SegmentDecision, now: int) -> str | None:
        """Returns why the segment may be deleted; None if it is kept."""
        ...


@dataclass(frozen=True, slots=True)
class OlderThan:
    """``retention.ms``: segments whose newest message is older than so many milliseconds."""

    milliseconds: int

    def reason(self, judged: SegmentDecision, now: int) -> str | None:
        age = now - judged.newest
        return f"its newest message is {age:,} ms old" if age > self.milliseconds else None


@dataclass(frozen=True, slots=True)
class MoreThan:
    """``retention.bytes``: segments without which the log still has so many bytes."""

    size: int

    def reason(self, judged: SegmentDecision, now: int) -> str | None:  # noqa: ARG002 - a policy's form
        return f"{judged.behind:,} bytes lie behind it" if judged.behind >= self.size else None


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Everything that any of these policies would delete, as a broker with several policies does."""

    policies: tuple[DeletionPolicy, ...]

    def reason(self, judged: SegmentDecision, now: int) -> str | None:
        return next((why for policy in self.policies if (why := policy.reason(judged, now)) is not None), None)


class RetentionReason(NamedTuple):
    """The decision on a segment; ``reason`` is None if it is kept."""

    segment: Segment
    size: int
    newest: int
    reason: str | None


def report(segments: Sequence[Segment], policy: DeletionPolicy, now: int) -> Iterator[RetentionReason]:
    """Yields the decisions of a policy, segment by segment; ``now`` is milliseconds since 1970. Raises
    `FileFailure`."""
    sizes = [segment.size for segment in segments]
    behind = sum(sizes)
    keeping = False
    for segment, size in zip(segments, sizes, strict=True):
        keeping = keeping or (size == 0 and behind == 0)
        behind -= size
        newest = max_timestamp(segment)
        reason = None if keeping else policy.reason(SegmentDecision(segment, size, newest, behind), now)
        keeping = keeping or reason is None
        yield RetentionReason(segment, size, newest, reason)


def max_timestamp(segment: Segment) -> int:
    """Returns the largest time of a segment's messages in milliseconds since 1970; the last write of its file if they
    have none (format 0). The time index of a closed segment has it; that of an open one lags, so later entries are
    read. Raises `FileFailure`, and `CorruptData` if those are damaged."""
    index = segment.time_index()
    last = index[len(index) - 1] if len(index) else None
    newest = -1 if last is None else last.timestamp
    with segment.walk(segment.position_before(last.offset) if last else 0) as walk:
        for entry in walk:
            newest = max(newest, entry.header().largest_timestamp or -1)
    return newest if newest >= 0 else segment.modified
