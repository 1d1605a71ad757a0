"""`SimulatedLoop`: an event loop with simulated time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from types import SimpleNamespace
from typing import Final

_RESOLUTION_S: Final = 1e-6
"""The largest rounding error of a simulated time."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop that never waits. ``now`` returns the simulated time."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.time = now  # type: ignore[method-assign]
        self._selector = SimpleNamespace(select=lambda timeout: [])

    def _process_events(self, events: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def due(self) -> float:
        """The time of the next callback."""
        if self._ready:  # type: ignore[attr-defined]
            return self.time()
        scheduled = [h for h in self._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
        return min((float(h.when()) for h in scheduled), default=float("inf"))

    def end(self) -> None:
        """Cancels all tasks, because the garbage collector would end them in an arbitrary order."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.work()
        self.close()

    def work(self) -> None:
        """Runs all callbacks that are due."""
        while self.due() <= self.time():
            asyncio._set_running_loop(self)
            try:
                self._run_once()  # type: ignore[attr-defined]
            finally:
                asyncio._set_running_loop(None)

    def step(self) -> bool:
        """Runs the next callback that is due. Returns False if none is due. A step of a task ends at its next await,
        so the caller can freeze a process between any two of them."""
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        now = self.time() + _RESOLUTION_S
        while timers and (timers[0]._cancelled or timers[0].when() <= now):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            else:
                ready.append(timer)
        while ready:
            callback = ready.popleft()
            if callback._cancelled:
                continue
            asyncio._set_running_loop(self)
            try:
                callback._run()
            finally:
                asyncio._set_running_loop(None)
            return True
        return False
