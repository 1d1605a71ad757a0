"""`LoopThread`: an event loop in a thread of its own, for tests that block while what they test goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Self, TypeVar

T = TypeVar("T")

_LONGEST = 60.0
"""Seconds that a test waits for what it runs on the loop."""


class HeldTime(asyncio.SelectorEventLoop):
    """A loop for which no time passes but what `LoopThread.pass_time` says: a machine that stands still is no reason
    why anything on it comes too late."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


class LoopThread:
    """A context manager around `_start` and `_stop`, which run on the loop. ``port`` is where it listens by then.

    ``hold_time``: the loop's time is a `HeldTime`.
    """

    def __init__(self, *, hold_time: bool = False) -> None:
        self.port = 0
        self.loop: asyncio.AbstractEventLoop = HeldTime() if hold_time else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="listening", daemon=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_error: object) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(_LONGEST)

    def pass_time(self, seconds: float) -> None:
        """So much time has passed on the loop, and what was due by then is done."""

        async def passing() -> None:
            assert isinstance(self.loop, HeldTime)
            self.loop.now += seconds
            for _ in range(4):  # turns: what is due, what it calls, the ends of connections, and one more
                await asyncio.sleep(0)

        self.run(passing())

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError
