"""`SessionMember`: the base of members that exist only as long as their ZooKeeper session.

A member's thread repeats these steps until the member stops:

1. Opens a session and begins its `SessionLease`.
2. Calls `SessionMember._run_session`, which registers the member with ephemeral nodes and follows the group's nodes.
3. Ends the lease and calls `SessionMember._on_session_end`. From now on, the member must not act for the group.
4. Closes the session, so that ZooKeeper deletes the member's ephemeral nodes.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import boottime
from offsetmgr.core.errors import OffsetMgrError, SessionExpired
from offsetmgr.zookeeper.client.session import ZookeeperSession

# `SessionLease`: the period in which a member may rely on its ZooKeeper session. The client library reports that a
# session has expired only after it has reached a server again. Long before the library reports the expiration, other
# members may have taken over the member's partitions. Therefore the lease sends a heartbeat to the server at short
# intervals. The lease ends `LEASE_FRACTION` of the session timeout after the *sending* of the last heartbeat that got
# a response. The heartbeat is a ``sync``, because the ensemble's leader takes part in the response to a ``sync``, and
# the leader decides when sessions expire. A ping is not sufficient: a server that has lost its connection to the
# leader, but has not detected this yet, still responds to pings. Each server reports its sessions to the leader at
# least once a tick (since ZooKeeper 3.4, at least once every half tick). Therefore, at the time of the sync, the last
# report about the session that the leader received is at most one heartbeat interval and one tick old.
# `LEASE_FRACTION` is small enough to allow for the heartbeat interval, for the tick, and for clocks that run at
# different rates.

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


class SessionMember(ABC):
    """One member. The thread `_thread` runs from its start until `_stop`; the constructor does no I/O.

    The member's thread calls the abstract methods. They wait for `_wake`, which is also set when the lease changes, and
    return soon after `_stopping` is set.
    """

    _log: ClassVar[logging.Logger]

    def __init__(self, label: str, connect: str, config: ConnectionConfig | None, session_timeout_ms: int) -> None:
        """``connect`` is ``h1:2181,h2:2181/chroot``. Raises `InvalidUri`."""
        ZookeeperSession(connect, config)  # raises at once if the address is invalid
        self._label = label
        self._connect = connect
        self._config = config
        self._session_timeout_ms = session_timeout_ms
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._session: ZookeeperSession | None = None
        self._thread = threading.Thread(target=self._run, name=f"offsetmgr {label}", daemon=True)

    def wake(self) -> None:
        self._wake.set()

    def _stop(self, timeout_s: float | None = None) -> bool:
        """Ends the thread. Returns False if the thread still runs after ``timeout_s`` seconds. If the member's own
        thread calls this method, it does not wait."""
        self._stopping.set()
        self._wake.set()
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def _run_session(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """Runs the member in one session until it stops. Raises the error that ended the session."""

    @abstractmethod
    def _on_error(self, error: OffsetMgrError) -> float:
        """Handles the error that ended a session. Sets `_stopping` if the member must leave. Returns the time in
        seconds before the next session."""

    @abstractmethod
    def _on_session_end(self) -> None:
        """Revokes all rights that depend on the session."""

    @abstractmethod
    def _on_crash(self, error: BaseException) -> None:
        """Reports an unexpected error, so that no caller waits forever. The thread ends after this call."""

    def _require_session(self, lease: SessionLease) -> None:
        """Raises `SessionExpired` if the lease has ended permanently."""
        if lease.expired:
            raise SessionExpired(self._label, "its ZooKeeper session has expired")

    def _run(self) -> None:
        try:
            pause_s = 0.0
            while not self._stopping.wait(pause_s):
                pause_s = self._run_next_session()
        except BaseException as error:
            self._log.exception("%s crashed (a bug in offsetmgr or in the caller's code)", self._label)
            self._stopping.set()
            self._on_crash(error)

    def _run_next_session(self) -> float:
        session = ZookeeperSession(self._connect, self._config, session_timeout_ms=self._session_timeout_ms)
        lease = SessionLease(session, self._wake.set)
        self._session = session
        try:
            lease.begin()
            self._run_session(session, lease)
            return 0.0
        except OffsetMgrError as error:
            pause_s = self._on_error(error)
            self._log.warning(
                "%s: %s; %s", self._label, error, "leaving" if self._stopping.is_set() else "registering again"
            )
            return pause_s
        finally:
            lease.end()
            self._on_session_end()
            session.close()
