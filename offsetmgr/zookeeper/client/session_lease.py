"""`SessionLease`: the period in which a member may rely on its ZooKeeper session.

The client library reports that a session has expired only after it has reached a server again. Long before the library
reports the expiration, other members may have taken over the member's partitions. Therefore the lease sends a heartbeat
to the server at short intervals. The lease ends `LEASE_FRACTION` of the session timeout after the *sending* of the last
heartbeat that got a response.

The heartbeat is a ``sync``, because the ensemble's leader takes part in the response to a ``sync``, and the leader
decides when sessions expire. A ping is not sufficient: a server that has lost its connection to the leader, but has not
detected this yet, still responds to pings. Each server reports its sessions to the leader at least once a tick (since
ZooKeeper 3.4, at least once every half tick). Therefore, at the time of the sync, the last report about the session
that the leader received is at most one heartbeat interval and one tick old. `LEASE_FRACTION` is small enough to allow
for the heartbeat interval, for the tick, and for clocks that run at different rates.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from offsetmgr.core.clock import boottime
from offsetmgr.core.errors import OffsetMgrError, SessionExpired
from offsetmgr.zookeeper.client.session import ZookeeperSession

LEASE_FRACTION: Final = 0.6
"""The duration of the lease after a heartbeat, as a fraction of the session timeout."""
HEARTBEATS_PER_TIMEOUT: Final = 8
"""The number of heartbeats that are sent during one session timeout."""

_LOG: Final = logging.getLogger("offsetmgr.consumer")


class SessionLease:
    """The lease of one session. A thread renews the lease from `begin` until `end`. `valid` is thread-safe."""

    def __init__(
        self,
        session: ZookeeperSession,
        on_change: Callable[[], None],
        clock: Callable[[], float] = boottime,
    ) -> None:
        """The lease's thread calls ``on_change`` when `expired` becomes true, and when the lease becomes valid
        again."""
        self._session = session
        self._on_change = on_change
        self._clock = clock
        self._until = float("-inf")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.expired = False
        """Whether the lease has ended permanently: the server reported that the session has expired, or the heartbeat
        thread has crashed and logged the error."""

    def begin(self) -> None:
        """Sends the first heartbeat and starts to renew the lease. Raises as `ZookeeperSession.sync`."""
        self._heartbeat()
        self._thread = threading.Thread(target=self._renew, name="offsetmgr-session-lease", daemon=True)
        self._thread.start()

    def valid(self) -> bool:
        return self._clock() < self._until

    def end(self) -> None:
        """Invalidates the lease permanently."""
        self._ended.set()
        self._until = float("-inf")

    def _heartbeat(self) -> None:
        sent = self._clock()
        self._session.sync()
        until = sent + (self._session.granted_timeout_s or 0.0) * LEASE_FRACTION
        if not self._ended.is_set():
            self._until = max(self._until, until)

    def _renew(self) -> None:
        interval_s = (self._session.granted_timeout_s or 0.0) / HEARTBEATS_PER_TIMEOUT
        while not self._ended.wait(interval_s if self.valid() else 0.0):
            was_valid = self.valid()
            try:
                self._heartbeat()
            except SessionExpired:
                self._expire()
                return
            except OffsetMgrError as error:
                _LOG.info("the heartbeat of the ZooKeeper session failed, retrying: %s", error)
                self._ended.wait(interval_s)
                continue
            except Exception:  # without this handler, callers that wait for the lease would wait forever
                _LOG.exception(
                    "the heartbeat thread of the ZooKeeper session crashed (a bug in offsetmgr); the lease has ended"
                )
                self._expire()
                return
            if not was_valid and self.valid():
                self._on_change()

    def _expire(self) -> None:
        self.expired = True
        self._until = float("-inf")
        self._on_change()
