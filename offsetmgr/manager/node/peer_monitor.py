"""`PeerMonitor`: removes dead managers from the managers' group, so that other managers need not wait for the session
timeout before they own the shard groups of the dead ones.

The monitor keeps one idle TCP connection to each other manager of the current assignment. The connection needs no TLS
handshake and no login; it only shows when the peer's operating system closes it. The monitor replaces each connection
before the peer's limits for idle connections and for connections without a login close it
(`ManagerSettings`). `peer_liveness` decides when a peer is dead. All surviving managers may remove the
same peer; the coordinator ignores further removals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.retry import Backoff, Retries, cancel_tasks
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.peer_liveness import REFUSAL_INTERVAL_S, ConnectionAttempt, PeerLiveness

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 1.0
_RENEWAL_S: Final = 5.0
"""The age at which the monitor replaces a connection, below the time that a server grants for a login (10 s)."""
_RETRY_S: Final = 1.0
"""The pause before a further attempt to connect to a peer that is not suspected to be dead."""
_REMOVAL_BACKOFF: Final = Backoff(0.1, 1.0)
_REJECTION_BACKOFF: Final = Backoff(0.1, 1.0)
"""The pauses before the next attempt if the peer accepts connections and closes them at once, for example because it
has too many."""


class PeerMonitor:
    """Watches the other managers. ``remove`` removes a member from the managers' group; it may raise `OffsetMgrError`.
    Use the monitor on one event loop."""

    def __init__(self, remove: Callable[[str], Awaitable[None]]) -> None:
        self._remove = remove
        self.connected: set[str] = set()
        """The members to which a connection is open."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def update(self, peers: Mapping[str, NodeAddress]) -> None:
        """Watches the peers of a new assignment, by member id, and ends the watch of all others. Managers without a
        listener (port 0) cannot be watched."""
        watched = {} if self._closed else {member: node for member, node in peers.items() if node.port}
        for member in self._tasks.keys() - watched.keys():
            self._tasks.pop(member).cancel()
        for member, node in watched.items():
            if member not in self._tasks:
                self._tasks[member] = asyncio.create_task(self._watch(member, node.host, node.port))

    async def close(self) -> None:
        """Ends all watches."""
        self._closed = True
        tasks = list(self._tasks.values())
        self.update({})
        await cancel_tasks(*tasks)

    async def _watch(self, member: str, host: str, port: int) -> None:
        """Watches one peer until the monitor has removed it."""
        now = asyncio.get_running_loop().time
        liveness = PeerLiveness()
        connection: socket.socket | None = None
        retries = Retries(backoff=_REMOVAL_BACKOFF)
        rejections = 0
        try:
            while True:
                result, opened = await connect(host, port)
                liveness.on_attempt(result, now())
                if opened is not None:
                    if connection is not None:
                        connection.close()
                    connection, opened_at = opened, now()
                    self.connected.add(member)
                if connection is not None:
                    by_peer = await _wait_until_closed(connection, _RENEWAL_S if opened is not None else _RETRY_S)
                    if by_peer is None:
                        rejections = 0
                        continue
                    connection.close()
                    connection = None
                    self.connected.discard(member)
                    liveness.on_closed(by_peer=by_peer)
                    if now() - opened_at < _REJECTION_BACKOFF.first_s:
                        rejections += 1
                        await asyncio.sleep(_REJECTION_BACKOFF.pause_s(rejections))
                elif liveness.dead(now()):
                    if await self._removed(member, host, port):
                        return
                    await retries.pause()
                else:
                    await asyncio.sleep(REFUSAL_INTERVAL_S if liveness.suspected else _RETRY_S)
        finally:
            self.connected.discard(member)
            if connection is not None:
                connection.close()

    async def _removed(self, member: str, host: str, port: int) -> bool:
        _log.warning("manager %s:%d has died; removing it from the managers' group", host, port)
        try:
            await self._remove(member)
        except OffsetMgrError as error:
            _log.warning("manager %s:%d could not be removed from the managers' group: %s", host, port, error)
            return False
        return True


async def connect(host: str, port: int) -> tuple[ConnectionAttempt, socket.socket | None]:
    """Attempts to connect. Returns the result, and the socket if a connection was accepted. A name with several
    addresses refuses a connection only if all its addresses refuse it."""
    loop = asyncio.get_running_loop()
    results = []
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                connection = socket.socket(family, kind, protocol)
                try:
                    connection.setblocking(False)
                    await loop.sock_connect(connection, address)
                except ConnectionRefusedError:
                    connection.close()
                    results.append(ConnectionAttempt.REFUSED)
                except OSError:
                    connection.close()
                    results.append(ConnectionAttempt.UNDECIDED)
                except BaseException:
                    connection.close()
                    raise
                else:
                    return ConnectionAttempt.ACCEPTED, connection
    except (OSError, TimeoutError):
        return ConnectionAttempt.UNDECIDED, None
    refused = bool(results) and all(result is ConnectionAttempt.REFUSED for result in results)
    return (ConnectionAttempt.REFUSED if refused else ConnectionAttempt.UNDECIDED), None


async def _wait_until_closed(connection: socket.socket, timeout_s: float) -> bool | None:
    """Waits until the connection ends. Returns whether the peer has closed it, or None after ``timeout_s`` seconds. The
    function ignores data from the peer."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            while await loop.sock_recv(connection, 4096):
                pass
    except TimeoutError:
        return None
    except ConnectionError:
        return True
    except OSError:
        return False
    return True
