"""Time as a value that is handed in, so that pure cores and tests never look at the wall."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Final, Protocol

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)

boottime: Final[Callable[[], float]] = (
    time.monotonic if _BOOTTIME is None else functools.partial(time.clock_gettime, _BOOTTIME)
)
"""Seconds on a clock that also runs while the machine is suspended, where the platform has one (CLOCK_BOOTTIME); else
on the monotonic clock."""


class Clock(Protocol):
    """What code that needs time asks for."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits; a fake clock moves its own time instead."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
