"""`Stopwatch`: the duration of a block, without the time in which the process was runnable but got no processor.

Tests of timeouts use it, so that they also pass on a machine that is busy or paused for a while.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from pathlib import Path
from typing import Self

_TICK_S = 0.005
_LATE_S = 0.005
"""Seconds by which a thread may oversleep on an idle machine."""


@functools.cache
def loop_s() -> float:
    """The processor time of a fixed loop in seconds, the least of many runs: about a millisecond. Budgets of processor
    time are multiples of it, because a slow machine lengthens both."""

    def run() -> float:
        began = time.thread_time()
        found = {}
        for number in range(15_000):
            found[number] = number % 7
        return time.thread_time() - began

    return min(run() for _ in range(50))


class Stopwatch:
    """A context manager. `seconds` is the duration of the block, or the time so far.

    It excludes the time for which this process's threads waited for a processor, which only Linux reports, and the time
    by which a sleeping thread woke up late, as when a hypervisor takes all processors.
    """

    def __enter__(self) -> Self:
        self._ended: float | None = None
        self._late = 0.0
        self._stopped = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="stopwatch", daemon=True)
        self._ticker.start()
        self._waits = self._waited()
        self._began = time.monotonic()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended = self.seconds
        self._stopped.set()
        self._ticker.join()

    @property
    def seconds(self) -> float:
        if self._ended is not None:
            return self._ended
        took = time.monotonic() - self._began
        waited = sum(wait - self._waits.get(thread, 0.0) for thread, wait in self._waited().items())
        return max(0.0, took - max(waited, self._late))

    def _tick(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            time.sleep(_TICK_S)
            late = time.monotonic() - began - _TICK_S
            if late > _LATE_S:
                self._late += late

    def _waited(self) -> dict[str, float]:
        """Seconds for which each thread but the stopwatch's has waited for a processor (proc(5), schedstat)."""
        waits = {}
        for directory in Path("/proc/self/task").glob("*"):
            # The thread may have ended, and the kernel may have no schedstat.
            with contextlib.suppress(OSError, IndexError, ValueError):
                if directory.name != str(self._ticker.native_id):
                    waits[directory.name] = int((directory / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
        return waits
