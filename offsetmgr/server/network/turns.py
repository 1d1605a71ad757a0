"""`EventLoopTurns`: divides the work for all clients into turns of the event loop, between which the manager does its
own work, such as renewing its leases."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from abc import ABC, abstractmethod
from time import monotonic
from typing import Final

_MAX_TURN_S: Final = 0.005
"""Maximum time for which the requests of all clients run in one turn of the event loop."""
_MAX_SLICE_S: Final = 0.0005
"""The time for which one client's requests may run while other clients wait."""


class TurnTaker(ABC):
    """A client whose requests may wait for a turn."""

    waits = False
    """Whether requests or responses wait for a turn."""
    ran_s = 0.0
    """The time for which the requests have run in turns for which the client waited."""

    @abstractmethod
    def run(self) -> None:
        """Processes the requests and responses that waited, until `EventLoopTurns.is_over`."""

    @abstractmethod
    def flush(self) -> None:
        """Writes the queued responses."""


class EventLoopTurns:
    """The turns of one event loop. If a turn is over, clients wait, and those run first that have run for the shortest
    time. So a client with little work does not wait for the requests of hundreds of others."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._scheduled = False
        self._running: TurnTaker | None = None
        """The client that runs after it has waited."""
        self._slice_ends_at = 0.0
        self._least_s = 0.0
        """The least `TurnTaker.ran_s` of the clients that wait."""
        self._waiting: list[tuple[float, int, TurnTaker | asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._unflushed: list[TurnTaker] = []

    def is_over(self, client: TurnTaker, *, full: bool = False) -> bool:
        """Whether the client must not run any further request now. `TurnTaker.run` is called in a later turn.
        ``full``: the client has too many unsent responses."""
        if not client.waits:
            now, running = monotonic(), client is self._running
            if full or now >= (self._slice_ends_at if running else self.ends_at(now)):
                client.waits = True
                if not running:
                    self._wait(client, client)
        return client.waits

    def ends_at(self, now: float) -> float:
        """When a client that does not wait must stop; in the past if other clients wait."""
        if now >= self._ends_at and not self._scheduled:
            self._ends_at = now + _MAX_TURN_S
            self._schedule()
        return 0.0 if self._waiting else self._ends_at

    async def next(self, client: TurnTaker) -> float:
        """Waits for a turn in which a long request of the client may run. Returns when its time ends."""
        client.ran_s += _MAX_SLICE_S
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait(client, future)
        await future
        return monotonic() + _MAX_SLICE_S

    def flush_soon(self, client: TurnTaker) -> None:
        self._unflushed.append(client)
        self._schedule()

    def _wait(self, client: TurnTaker, what: TurnTaker | asyncio.Future[None]) -> None:
        client.ran_s = max(client.ran_s, self._least_s - _MAX_SLICE_S)
        heapq.heappush(self._waiting, (client.ran_s, next(self._numbers), what))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Begins a turn with the clients that wait."""
        self._ends_at = monotonic() + _MAX_TURN_S
        self._scheduled = False
        unflushed, self._unflushed = self._unflushed, []
        for client in unflushed:
            client.flush()
        if self._waiting:
            self._schedule()
        while self._waiting and (now := monotonic()) < self._ends_at:
            ran_s, _, one = heapq.heappop(self._waiting)
            self._least_s = max(self._least_s, ran_s)
            if not isinstance(one, asyncio.Future):
                self._run_slice(one, now)
            elif not one.done():
                one.set_result(None)
                self._ends_at -= _MAX_SLICE_S  # the request will run as long

    def _run_slice(self, client: TurnTaker, now: float) -> None:
        client.waits = False
        self._running = client
        self._slice_ends_at = now + _MAX_SLICE_S if self._waiting else self._ends_at
        try:
            client.run()
        finally:
            self._running = None
            client.ran_s += monotonic() - now
            if client.waits:
                self._wait(client, client)
