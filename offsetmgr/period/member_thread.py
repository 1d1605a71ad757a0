"""`MemberThread`: the thread of one member that communicates with ZooKeeper, session after session.

It registers the member, tracks the open period, writes reports and, in the oldest member, leads. It reads again after a
watch fired or a local report arrived, never because time has passed; only a leader checks again if it waits for
partitions that may have no records.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection
from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import CallbackFailed, Conflict, OffsetMgrError, ServerError, SessionExpired
from offsetmgr.period.leader import LeaderRound
from offsetmgr.period.leader_decision import Leader
from offsetmgr.period.member_state import MemberState
from offsetmgr.period.records import MemberNode
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease

_LOG: Final = logging.getLogger("offsetmgr.period")
_PAUSE_S: Final = 0.5
"""Seconds before a failed operation is tried again."""
_END_S: Final = (0.5, 3.0)
"""Limits for the thread's end: by itself, and after its session was closed."""


class MemberThread:
    """No I/O before `start`."""

    def __init__(
        self,
        zookeeper: str,
        config: ConnectionConfig | None,
        timeout_ms: int,
        knowledge: MemberState,
        leading: LeaderRound,
    ) -> None:
        self._zookeeper = zookeeper
        self._config = config
        self._timeout_ms = timeout_ms
        self._knowledge = knowledge
        self._leading = leading
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: ZookeeperSession | None = None
        self.connected = False
        """Whether ZooKeeper has ever responded."""

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name=f"offsetmgr-period-{self._knowledge.member}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Returns within a few seconds, even if a server or a caller's function blocks."""
        self._stopping.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S[0])
            if thread.is_alive() and self._session is not None:
                self._session.close()  # ends waiting requests and the member's registration
                thread.join(_END_S[1])
        self._knowledge.end(None)

    def _run(self) -> None:
        member = self._knowledge.member
        while not self._stopping.is_set():
            session = ZookeeperSession(self._zookeeper, self._config, session_timeout_ms=self._timeout_ms)
            lease = SessionLease(session, self._wake.set)
            self._session = session
            try:
                self._live(session, lease)
            except SessionExpired as expired:
                _LOG.warning("period member %s: %s; joining again", member, expired)
            except OffsetMgrError as error:
                if self._stopping.is_set():
                    break  # its session was closed
                _LOG.warning("period member %s: %s", member, error)
                if error.retriable or isinstance(error, Conflict):
                    self._knowledge.trouble(error)
                else:
                    self._end(error)
            except Exception as error:  # a caller's function failed, or a defect: waiting callers must not wait forever
                _LOG.exception("period member %s", member)
                self._end(CallbackFailed(f"member {member}", f"{type(error).__name__}: {error}"))
            finally:
                self._knowledge.forget_session()
                lease.end()
                session.close()
            self._stopping.wait(_PAUSE_S)

    def _end(self, error: OffsetMgrError) -> None:
        self._stopping.set()
        self._knowledge.end(error)

    def _live(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """One session from its beginning to its end."""
        knowledge = self._knowledge
        lease.begin()
        self.connected = True
        nodes = BarrierStateStore(session, knowledge.root)
        nodes.prepare()
        me = _me(knowledge)
        epoch = nodes.register(knowledge.member, me)
        knowledge.take_registered(epoch, lease.valid)
        watches = _Watches(nodes, self._wake.set)
        view: BarrierView | None = None
        while not self._stopping.is_set():
            if lease.expired:
                raise SessionExpired(f"period member {knowledge.member}", "its ZooKeeper session has expired")
            self._wake.clear()
            if knowledge.owned != me.owned and nodes.describe(knowledge.member, changed := _me(knowledge)):
                me = changed
            leads = view is not None and view.leader == knowledge.member
            # Watches are set before their nodes are read. If no period is open yet, its node does not exist.
            parents = [nodes.members_path, *([nodes.root] if knowledge.open is None else ())]
            again = watches.follow([nodes.open_path], [*parents, *([nodes.progress_path] if leads else ())])
            if view is not None and leads:
                again |= watches.follow([f"{nodes.progress_path}/{name}" for name in view.seen.progress], ())
            if again or leads or view is None or knowledge.must_read_all():
                view = nodes.read()
                again = self._take(nodes, view, epoch, me)
                if view.leader == knowledge.member:
                    again |= not leads or self._leading.step(nodes, view, Leader(knowledge.member, epoch))
                    again |= any(f"{nodes.progress_path}/{name}" not in watches for name in view.seen.progress)
            else:
                again = knowledge.take_open(*nodes.read_open())
            if not again:
                leads = view.leader == knowledge.member
                self._wake.wait(self._leading.next_look(view) if leads else None)

    def _take(self, nodes: BarrierStateStore, view: BarrierView, epoch: int, me: MemberNode) -> bool:
        """Processes what was read, and writes reports; returns whether it must be read again. Raises `Conflict` if a
        later process has this member's name."""
        own = view.seen.progress.get(self._knowledge.member)
        if own is not None and own.epoch > epoch:
            raise Conflict(f"member {self._knowledge.member}", "another process of this name has taken over")
        self._knowledge.take_finished(view.seen.finished(), me.owned)
        again = self._knowledge.take_open(view.seen.open_, view.seen.partitions) or me.owned != self._knowledge.owned
        node = self._knowledge.unwritten(own, epoch)
        if node is None:
            return again
        if not nodes.report(node, view.progress_versions.get(self._knowledge.member)):
            return True
        self._knowledge.take_written(node)
        return again or view.leader == self._knowledge.member


def _me(knowledge: MemberState) -> MemberNode:
    return MemberNode(socket.gethostname(), os.getpid(), knowledge.owned)


class _Watches:
    """The watches of one session; each that fires wakes the member."""

    def __init__(self, nodes: BarrierStateStore, wake: Callable[[], None]) -> None:
        self._nodes = nodes
        self._wake = wake
        self._set = set[str]()
        self._lock = threading.Lock()

    def __contains__(self, path: str) -> bool:
        with self._lock:
            return path in self._set

    def follow(self, nodes: Collection[str], parents: Collection[str]) -> bool:
        """Watches those nodes that are not watched yet; returns whether one of ``parents`` was among them, since its
        children may have changed. Raises `ServerError` if a directory has been deleted."""
        with self._lock:
            nodes = [path for path in nodes if path not in self._set]
            parents = [path for path in parents if path not in self._set]
            self._set.update(nodes, parents)
        missing = self._nodes.watch(nodes, parents, self._fired) if nodes or parents else []
        with self._lock:
            self._set.difference_update(missing)
        if gone := [path for path in missing if path in parents]:
            raise ServerError(f"ZooKeeper node {self._nodes.full(gone[0])}", "was deleted while members were at work")
        return bool(parents)

    def _fired(self, path: str) -> None:
        with self._lock:
            self._set.discard(path)
        self._wake()
