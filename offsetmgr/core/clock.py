"""The clock as a parameter, so that pure code and tests control time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Final, Protocol

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)

boottime: Final[Callable[[], float]] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)
"""Seconds on a clock that also runs while the machine is suspended (CLOCK_BOOTTIME); the monotonic clock on platforms
without one."""


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Returns the wall clock in milliseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never decrease, for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits. A clock for tests advances its own time instead."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
