"""Time as a value that is handed in, so that pure cores and tests never look at the wall."""

from __future__ import annotations

import time
from typing import Protocol


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
