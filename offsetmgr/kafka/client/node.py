"""`BrokerNode`: a shared connection to a broker for quick requests, and a pool of dedicated connections.

A broker processes the requests of a connection one at a time. While a JoinGroup waits in the broker, later requests on
the same connection wait, too. Only one task at a time uses a dedicated connection, so a waiting JoinGroup delays no
other task. If the commits of many groups use several dedicated connections, the broker can process the commits in
parallel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.retry import UnusableAddress
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.client.frame_connection import TIMEOUT_HINT
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.releases import Versions

MAX_ACTIVE_CONNECTIONS: Final = 32
"""The maximum number of dedicated connections in use. A connection does not count while its request waits in the broker
(see `DedicatedConnection.mark_waiting`)."""
_PROBE_S: Final = 1.0
"""The time limit of each request that finds out whether another address is usable."""


class DedicatedConnection:
    """A connection from the pool of a `BrokerNode`, for one user."""

    def __init__(self, connection: BrokerConnection, admission: asyncio.Semaphore) -> None:
        self.connection = connection
        self._admission = admission
        self._counted = True

    def mark_waiting(self) -> None:
        """Marks the request on this connection as waiting in the broker (for a rebalance). From then on the connection
        does not count towards `MAX_ACTIVE_CONNECTIONS`."""
        if self._counted:
            self._counted = False
            self._admission.release()


class BrokerNode:
    """The connections to one broker. ``advertiser`` is the broker that named the address of this one; None for a
    bootstrap address."""

    def __init__(self, address: Address, security: Security, advertiser: BrokerNode | None = None) -> None:
        self.address = address
        self._security = security
        self._advertiser = advertiser
        self._shared: BrokerConnection | None = None
        self._versions: Versions | None = None
        self._opening = asyncio.Lock()
        self._idle: list[BrokerConnection] = []
        self._busy: set[BrokerConnection] = set()
        self._admission = asyncio.Semaphore(MAX_ACTIVE_CONNECTIONS)

    async def connection(self, deadline: float) -> BrokerConnection:
        """Returns the shared connection. Raises the errors of `BrokerConnection.open`."""
        if self._shared is not None and not self._shared.closed:
            return self._shared
        try:
            async with asyncio.timeout_at(deadline):  # another task may be opening the connection with more time
                await self._opening.acquire()
        except TimeoutError:
            raise TimedOut(f"broker {self.address}", "it has not responded yet", TIMEOUT_HINT) from None
        try:
            if self._shared is not None and self._shared.closed:
                self._shared = self._versions = None  # After a restart the broker may have another release.
            if self._shared is None:
                self._shared = await self.open(deadline)
            return self._shared
        finally:
            self._opening.release()

    async def open(self, deadline: float, client_id: str = "") -> BrokerConnection:
        """Opens a new connection. The caller closes it. ``client_id`` replaces the client id of the settings."""
        left = remaining(deadline, f"broker {self.address}")
        security = replace(self._security, client_id=client_id) if client_id else self._security
        try:
            connection = await BrokerConnection.open(self.address, security, left, self._versions)
        except (Unreachable, TimedOut) as error:
            raise error if self._advertiser is None else await self._advertised_error(self._advertiser, error) from None
        self._versions, self._advertiser = connection.versions, None
        return connection

    async def _advertised_error(self, advertiser: BrokerNode, error: OffsetMgrError) -> OffsetMgrError:
        """Returns the error of an address to which no connection was possible so far. It names the broker that
        advertises the address, and is `UnusableAddress` if no address of the cluster can be used."""
        unusable = isinstance(error, Unreachable) and not await advertiser.advertises_usable()
        why = f"{error.why} (advertised by {advertiser.address}{', which names no usable address' if unusable else ''})"
        hint = "correct advertised.listeners of the broker, or make this address reachable from this machine"
        return (UnusableAddress if unusable else type(error))(error.what, why, hint)

    async def advertises_usable(self) -> bool:
        """Returns False if this broker answers, and every address in its Metadata response refuses connections or does
        not resolve."""
        if self._shared is None or self._shared.closed:
            return True
        try:
            answer = await self._shared.call(requests.metadata(), _PROBE_S)
        except OffsetMgrError:
            return True
        advertised = requests.broker_addresses(answer).values()
        return not advertised or any(await asyncio.gather(*map(_may_accept, advertised)))

    @asynccontextmanager
    async def dedicated_connection(self, deadline: float) -> AsyncIterator[DedicatedConnection]:
        """Provides a connection that no other task uses at the same time."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._admission.acquire()
        except TimeoutError:
            why = f"it has not responded to the {MAX_ACTIVE_CONNECTIONS} requests before this one"
            hint = "check that its process runs and is not stopped, then run the command again"
            raise TimedOut(f"broker {self.address}", why, hint) from None
        dedicated: DedicatedConnection | None = None
        try:
            while self._idle and self._idle[-1].closed:
                self._idle.pop()
            connection = self._idle.pop() if self._idle else await self.open(deadline)
            self._busy.add(connection)
            dedicated = DedicatedConnection(connection, self._admission)
            yield dedicated
        finally:
            if dedicated is None:
                self._admission.release()
            else:
                dedicated.mark_waiting()
                self._busy.discard(dedicated.connection)
                if not dedicated.connection.closed:
                    self._idle.append(dedicated.connection)

    async def close(self) -> None:
        """Closes all connections."""
        shared = [self._shared] if self._shared else []
        for connection in [*shared, *self._idle, *self._busy]:
            await connection.close()


async def _may_accept(address: Address) -> bool:
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(*address)
    except TimeoutError:
        return True
    except OSError:
        return False
    writer.close()
    return True
