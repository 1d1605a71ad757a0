"""`SessionLease`: how long a member may take itself for the owner of its partitions without asking anybody.

The client library tells that a session has expired only when it has reached a server again, which may be long after the
others have taken over. So a beat asks the server at short intervals, and the lease lasts a part of the session from the
*sending* of the last beat that was answered.

The beat is a ``sync``: the ensemble's leader answers it, who expires sessions, while a ping is answered by a server
that may be cut off from the leader without knowing it yet. The leader hears of the member through its server once a
tick at the latest (half a tick since ZooKeeper 3.4), so at the time of the sync it has heard of it within one beat and
one tick: `SHARE` leaves room for both, and for clocks that differ in rate.
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
"""The part of the session's timeout that a lease lasts."""
BEATS: Final = 8
"""Beats in one session timeout."""

_LOG: Final = logging.getLogger("offsetmgr.consumer")


class SessionLease:
    """The lease of one session, kept by a thread from `begin` to `end`. `valid` may be asked from any thread."""

    def __init__(
        self,
        session: ZookeeperSession,
        changed: Callable[[], None],
        clock: Callable[[], float] = boottime,
    ) -> None:
        """``changed`` is called (in the lease's thread) when `expired` has become true, and when the lease is valid
        again after it was not."""
        self._session = session
        self._changed = changed
        self._clock = clock
        self._until = float("-inf")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.expired = False
        """Whether the lease will never be valid again: the server has said that the session is over, or no beat comes
        any more, by a defect that the log tells."""

    def begin(self) -> None:
        """Connects, if need be, and starts to keep the lease. Raises what the session raises."""
        self._beat()
        self._thread = threading.Thread(target=self._keep, name="offsetmgr-session-lease", daemon=True)
        self._thread.start()

    def valid(self) -> bool:
        return self._clock() < self._until

    def end(self) -> None:
        """From this moment the lease is not valid, and never will be."""
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
            except Exception:  # whoever holds the lease would wait for the next beat for ever
                _LOG.exception("the beat of the ZooKeeper session has ended by a defect of offsetmgr")
                self._over()
                return
            if not was_valid and self.valid():
                self._changed()

    def _over(self) -> None:
        self.expired = True
        self._until = float("-inf")
        self._changed()
