"""`PeriodSchedule` divides event time into periods of equal length; `RerunOptions` are periods to process again. Pure.

Times are milliseconds since 1970 with up to 63 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import UsageError

MAX_TIME_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """One slice of event time. ``start_ms`` is inclusive, ``end_ms`` exclusive; both are milliseconds since 1970.

    >>> hour = Period(0, 1_700_006_400_000, 1_700_010_000_000)
    >>> 1_700_006_400_000 in hour, 1_700_010_000_000 in hour
    (True, False)
    """

    number: int
    start_ms: int
    end_ms: int

    def __contains__(self, timestamp_ms: int) -> bool:
        return self.start_ms <= timestamp_ms < self.end_ms


@dataclass(frozen=True, slots=True)
class PeriodSchedule:
    """Periods of ``length_ms`` milliseconds; period number ``base`` begins at ``first_ms``. Raises `UsageError`.

    A run keeps its schedule unless a rerun changes it. In this case the numbers of the periods continue, and ``base``
    is the number of the first period of the new schedule.

    >>> hourly = PeriodSchedule(first_ms=1_700_006_400_000, length_ms=3_600_000)
    >>> hourly.number_of(1_700_010_000_001), hourly.period(1).start_ms
    (1, 1700010000000)
    """

    first_ms: int
    length_ms: int
    base: int = 0

    def __post_init__(self) -> None:
        if self.length_ms <= 0:
            raise UsageError(f"period of {self.length_ms} ms", "a period is at least 1 ms long")
        if not 0 <= self.first_ms <= MAX_TIME_MS - self.length_ms:
            raise UsageError(f"first period at {self.first_ms}", "is not a time in milliseconds since 1970")
        if self.base < 0:
            raise UsageError(f"first period's number {self.base}", "is below 0")

    def period(self, number: int) -> Period:
        """Returns the period with this number. Raises `UsageError` if the period is before the first one, or ends after
        the largest time."""
        start = self.first_ms + (number - self.base) * self.length_ms
        if number < self.base or start > MAX_TIME_MS - self.length_ms:
            raise UsageError(f"period {number}", "is before the first period, or beyond the largest time")
        return Period(number, start, start + self.length_ms)

    def number_of(self, timestamp_ms: int) -> int:
        """Returns the number of the period that contains a time; it is below ``base`` if the time is before the first
        period."""
        return self.base + (timestamp_ms - self.first_ms) // self.length_ms

    def begins_at(self, timestamp_ms: int) -> bool:
        """Returns whether a period begins at this time."""
        return timestamp_ms >= self.first_ms and (timestamp_ms - self.first_ms) % self.length_ms == 0


class RerunOptions(NamedTuple):
    """A rerun of the periods from ``from_ms`` to ``until_ms`` (None: the present), in periods of ``length_ms``, which
    are at most as long as those of the run.

    ``name`` begins a separate run with its own members; ``instead`` replaces the live run, whose members must rewind
    their offsets. Afterwards the run closes, or adopts the live run's schedule if ``then`` is "live".
    """

    from_ms: int
    length_ms: int
    until_ms: int | None = None
    name: str | None = None
    instead: bool = False
    then: str = "close"
