"""A clock for retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class SetClock:
    """A clock that advances only in `sleep`, and then calls ``meanwhile``."""

    now: float = 100.0
    pauses: list[float] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.now += seconds
        self.meanwhile()
