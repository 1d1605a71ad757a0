"""Which offsets of a partition a period has, decided record by record. Pure: no I/O, no clock, no Spark.

Records are in the order of offsets, not of their times.  So a period's range ends behind the last record that belongs
to it, and the next period's scan begins at the first record of a later one: between the two, records of both may lie.
Every record of the log is accounted for once: taken in its period, counted as late in the period whose scan was the
first to see it, or set aside in the period that passes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offsetmgr.period.job_records import RangeScan
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.schedule import Period

SURE_AFTER: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScanRule:
    """When a scan has seen enough, and what it sets aside. Times in ms since 1970."""

    period: Period
    lateness_ms: int
    """A record of the period is not looked for behind ``sure_after`` records in a row that are dated so long after its
    end. One alone proves nothing: it may be dated ahead."""
    horizon_ms: int
    """Records dated later than this are set aside: no clock of a sound producer can be so far ahead."""
    sure_after: int = SURE_AFTER


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where one partition's scan begins and where it ends at the latest. Offsets; see `RangeScan`."""

    start: int
    end: int
    late_from: int | None
    """None: nothing is late, for no period was before."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan has found in one partition."""

    range: OffsetRange
    """From the first to behind the last record of the period; empty where there is none."""
    scan: RangeScan
    taken: int
    late: int
    set_aside: int


class Scanner:
    """One partition's scan: `see` every record from ``bounds.start`` on, in order, until it says that it has seen
    enough or ``bounds.end`` is reached; then `found`."""

    def __init__(self, bounds: Bounds, rule: ScanRule) -> None:
        self._bounds = bounds
        self._rule = rule
        self._first: int | None = None
        self._last = -1
        self._resume: int | None = None
        self._taken = self._late = self._set_aside = 0
        self._in_a_row = 0
        self._end: int | None = None

    @property
    def enough(self) -> bool:
        return self._end is not None

    def see(self, offset: int, timestamp_ms: int) -> None:
        """One record; nothing counts after `enough`."""
        if self._end is not None:
            return
        period, bounds = self._rule.period, self._bounds
        if timestamp_ms > self._rule.horizon_ms:
            self._set_aside += self._resume is None
            return
        sure = timestamp_ms >= period.end_ms + self._rule.lateness_ms
        self._in_a_row = self._in_a_row + 1 if sure else 0
        if timestamp_ms >= period.end_ms:
            if self._resume is None:
                self._resume = offset
            # What an earlier scan has looked at is never looked at as new by a later one.
            if self._in_a_row >= self._rule.sure_after and offset + 1 >= (bounds.late_from or 0):
                self._end = offset + 1
        elif timestamp_ms >= period.start_ms:
            self._first = offset if self._first is None else self._first
            self._last = offset
            self._taken += 1
        elif bounds.late_from is not None and offset >= bounds.late_from:
            self._late += 1

    def found(self) -> ScanResult:
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
