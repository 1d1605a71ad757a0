"""The clock interface. Code that needs the time takes a `Clock` as a parameter, so that tests can control it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, Self

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)

boottime: Final[Callable[[], float]] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)
"""Returns the time of CLOCK_BOOTTIME in seconds. This clock also runs while the machine is suspended. On platforms
without CLOCK_BOOTTIME, the function returns the time of the monotonic clock."""


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Returns the wall clock in milliseconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Returns the seconds of a clock that never goes back, for durations and deadlines."""

    def sleep(self, seconds: float) -> None:
        """Waits for ``seconds``. A test clock does not wait; it advances its own time by ``seconds``."""


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


# `ClockDifference`: the measured difference between a server's clock and this machine's clock. Pure.

CLOCK_BOUND_MS: Final = 10_000
"""The largest difference of clocks that offsetmgr accepts without a warning."""
_SECOND_MS: Final = 1_000
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))


class ClockDifference(NamedTuple):
    """The time of a server minus the time of this machine, in milliseconds: at least ``low`` and at most ``high``.

    ``high`` is None if only a lower bound is known, from a timestamp that the server has written at some time in the
    past. ``source`` names the measurement.
    """

    low: int
    high: int | None
    source: str

    @classmethod
    def measured(cls, server_ms: int, sent_ms: int, received_ms: int, source: str) -> Self:
        """Returns the difference for a server that read its clock between the request and the response."""
        return cls(server_ms - received_ms, server_ms - sent_ms, source)

    @classmethod
    def at_least(cls, server_ms: int, now_ms: int, source: str) -> Self:
        """Returns the difference for a server that wrote the time ``server_ms`` at some time before now."""
        return cls(server_ms - now_ms, None, source)

    @property
    def ahead_ms(self) -> int | None:
        """The best estimate: positive if the server's clock is ahead of this machine's clock. None if only a lower
        bound is known."""
        return None if self.high is None else (self.low + self.high) // 2

    @property
    def correction_ms(self) -> int:
        """The milliseconds to add to a time of this machine's clock: 0 unless the clocks certainly differ by more than
        `CLOCK_BOUND_MS`. If only a lower bound is known, the correction is this bound."""
        if not self.exceeds():
            return 0
        ahead = self.ahead_ms
        return self.low if ahead is None else ahead

    @property
    def agrees(self) -> bool:
        """Returns whether the clocks agree: the measured difference is within `CLOCK_BOUND_MS`, or the server wrote its
        newest timestamp within this bound before or after the present time of this machine."""
        return not self.exceeds() and self.low >= -CLOCK_BOUND_MS

    def exceeds(self) -> bool:
        """Returns whether the clocks certainly differ by more than `CLOCK_BOUND_MS`."""
        return self.low > CLOCK_BOUND_MS or (self.high is not None and self.high < -CLOCK_BOUND_MS)

    def __str__(self) -> str:
        if self.high is None:
            if self.low <= 0:
                return f"not measured: the newest timestamp is {duration(-self.low)} old ({self.source})"
            return f"at least {duration(self.low)} ahead of this machine ({self.source})"
        ahead, error = (self.low + self.high) // 2, (self.high - self.low + 1) // 2
        margin = f"+/- {duration(error)}"
        if abs(ahead) <= error:
            return f"equal to this machine's clock, {margin} ({self.source})"
        return f"{duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine, {margin} ({self.source})"


MAX_DIFFERENCE_MS: Final = 3_600_000
"""The largest difference between this machine's clock and the brokers' clocks with which offsets expire."""


_MAX_AGE_S: Final = 7_200.0
"""The age from which a measurement does not count. Claims measure each leader at least once an hour."""


class BrokersClock:
    """The time of the brokers that lead partitions, measured by appends to these partitions. Between two measurements
    the time of a broker follows `boottime`. It is unknown which clock is right, so expiry takes the earliest one."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._measured: dict[object, tuple[float, float]] = {}
        """For each leader, the difference between its time and `boottime` in milliseconds, and when it was measured."""
        self._latest = -float("inf")

    def measure(self, leader: object, broker_ms: int, sent_at: float) -> None:
        """Notes the time of an append, whose request was sent at the time ``sent_at`` of `boottime`. Ignores a negative
        time, and a response after so long a time that the measurement is not precise."""
        received_at = boottime()
        if broker_ms >= 0 and (received_at - sent_at) * 1000 <= CLOCK_BOUND_MS:
            self._measured[leader] = broker_ms - (sent_at + received_at) * 500, received_at
            self._latest = max(offset for offset, _ in self._recent())

    def now_ms(self) -> int:
        """Returns the time of new commits: the latest time of the brokers, or this machine's time if that is
        unknown."""
        return int(boottime() * 1000 + self._latest) if self._measured else self._clock.now_ms()

    def expiry_ms(self) -> int | None:
        """Returns the time for the expiration of offsets: the earliest time of this machine and of the brokers. Returns
        None if no offset may expire, because the time of the brokers is unknown or a clock is wrong."""
        if not (measured := self._recent()) or self.fault():
            return None
        return int(min(self._clock.now_ms(), boottime() * 1000 + min(offset for offset, _ in measured)))

    def fault(self) -> str:
        """Returns which clocks differ by more than `MAX_DIFFERENCE_MS`; empty if none do."""
        boot_ms = self._clock.now_ms() - boottime() * 1000
        differences = ((boot_ms - offset, leader) for offset, leader in self._recent())
        ahead, leader = max(differences, key=lambda one: abs(one[0]), default=(0, None))
        if abs(ahead) <= MAX_DIFFERENCE_MS:
            return ""
        order = "ahead of" if ahead > 0 else "behind"
        return f"this manager's clock is {duration(round(abs(ahead)))} {order} the clock of broker {leader}"

    def _recent(self) -> list[tuple[float, object]]:
        oldest = boottime() - _MAX_AGE_S
        return [(offset, leader) for leader, (offset, at) in self._measured.items() if at >= oldest]


def best_difference(differences: Iterable[ClockDifference]) -> ClockDifference | None:
    """Returns the most precise measurement, else the largest lower bound, else None."""
    found = list(differences)
    measured = [one for one in found if one.high is not None]
    if measured:
        return min(measured, key=lambda one: (one.high or 0) - one.low)
    return max(found, key=lambda one: one.low, default=None)


def duration(milliseconds: int) -> str:
    """Formats a duration for messages, such as ``250 ms``, ``3.2 s`` or ``10 d 2 h``."""
    if milliseconds < 0:
        return f"-{duration(-milliseconds)}"
    if milliseconds < _SECOND_MS:
        return f"{milliseconds} ms"
    if milliseconds < 60 * _SECOND_MS:
        return f"{milliseconds / _SECOND_MS:.1f} s"
    milliseconds = (milliseconds + _SECOND_MS // 2) // _SECOND_MS * _SECOND_MS
    parts = []
    for name, size in _UNITS:
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
