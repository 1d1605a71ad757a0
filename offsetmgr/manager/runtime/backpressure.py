"""`Backpressure`: counts records in flight and signals when the server should stop reading from sockets."""

from __future__ import annotations

import asyncio


class Backpressure:
    """Counts the records that the log has not acknowledged yet. Use it on the event loop."""

    def __init__(self, max_pending: int) -> None:
        self.pending = 0
        self.full = False
        """Becomes True when ``max_pending`` records are pending, and False again when at most half as many are
        pending."""
        self._max_pending = max_pending
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, records: int) -> None:
        self.pending += records
        if self.pending >= self._max_pending:
            self.full = True

    def remove(self, records: int) -> None:
        """Subtracts acknowledged records, and wakes the waiters once at most half of the limit is pending."""
        self.pending -= records
        if self.full and self.pending <= self._max_pending // 2:
            self.full = False
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    def backpressure(self) -> asyncio.Future[None] | None:
        """Returns a future that completes when there is capacity again; None if there is capacity now."""
        if not self.full:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future
