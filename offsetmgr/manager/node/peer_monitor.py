"""`PeerMonitor`: removes dead managers from the managers' group, so that other managers need not wait for the session
timeout before they own the shard groups of the dead ones.

The monitor keeps one idle TCP connection to each other manager of the current assignment. The connection needs no TLS
handshake and no login; it only shows when the peer's operating system closes it. The monitor replaces each connection
before the peer's limits for idle connections and for connections without a login close it
(`ManagerSettings`). `PeerLiveness` decides when a peer is dead. All surviving managers may remove the same peer; the
coordinator ignores further removals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.retry import Backoff, Retries, cancel_tasks
from offsetmgr.manager.assignment import NodeAddress

# `PeerLiveness`: decides from the results of TCP connections whether the process of another manager is dead. Pure.
#
# A manager keeps an idle connection to each other manager, at the address for clients. When a process dies, its
# operating system closes its connections and refuses new ones, because no process listens at the port any more. Both
# together are the proof: the peer has closed an established connection, and several attempts to connect again, spread
# over a moment, were all refused. Everything else decides nothing, and the coordinator's session timeout applies:
#
# - A frozen process and a cut network close and refuse nothing. Connections to them time out.
# - A manager that closes idle connections, or has too many of them, still accepts new ones.
# - A port that has refused connections from the start may be misconfigured, or blocked for this process.
#
# The proof can be wrong if the address is not the manager's own: a proxy or a load balancer in front of the manager may
# close and refuse connections while the manager is alive. Therefore a removed manager is still prevented from answering
# with outdated offsets (`lease`). It rejoins at once; until the address accepts connections again, it is not removed a
# second time.

REFUSALS: Final = 3
"""The number of consecutive refused connections that prove the death."""
REFUSAL_INTERVAL_S: Final = 0.1
"""The pause between two attempts to connect to a peer that has closed its connection."""
_MIN_REFUSED_S: Final = (REFUSALS - 1) * REFUSAL_INTERVAL_S * 0.9
"""The minimum time from the first to the last of the refused connections."""


class ConnectionAttempt(Enum):
    """The result of an attempt to connect to a peer."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNDECIDED = "undecided"
    """The attempt timed out, or the host is unreachable or has no address."""


class PeerLiveness:
    """The state of one peer. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.suspected = False
        """Whether the peer has closed an established connection and has accepted no other connection since, so that the
        next attempts to connect decide."""
        self._refusals = 0
        self._refused_since = 0.0

    def on_attempt(self, result: ConnectionAttempt, now: float) -> None:
        """Records the result of an attempt to connect that ended at ``now``."""
        if result is ConnectionAttempt.REFUSED:
            if self._refusals == 0:
                self._refused_since = now
            self._refusals += 1
            return
        self._refusals = 0
        if result is ConnectionAttempt.ACCEPTED:
            self.suspected = False

    def on_closed(self, *, by_peer: bool) -> None:
        """Records that the established connection has ended. ``by_peer`` is False if it ended for another reason, such
        as an unreachable host; then refused connections prove nothing until the peer has accepted one again."""
        self.suspected = by_peer
        self._refusals = 0

    def dead(self, now: float) -> bool:
        """Returns whether the process of the peer is dead."""
        return self.suspected and self._refusals >= REFUSALS and now - self._refused_since >= _MIN_REFUSED_S


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
                    _log.warning("manager %s:%d has died; removing it from the managers' group", host, port)
                    try:
                        await self._remove(member)
                    except OffsetMgrError as error:
                        what = "manager %s:%d could not be removed from the managers' group: %s"
                        _log.warning(what, host, port, error)
                        await retries.pause()
                    else:
                        return
                else:
                    await asyncio.sleep(REFUSAL_INTERVAL_S if liveness.suspected else _RETRY_S)
        finally:
            self.connected.discard(member)
            if connection is not None:
                connection.close()


async def connect(host: str, port: int) -> tuple[ConnectionAttempt, socket.socket | None]:
    """Attempts to connect. Returns the result, and the socket if a connection was accepted. A name with several
    addresses refuses a connection only if all its addresses refuse it."""
    loop = asyncio.get_running_loop()
    refusals = []
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                connection = socket.socket(family, kind, protocol)
                try:
                    connection.setblocking(False)
                    await loop.sock_connect(connection, address)
                except OSError as error:
                    connection.close()
                    refusals.append(isinstance(error, ConnectionRefusedError))
                except BaseException:
                    connection.close()
                    raise
                else:
                    return ConnectionAttempt.ACCEPTED, connection
    except (OSError, TimeoutError):
        return ConnectionAttempt.UNDECIDED, None
    return (ConnectionAttempt.REFUSED if refusals and all(refusals) else ConnectionAttempt.UNDECIDED), None


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
    except OSError as error:
        return isinstance(error, ConnectionError)
    return True
