"""The clock interface. Code that needs the time takes a `Clock` as a parameter, so that tests can control it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Final, Protocol

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
