"""`ModeListener`: runs in a member, follows the storage modes of the member's groups, and acknowledges each change.

Ordering contract for each group: code that commits or fetches runs within `ModeListener.using`. Code enters `using`
only while no switch is in progress and the session's lease is valid. When a switch begins, the listener waits until no
code is within `using`, writes all pending changes to the secondary store, and only then acknowledges. No code can enter
`using` again before the switch has ended. So no member commits or fetches between the last acknowledgement and the end
of the switch.

If the process that is switching the group dies, the members end the switch and return to the previous mode.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError, SessionExpired, SwitchInProgress, Unreachable
from offsetmgr.stores.switched.nodes import NodeState, SwitchStateStore
from offsetmgr.stores.switched.records import FollowerNode, StorageModeNode
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLeaseProtocol

_LOG: Final = logging.getLogger("offsetmgr.migration.live")
_MAX_JOIN_ATTEMPTS: Final = 8
_RECHECK_S: Final = 0.05
"""Seconds between two checks of the lease while `ModeListener.using` waits."""
_RETRY_S: Final = 0.2
"""Seconds before a failed read or acknowledgement is retried."""
_MAX_STOP_S: Final = 3.0
"""Maximum time in seconds for which `ModeListener.stop` waits for the thread, which may be waiting for a server."""


class _Group:
    """One group: ``seen`` is the last state that was read, ``acknowledged`` is the last state that was acknowledged.

    The listener compares whole states and not only versions, because the node may have been deleted together with the
    member's node and then recreated.
    """

    def __init__(self, nodes: SwitchStateStore, seen: NodeState) -> None:
        self.nodes = nodes
        self.seen: NodeState | None = seen
        self.acknowledged = seen


class ModeListener:
    """Follows groups in one session, in its own thread from `start` to `stop`. Thread-safe.

    ``flush`` writes a group's pending changes to the secondary store and returns True if no pending change is left.
    ``initial_mode`` is the mode that the first member declares for a group without a declared mode. ``wait_s`` is the
    maximum time in seconds for which `using` waits.
    """

    def __init__(
        self,
        session: ZookeeperSession,
        lease: SessionLeaseProtocol,
        name: str,
        *,
        initial_mode: CommitMode | None,
        flush: Callable[[str], bool],
        wait_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._session = session
        self._lease = lease
        self._initial_mode = initial_mode
        self._flush = flush
        self._wait_s = wait_s
        self._clock = clock or SystemClock()
        self._condition = threading.Condition()
        self._groups: dict[str, _Group] = {}
        self._queue_lock = threading.Lock()
        self._groups_to_read: set[str] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offsetmgr-switch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread. The member's nodes stay until its session ends."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_MAX_STOP_S)

    def follows(self, group: str) -> bool:
        return group in self._groups

    def follow(self, group: str) -> None:
        """Registers this member in the group, so that a switch of the group waits for this member's acknowledgement.

        Raises `GroupNotFound` if no mode was declared, and the errors of the session.
        """
        with self._condition:
            if group not in self._groups:
                self._groups[group] = self._join(SwitchStateStore(self._session, group))
                self._schedule_read(group)

    @contextmanager
    def using(self, group: str) -> Iterator[CommitMode]:
        """Yields the group's mode, which does not change within the block. Waits while a switch is in progress.

        Raises `SwitchInProgress` if the switch has not ended, or the lease has not become valid, after ``wait_s``
        seconds. Also raises `SessionExpired` and the errors of `follow`.
        """
        deadline = self._clock.monotonic() + self._wait_s
        with self._condition:
            while True:
                if self._stopped.is_set():
                    raise Unreachable(f"offsets of group {group}", "the store has been closed")
                if self._lease.expired:
                    raise SessionExpired(f"offsets of group {group}", "the member's ZooKeeper session has expired")
                self.follow(group)
                seen = self._groups[group].seen
                if seen is not None and seen.storage.switching_to is None and self._lease.valid():
                    break
                if (left := deadline - self._clock.monotonic()) <= 0:
                    raise self._timeout_error(group, seen)
                self._condition.wait(min(left, _RECHECK_S))
            yield seen.storage.mode

    def _timeout_error(self, group: str, seen: NodeState | None) -> SwitchInProgress:
        if seen is None:
            why = "the znode with the storage mode was deleted, and not recreated"
        elif seen.storage.switching_to is not None:
            why = f"a switch to {seen.storage.switching_to.value}, by {seen.storage.who}, has not ended"
        else:
            why = "the lease of the member's ZooKeeper session did not become valid"
        return SwitchInProgress(f"offsets of group {group}", f"{why} within {self._wait_s:g} s")

    # --- acknowledgements ----------------------------------------------------------------------------

    def _node(self, seen: NodeState) -> FollowerNode:
        return FollowerNode(seen.storage.epoch, socket.gethostname(), os.getpid())

    def _join(self, nodes: SwitchStateStore) -> _Group:
        def changed(_: str) -> None:
            self._schedule_read(nodes.group)

        for _ in range(_MAX_JOIN_ATTEMPTS):
            seen = nodes.read(changed)
            if seen is None:
                if self._initial_mode is None:
                    raise GroupNotFound(
                        f"switch of group {nodes.group}",
                        "its storage mode is not declared",
                        "declare it once: offsetmgr migrate switch --declare --to MODE, or start=MODE in the "
                        "store's URI",
                    )
                nodes.declare(StorageModeNode(self._initial_mode, 1, f"member {self.name}", self._clock.now_ms()))
            elif nodes.acknowledge(self.name, self._node(seen), seen.version):
                return _Group(nodes, seen)
        raise Conflict(
            f"switch of group {nodes.group}", "its storage mode changed during every attempt to join", "try again later"
        )

    def _schedule_read(self, group: str) -> None:
        with self._queue_lock:
            self._groups_to_read.add(group)
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._queue_lock:
                to_read, self._groups_to_read = self._groups_to_read, set()
            retry = False
            for group in to_read & self._groups.keys():  # `follow` schedules a read of a new group itself
                try:
                    up_to_date = self._refresh(self._groups[group])
                except SessionExpired:
                    return
                except OffsetMgrError as error:
                    _LOG.warning("switch of group %s: %s; trying again", group, error)
                    up_to_date = False
                if not up_to_date:
                    retry = True
                    with self._queue_lock:
                        self._groups_to_read.add(group)
            if retry and not self._stopped.wait(_RETRY_S):
                self._wake.set()

    def _refresh(self, one: _Group) -> bool:
        """Reads the group's mode, adopts it and acknowledges it. Returns False if the mode must be read again soon."""

        def changed(_: str) -> None:
            self._schedule_read(one.nodes.group)

        # Other threads may be within `using` while this call reads the mode. The lock below waits until they have left
        # `using`, and keeps them out until the mode has been acknowledged.
        seen = one.nodes.read(changed)
        with self._condition:
            one.seen = seen
            self._condition.notify_all()
            if seen is None:
                _LOG.error(
                    "group %s: the znode of its storage mode was deleted; commits wait until a mode is declared",
                    one.nodes.group,
                )
                return False
            if one.acknowledged != seen:
                if seen.storage.switching_to is not None and not self._flush(one.nodes.group):
                    return False
                if not one.nodes.acknowledge(self.name, self._node(seen), seen.version):
                    return False
                one.acknowledged = seen
        if seen.storage.switching_to is not None and one.nodes.switcher(changed) is None:
            self._abandon_switch(one.nodes, seen)
            return False
        return True

    def _abandon_switch(self, nodes: SwitchStateStore, seen: NodeState) -> None:
        who = f"member {self.name}: the process that was switching the group has died"
        if nodes.abandon_switch(seen, mode_after_abandoned_switch(seen.storage, who, self._clock.now_ms())):
            _LOG.warning(
                "group %s: switch abandoned, mode %s applies again: %s", nodes.group, seen.storage.mode.value, who
            )


def mode_after_abandoned_switch(storage: StorageModeNode, who: str, now_ms: int) -> StorageModeNode:
    """Returns the content of ``storage`` after an abandoned switch: the previous mode, in a new epoch."""
    return replace(storage, epoch=storage.epoch + 1, who=who, when_ms=now_ms, switching_to=None)
