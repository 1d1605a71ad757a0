"""`EventLoopThread`: an event loop in its own thread, for tests whose own thread blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Self, TypeVar

T = TypeVar("T")

_RUN_TIMEOUT_S = 120.0
"""Timeout of a coroutine that a test runs on the loop."""


class ManualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock only `EventLoopThread.advance_time` advances, so that no timeout expires because the
    machine is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


class EventLoopThread:
    """A context manager around `_start` and `_stop`, which run on the loop. `_start` sets ``port``.

    ``manual_clock``: the loop is a `ManualClockLoop`.
    """

    def __init__(self, *, manual_clock: bool = False) -> None:
        self.port = 0
        self.loop: asyncio.AbstractEventLoop = ManualClockLoop() if manual_clock else asyncio.new_event_loop()
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
        self._thread.join(90)
        self.loop.close()

    def run(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(_RUN_TIMEOUT_S)

    def advance_time(self, seconds: float) -> None:
        """Advances the loop's clock, and runs the callbacks that are due."""

        async def advance() -> None:
            assert isinstance(self.loop, ManualClockLoop)
            self.loop.now += seconds
            # Iterations of the loop: due timers, their callbacks, closed connections, and one to spare.
            for _ in range(4):
                await asyncio.sleep(0)

        self.run(advance())

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError
