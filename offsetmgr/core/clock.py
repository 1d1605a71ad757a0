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
        ...

    def monotonic(self) -> float:
        """Returns the seconds of a clock that never goes back, for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for ``seconds``. A test clock does not wait; it advances its own time by ``seconds``."""
        ...


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


class BrokersClock:
    """The time of the brokers that lead partitions, measured by appends to these partitions. Between two measurements
    the time follows `boottime`, so a step of this machine's clock does not change it. If this machine's clock differs
    by at most `CLOCK_BOUND_MS`, it is more precise than a measurement, so it is the time of a broker."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._offsets: dict[int, float] = {}
        """The difference between the time of a partition's leader and `boottime` in milliseconds."""

    def measure(self, partition: int, broker_ms: int, sent_at: float) -> None:
        """Notes the time of an append, whose request was sent at the time ``sent_at`` of `boottime`. Ignores a negative
        time, and a response after so long a time that the measurement is not precise."""
        received_at = boottime()
        if broker_ms >= 0 and (received_at - sent_at) * 1000 <= CLOCK_BOUND_MS:
            self._offsets[partition] = broker_ms - (sent_at + received_at) * 500

    def forget(self, partitions: Iterable[int]) -> None:
        """Drops the measurements of partitions, because this process no longer appends to them."""
        for partition in partitions:
            self._offsets.pop(partition, None)

    def now_ms(self) -> int:
        """Returns the time of new commits: the latest time of a broker, so that no offset expires early. Without a
        measurement, this is the time of this machine's clock."""
        return self._time(max)

    def expiry_ms(self, partition: int) -> int | None:
        """Returns the time for the expiration of offsets of a partition: the earliest time of a broker. Returns None if
        no offset may expire, because the time is unknown or a clock is wrong."""
        return None if partition not in self._offsets or self.wrong_clock() else self._time(min)

    def wrong_clock(self) -> int:
        """Returns by how many milliseconds this machine's clock is ahead of the clock of the broker with the largest
        difference; 0 unless the difference is larger than `MAX_DIFFERENCE_MS`."""
        boot_ms = self._clock.now_ms() - boottime() * 1000
        ahead = round(max((boot_ms - offset for offset in self._offsets.values()), key=abs, default=0))
        return ahead if abs(ahead) > MAX_DIFFERENCE_MS else 0

    def _time(self, choose: Callable[[Iterable[float]], float]) -> int:
        own = self._clock.now_ms()
        broker = round(boottime() * 1000 + choose(self._offsets.values())) if self._offsets else own
        return own if abs(own - broker) <= CLOCK_BOUND_MS else broker


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
