"""`SessionLease`: how long a member may consider itself the owner of its partitions without a server's confirmation.

The client library learns that a session has expired only after it has reached a server again, possibly long after other
members have taken over. Therefore a heartbeat goes to the server at short intervals, and the lease lasts for a part of
the session timeout from the *sending* of the last heartbeat that got a response.

The heartbeat is a ``sync``, to which the ensemble's leader responds; the leader expires sessions. A ping would not do:
a server that is cut off from the leader without knowing it responds to pings. The leader receives news of the member
through its server at least once a tick (half a tick since ZooKeeper 3.4), so at the time of the sync its news is at
most as old as one heartbeat and one tick. `SHARE` leaves room for both, and for clocks that run at different rates.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from offsetmgr.core.clock import boottime
from offsetmgr.core.errors import OffsetMgrError, SessionExpired
from offsetmgr.zookeeper.client.session import ZookeeperSession

SHARE: Final = 0.6
"""The part of the session timeout that a lease lasts."""
BEATS: Final = 8
"""Heartbeats in one session timeout."""

_LOG: Final = logging.getLogger("offsetmgr.consumer")


class SessionLease:
    """The lease of one session, renewed by a thread from `begin` to `end`. `valid` is thread-safe."""

    def __init__(
        self,
        session: ZookeeperSession,
        changed: Callable[[], None],
        clock: Callable[[], float] = boottime,
    ) -> None:
        """``changed`` is called in the lease's thread when `expired` becomes true, and when the lease becomes valid
        again."""
        self._session = session
        self._changed = changed
        self._clock = clock
        self._until = float("-inf")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.expired = False
        """Whether the lease is over permanently: the server reported that the session has expired, or the heartbeat
        thread has crashed, which it logs."""

    def begin(self) -> None:
        """Connects, if necessary, and starts to renew the lease. Raises what the session raises."""
        self._beat()
        self._thread = threading.Thread(target=self._keep, name="offsetmgr-session-lease", daemon=True)
        self._thread.start()

    def valid(self) -> bool:
        return self._clock() < self._until

    def end(self) -> None:
        """Invalidates the lease permanently."""
        self._ended.set()
        self._until = float("-inf")

    def _beat(self) -> None:
        sent = self._clock()
        self._session.sync()
        until = sent + (self._session.granted_s or 0.0) * SHARE
        if not self._ended.is_set():
            self._until = max(self._until, until)

    def _keep(self) -> None:
        pause = (self._session.granted_s or 0.0) / BEATS
        while not self._ended.wait(pause if self.valid() else 0.0):
            was_valid = self.valid()
            try:
                self._beat()
            except SessionExpired:
                self._over()
                return
            except OffsetMgrError as error:
                _LOG.info("no beat of the ZooKeeper session: %s", error)
                self._ended.wait(pause)
                continue
            except Exception:  # the lease's users would otherwise wait for the next heartbeat forever
                _LOG.exception("the beat of the ZooKeeper session has ended by a defect of offsetmgr")
                self._over()
                return
            if not was_valid and self.valid():
                self._changed()

    def _over(self) -> None:
        self.expired = True
        self._until = float("-inf")
        self._changed()
