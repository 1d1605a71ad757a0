"""`MemberThread`: the thread of one member that communicates with ZooKeeper. If the ZooKeeper session ends, the thread
opens a new session.

The thread registers the member, follows the open period and writes reports. The thread of the oldest member also runs
the leader's rounds. The thread reads the nodes again after a watch has fired or the caller has made a report. The
thread does not poll, with one exception: the leader's thread checks periodically for idle partitions.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import CallbackFailed, Conflict, OffsetMgrError, ServerError, SessionExpired
from offsetmgr.period.leader import LeaderRound
from offsetmgr.period.leader_decision import Leader
from offsetmgr.period.member_state import MemberState
from offsetmgr.period.records import MemberNode
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_member import SessionLease, SessionMember
from offsetmgr.zookeeper.client.watches import Watches

_RETRY_S: Final = 0.5
"""Seconds between the end of a session and the start of the next session."""
_STOP_TIMEOUTS_S: Final = (0.5, 3.0)
"""`MemberThread.stop` waits for the end of the thread for at most the first number of seconds, then closes the session,
and then waits for at most the second number of seconds."""


class MemberThread(SessionMember):
    """The thread of one member. It performs no I/O before `start`."""

    _log = logging.getLogger("offsetmgr.period")

    def __init__(
        self,
        zookeeper: str,
        config: ConnectionConfig | None,
        timeout_ms: int,
        state: MemberState,
        leader_round: LeaderRound,
    ) -> None:
        super().__init__(f"period member {state.member}", zookeeper, config, timeout_ms)
        self._state = state
        self._leader_round = leader_round
        self.connected = False
        """Whether ZooKeeper has ever responded."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Returns within a few seconds, even if a server or a caller's function blocks."""
        if not self._stop(_STOP_TIMEOUTS_S[0]) and self._session is not None:
            self._session.close()  # ends waiting requests and the member's registration
            self._stop(_STOP_TIMEOUTS_S[1])
        self._state.end(None)

    def _on_error(self, error: OffsetMgrError) -> float:
        if isinstance(error, SessionExpired) or self._stopping.is_set():  # `stop` may have closed the session
            return _RETRY_S
        if error.retriable or isinstance(error, Conflict):
            self._state.set_error(error)
        else:
            self._stopping.set()
            self._state.end(error)
        return _RETRY_S

    def _on_session_end(self) -> None:
        self._state.invalidate_session()

    def _on_crash(self, error: BaseException) -> None:
        self._state.end(CallbackFailed(f"member {self._state.member}", f"{type(error).__name__}: {error}"))

    def _run_session(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """Runs one session from its beginning to its end."""
        state = self._state
        self.connected = True
        nodes = BarrierStateStore(session, state.root)
        nodes.prepare()
        own_node = _member_node(state)
        epoch = nodes.register(state.member, own_node)
        state.set_registered(epoch, lease.valid)
        watches = Watches(session, lambda _path: self._wake.set())
        view: BarrierView | None = None
        while not self._stopping.is_set():
            self._require_session(lease)
            self._wake.clear()
            if state.owned != own_node.owned and nodes.update_member(state.member, changed := _member_node(state)):
                own_node = changed
            leads = view is not None and view.leader == state.member
            # Watches are set before their nodes are read. The root is watched while no period is open, because the node
            # of the open period does not exist yet.
            parents = [nodes.members_path, *([nodes.root] if state.open is None else ())]
            again = _watch(watches, session, [nodes.open_path], [*parents, *([nodes.progress_path] if leads else ())])
            if view is not None and leads:
                again |= _watch(watches, session, [f"{nodes.progress_path}/{name}" for name in view.seen.progress], ())
            if again or leads or view is None or state.needs_full_read():
                view = nodes.read()
                again = self._process(nodes, view, epoch, own_node)
                if view.leader == state.member:
                    again |= not leads or self._leader_round.step(nodes, view, Leader(state.member, epoch))
                    again |= any(f"{nodes.progress_path}/{name}" not in watches for name in view.seen.progress)
            else:
                again = state.set_open(*nodes.read_open())
            if not again:
                leads = view.leader == state.member
                self._wake.wait(self._leader_round.next_check_in_s(view) if leads else None)

    def _process(self, nodes: BarrierStateStore, view: BarrierView, epoch: int, own_node: MemberNode) -> bool:
        """Updates the member's state from ``view``, and writes the member's progress node if the node is not up to
        date. Returns whether the nodes must be read again. Raises `Conflict` if a later process has registered this
        member's name."""
        own = view.seen.progress.get(self._state.member)
        if own is not None and own.epoch > epoch:
            raise Conflict(f"member {self._state.member}", "another process has registered this name and replaced it")
        self._state.set_finished(view.seen.finished(), own_node.owned)
        again = self._state.set_open(view.seen.open_, view.seen.partitions) or own_node.owned != self._state.owned
        report = self._state.unwritten(own, epoch)
        if report is None:
            return again
        if not nodes.report(report, view.progress_versions.get(self._state.member)):
            return True
        self._state.set_written(report)
        return again or view.leader == self._state.member


def _member_node(state: MemberState) -> MemberNode:
    return MemberNode(socket.gethostname(), os.getpid(), state.owned)


def _watch(watches: Watches, session: ZookeeperSession, nodes: Iterable[str], parents: Iterable[str]) -> bool:
    """Sets watches on ``nodes``, and on the children of ``parents``. Returns True if it set a watch on a parent. The
    children of that parent may have changed before the watch was set, so the caller must read the nodes again. Raises
    `ServerError` if a parent was deleted."""
    added = watches.add(nodes, parents)
    if gone := added.missing.intersection(added.parents):
        raise ServerError(f"ZooKeeper node {session.chroot}{min(gone)}", "was deleted while members were running")
    return bool(added.parents)
