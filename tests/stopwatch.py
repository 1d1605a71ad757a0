"""`Stopwatch`: how long something took, without the time in which the machine gave this process no processor.

What must end within a second is bounded by a second of its own: on a machine that is busy with other things, or stands
still for a while, the rest of what a clock shows says nothing of what is tested.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Self

_TICK = 0.005
_LATE = 0.005
"""Seconds that a thread may sleep too long on an idle machine."""


class Stopwatch:
    """A context manager; `seconds` afterwards, or so far.

    What is left out: the time that this process's threads waited for a processor (Linux tells; elsewhere it is not
    known), and that by which a thread that sleeps woke up too late (all processors away, as under a hypervisor).
    """

    def __enter__(self) -> Self:
        self._ended: float | None = None
        self._late = 0.0
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="stopwatch", daemon=True)
        self._ticker.start()
        self._waits = self._waited()
        self._began = time.monotonic()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended = self.seconds
        self._over.set()
        self._ticker.join()

    @property
    def seconds(self) -> float:
        if self._ended is not None:
            return self._ended
        took = time.monotonic() - self._began
        waited = sum(wait - self._waits.get(thread, 0.0) for thread, wait in self._waited().items())
        return max(0.0, took - max(waited, self._late))

    def _tick(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(_TICK)
            late = time.monotonic() - began - _TICK
            if late > _LATE:
                self._late += late

    def _waited(self) -> dict[str, float]:
        """Seconds for which each thread but the stopwatch's has waited for a processor (proc(5), schedstat)."""
        waits = {}
        for directory in Path("/proc/self/task").glob("*"):
            with contextlib.suppress(OSError, IndexError, ValueError):  # a thread that has ended, or no such figures
                if directory.name != str(self._ticker.native_id):
                    waits[directory.name] = int((directory / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
        return waits
