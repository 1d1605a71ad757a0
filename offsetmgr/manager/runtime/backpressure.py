"""`Backpressure`: counts records in flight and says when to stop reading from sockets."""

from __future__ import annotations

import asyncio


class Backpressure:
    """Counts records that are not acknowledged yet. Used on the loop."""

    def __init__(self, max_pending: int) -> None:
        self.pending = 0
        self.full = False
        """True from ``max_pending`` pending records on, until half of them are left."""
        self._max_pending = max_pending
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, records: int) -> None:
        self.pending += records
        if self.pending >= self._max_pending:
            self.full = True

    def remove(self, records: int) -> None:
        """Wakes waiters once half of the limit is left."""
        self.pending -= records
        if self.full and self.pending <= self._max_pending // 2:
            self.full = False
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    def backpressure(self) -> asyncio.Future[None] | None:
        """Returns None unless it is `full`; else a future that ends when there is capacity again."""
        if not self.full:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future
