"""Decides record by record which offsets of a partition belong to a period. Pure: no I/O, no clock, no Spark.

Records are in the order of their offsets, not of their times. A period's range ends after the last record of the
period. The next period's scan begins at the first record of a later period. This record may be before the end of the
earlier period's range. In this case the offsets from this record to the end of the range may contain records of both
periods.

Every record is counted once: as a record of its own period, as a late record of the period whose scan reads it first,
or as a record that the scan of a period sets aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offsetmgr.period.job_records import RangeScan
from offsetmgr.period.records import OffsetRange
from offsetmgr.period.schedule import Period

MIN_LATER_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScanRule:
    """When a scan ends, and which records it sets aside. ``horizon_ms`` is in milliseconds since 1970."""

    period: Period
    lateness_ms: int
    """A scan ends after ``min_later_records`` consecutive records whose times are at least ``lateness_ms`` after the
    period's end. A single such record is not enough, because its time may be wrong."""
    horizon_ms: int
    """The scan sets aside records whose times are after ``horizon_ms``, because these times are too far in the future
    to be correct."""
    min_later_records: int = MIN_LATER_RECORDS


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets between which one partition is scanned; see `RangeScan`. The scan may end before ``end``."""

    start: int
    end: int
    late_from: int | None
    """The first offset at which records of earlier periods count as late. If it is None, no record is late, because
    there was no earlier period."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of one partition's scan. The numbers count records."""

    range: OffsetRange
    """The offsets from the first record of the period to the last record of the period; empty if the period has no
    record."""
    scan: RangeScan
    in_period: int
    late: int
    set_aside: int


class Scanner:
    """Scans one partition. Call `add` for every record from ``bounds.start`` on, in order, until `done` is True or the
    records reach ``bounds.end``; then call `result`."""

    def __init__(self, bounds: Bounds, rule: ScanRule) -> None:
        self._bounds = bounds
        self._rule = rule
        self._first: int | None = None
        self._last = -1
        self._resume: int | None = None
        self._in_period = self._late = self._set_aside = 0
        self._consecutive_later = 0
        self._end: int | None = None

    @property
    def done(self) -> bool:
        return self._end is not None

    def add(self, offset: int, timestamp_ms: int) -> None:
        """Processes one record. Ignores it if the scan is `done`."""
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
            # The scan must not end before the end of an earlier scan. Otherwise a later scan would count records twice.
            if self._consecutive_later >= self._rule.min_later_records and offset + 1 >= (bounds.late_from or 0):
                self._end = offset + 1
        elif timestamp_ms >= period.start_ms:
            self._first = offset if self._first is None else self._first
            self._last = offset
            self._in_period += 1
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
            self._in_period,
            self._late,
            self._set_aside,
        )
