"""`LoopThread`: an event loop in a thread of its own, for tests that block while what they test goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Self, TypeVar

T = TypeVar("T")

_LONGEST = 60.0
"""Seconds that a test waits for what it runs on the loop."""


class LoopThread:
    """A context manager around `_start` and `_stop`, which run on the loop. ``port`` is where it listens by then."""

    def __init__(self) -> None:
        self.port = 0
        self.loop = asyncio.new_event_loop()
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

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError
