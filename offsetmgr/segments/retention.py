"""Reports which segments of a log a retention policy would delete. It deletes nothing.

Brokers delete whole segments, the oldest first, and stop at the first segment that the policy keeps, so a log never
gets a gap. If the policy would delete even the last segment, a broker first rolls a new segment, so that the log keeps
its end offset. A broker does not delete an empty last segment.

Source: Kafka 0.10.1, Implementation, 5.5 "Deletes"; kafka.log.UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from offsetmgr.segments.segment import Segment


class DeletionCandidate(NamedTuple):
    """A segment that a policy may delete.

    ``newest`` is the largest time of its messages in milliseconds since 1970. If its messages have no times, ``newest``
    is the time at which its file was last modified. ``later_bytes`` is the number of bytes of all later segments.
    """

    segment: Segment
    size: int
    newest: int
    later_bytes: int


class DeletionPolicy(Protocol):
    """Decides whether a segment may be deleted. Pure: ``now`` is a parameter, in milliseconds since 1970."""

    def reason(self, candidate: DeletionCandidate, now: int) -> str | None:
        """Returns the reason for which the segment may be deleted; None if the segment is kept."""


@dataclass(frozen=True, slots=True)
class OlderThan:
    """``retention.ms``: deletes segments whose newest message is older than ``age_ms``.

    >>> OlderThan(7 * 24 * 3600 * 1000).age_ms
    604800000
    """

    age_ms: int

    def reason(self, candidate: DeletionCandidate, now: int) -> str | None:
        """Returns the age of the newest message if the segment may be deleted, otherwise None."""
        age = now - candidate.newest
        return f"its newest message is {age:,} ms old" if age > self.age_ms else None


@dataclass(frozen=True, slots=True)
class LargerThan:
    """``retention.bytes``: deletes a segment if all later segments together have at least ``size`` bytes.

    >>> LargerThan(5_000_000).size
    5000000
    """

    size: int

    def reason(self, candidate: DeletionCandidate, now: int) -> str | None:  # noqa: ARG002 - the protocol's signature
        """Returns the number of later bytes if the segment may be deleted, otherwise None."""
        return f"{candidate.later_bytes:,} bytes follow it" if candidate.later_bytes >= self.size else None


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Deletes a segment if at least one of the policies deletes it. A broker with several policies does the same.

    >>> len(AnyOf((OlderThan(86_400_000), LargerThan(5_000_000))).policies)
    2
    """

    policies: tuple[DeletionPolicy, ...]

    def reason(self, candidate: DeletionCandidate, now: int) -> str | None:
        """Returns the reason of the first policy that deletes the segment; None if all of them keep the segment."""
        return next((why for policy in self.policies if (why := policy.reason(candidate, now)) is not None), None)


class DeletionDecision(NamedTuple):
    """The decision on a segment. ``reason`` is `None` if the segment is kept."""

    segment: Segment
    size: int
    newest: int
    reason: str | None


def report(segments: Sequence[Segment], policy: DeletionPolicy, now: int) -> Iterator[DeletionDecision]:
    """Yields the policy's decision on each segment, the oldest first. ``now`` is in milliseconds since 1970. Raises
    `FileFailure`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from offsetmgr.segments import LogAppender, Partition, Record, RollPolicy
    >>> with TemporaryDirectory() as parent:
    ...     with LogAppender(Path(parent) / "orders-0", RollPolicy(segment_bytes=100)) as log:
    ...         done = [log.append([Record(0, 1_700_000_000_000, None, b"x")]) for _ in range(3)]
    ...     segments = Partition(Path(parent) / "orders-0").segments
    ...     [decision.reason is not None for decision in report(segments, OlderThan(1_000), now=1_700_086_400_000)]
    [True, True, True]
    """
    sizes = [segment.size for segment in segments]
    behind = sum(sizes)
    keep = False
    for segment, size in zip(segments, sizes, strict=True):
        keep = keep or (size == 0 and behind == 0)
        behind -= size
        newest = max_timestamp(segment)
        reason = None if keep else policy.reason(DeletionCandidate(segment, size, newest, behind), now)
        keep = keep or reason is None
        yield DeletionDecision(segment, size, newest, reason)


def max_timestamp(segment: Segment) -> int:
    """Returns the largest time of a segment's messages in milliseconds since 1970. If the messages have no times
    (format 0), returns the time at which the log file was last modified.

    The last entry of a closed segment's time index has the largest time. The time index of the active segment lags
    behind the log, so the function also reads the log entries that follow the last entry of the index. Raises
    `FileFailure`, and `CorruptData` if one of these log entries is damaged.
    """
    last = segment.time_index().last
    newest = -1 if last is None else last.timestamp
    with segment.open_reader(segment.position_before(last.offset) if last else 0) as reader:
        for entry in reader:
            newest = max(newest, entry.header().largest_timestamp or -1)
    return newest if newest >= 0 else segment.modified
