"""Decides record by record which offsets of a partition belong to a period. Pure: no I/O, no clock, no Spark.

Records are in the order of offsets, not of their times. So a period's range ends after the last record that belongs to
it, and the next period's scan begins at the first record of a later one; between the two there may be records of both.
Every record of the log is counted once: taken in its period, counted as late in the period whose scan was the first to
see it, or set aside in the period that passes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offsetmgr.period.job_records import RangeScan
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.schedule import Period

MIN_LATER_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScanRule:
    """When a scan ends, and which records it sets aside. Times in ms since 1970."""

    period: Period
    lateness_ms: int
    """A scan ends after ``min_later_records`` consecutive records with times at least this long after the period's end. One
    alone proves nothing: its time may be ahead."""
    horizon_ms: int
    """Records with later times are set aside: no correct producer's clock can be so far ahead."""
    min_later_records: int = MIN_LATER_RECORDS


@dataclass(frozen=True, slots=True)
class Bounds:
    """The start and the latest end of one partition's scan. Offsets; see `RangeScan`."""

    start: int
    end: int
    late_from: int | None
    """If it is None, no record is late, because there was no earlier period."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan in one partition."""

    range: OffsetRange
    """From the first record of the period to after the last one; empty if there is none."""
    scan: RangeScan
    taken: int
    late: int
    set_aside: int


class Scanner:
    """One partition's scan: call `add` for every record from ``bounds.start`` on, in order, until it returns True or
    ``bounds.end`` is reached; then `result`."""

    def __init__(self, bounds: Bounds, rule: ScanRule) -> None:
        self._bounds = bounds
        self._rule = rule
        self._first: int | None = None
        self._last = -1
        self._resume: int | None = None
        self._taken = self._late = self._set_aside = 0
        self._consecutive_later = 0
        self._end: int | None = None

    @property
    def done(self) -> bool:
        return self._end is not None

    def add(self, offset: int, timestamp_ms: int) -> None:
        """Processes one record; records after `done` are ignored."""
        if self._end is not None:
            return
        period, bounds = self._rule.period, self._bounds
        if timestamp_ms > self._rule.horizon_ms:
            self._set_aside += self._resume is None
            return
        later = timestamp_ms >= period.end_ms + self._rule.lateness_ms
        self._consecutive_later = self._consecutive_later + 1 if later else 0
        if timestamp_ms >= period.end_ms:
            if self._resume is None:
                self._resume = offset
            # A record that an earlier scan has seen must not be seen as new by a later one.
            if self._consecutive_later >= self._rule.min_later_records and offset + 1 >= (bounds.late_from or 0):
                self._end = offset + 1
        elif timestamp_ms >= period.start_ms:
            self._first = offset if self._first is None else self._first
            self._last = offset
            self._taken += 1
        elif bounds.late_from is not None and offset >= bounds.late_from:
            self._late += 1

    def result(self) -> ScanResult:
        bounds = self._bounds
        end = bounds.end if self._end is None else self._end
        resume = end if self._resume is None else self._resume
        first = resume if self._first is None else self._first
        return ScanResult(
            OffsetRange(first, max(first, self._last + 1)),
            RangeScan(bounds.start, end if bounds.late_from is None else bounds.late_from, end, resume),
            self._taken,
            self._late,
            self._set_aside,
        )
