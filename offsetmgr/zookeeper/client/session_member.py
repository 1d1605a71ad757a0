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
from typing import ClassVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError, SessionExpired
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease


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
