"""`ModeListener`: the member's side of a live migration. It follows the storage modes of groups and acknowledges them.

Ordering contract for each group: code that works with the offsets runs within `using`, which is entered only while no
switch is in progress and the session's lease is valid. When a switch begins, the listener waits until no code is within
`using`, flushes the second store, and only then acknowledges; nothing enters again before the switch has ended. So
between the last acknowledgement and the end of the switch no member commits or fetches.

If the switching process dies, the members end the switch and return to the previous mode.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError, SessionExpired, SwitchInProgress, Unreachable
from offsetmgr.stores.switched.nodes import NodeState, SwitchStateStore
from offsetmgr.stores.switched.records import FollowerNode, StorageModeNode
from offsetmgr.zookeeper.client.session import ZookeeperSession

_LOG: Final = logging.getLogger("offsetmgr.migration.live")
_TRIES: Final = 8
_LOOK_S: Final = 0.05
_AGAIN_S: Final = 0.2
"""Seconds before a retry."""
_LONGEST_END_S: Final = 3.0
"""Seconds to wait for the thread: it may be waiting for a server, and can do no harm then."""


class SessionLeaseProtocol(Protocol):
    """The methods of a `SessionLease` that this module uses."""

    @property
    def expired(self) -> bool: ...

    def valid(self) -> bool: ...


class _Group:
    """One group: ``seen`` is the mode in use, ``acknowledged`` the acknowledged one. This compares more than its
    version, because the node may have been deleted, with the member's own, and recreated."""

    def __init__(self, nodes: SwitchStateStore, seen: NodeState) -> None:
        self.nodes = nodes
        self.seen: NodeState | None = seen
        self.acknowledged = seen


class ModeListener:
    """Follows groups in one session, in its own thread from `begin` to `end`. Thread-safe.

    ``flush`` writes what a group's second store lacks, and returns whether nothing is left. ``start`` is the mode of a
    group without one: the first member declares it. ``wait_s`` is how long `using` waits.
    """

    def __init__(
        self,
        session: ZookeeperSession,
        lease: SessionLeaseProtocol,
        name: str,
        *,
        start: CommitMode | None,
        flush: Callable[[str], bool],
        wait_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._session = session
        self._lease = lease
        self._start = start
        self._flush = flush
        self._wait_s = wait_s
        self._clock = clock or SystemClock()
        self._inside = threading.Condition()
        self._groups: dict[str, _Group] = {}
        self._marking = threading.Lock()
        self._marked: set[str] = set()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offsetmgr-switch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stops following; the member's nodes disappear with its session."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_LONGEST_END_S)

    def follows(self, group: str) -> bool:
        return group in self._groups

    def follow(self, group: str) -> None:
        """Joins the group's switch. Raises `GroupNotFound` if no mode was declared, and the errors of the session."""
        with self._inside:
            if group not in self._groups:
                self._groups[group] = self._join(SwitchStateStore(self._session, group))
                self._mark(group)

    @contextmanager
    def using(self, group: str) -> Iterator[CommitMode]:
        """Yields the group's mode, which does not change within the block.

        Raises `SwitchInProgress` if a switch (or an expired lease) lasts too long, `SessionExpired`, and the errors of
        `follow`.
        """
        deadline = self._clock.monotonic() + self._wait_s
        with self._inside:
            while True:
                if self._ended.is_set():
                    raise Unreachable(f"offsets of group {group}", "the store has been closed")
                if self._lease.expired:
                    raise SessionExpired(f"offsets of group {group}", "the member's ZooKeeper session has expired")
                self.follow(group)
                seen = self._groups[group].seen
                if seen is not None and seen.storage.turning is None and self._lease.valid():
                    break
                if (left := deadline - self._clock.monotonic()) <= 0:
                    raise self._in_vain(group, seen)
                self._inside.wait(min(left, _LOOK_S))
            yield seen.storage.mode

    def _in_vain(self, group: str, seen: NodeState | None) -> SwitchInProgress:
        if seen is None:
            why = "the node with the storage mode is gone"
        elif seen.storage.turning is not None:
            why = f"a switch to {seen.storage.turning.value}, by {seen.storage.who}, has not ended"
        else:
            why = "the member's ZooKeeper session may be over"
        return SwitchInProgress(f"offsets of group {group}", f"{why} within {self._wait_s:g} s")

    # --- acknowledgements ----------------------------------------------------------------------------

    def _node(self, seen: NodeState) -> FollowerNode:
        return FollowerNode(seen.storage.epoch, socket.gethostname(), os.getpid())

    def _join(self, nodes: SwitchStateStore) -> _Group:
        def changed(_: str) -> None:
            self._mark(nodes.group)

        for _ in range(_TRIES):
            seen = nodes.read(changed)
            if seen is None:
                if self._start is None:
                    raise GroupNotFound(
                        f"switch of group {nodes.group}",
                        "its storage mode is not declared",
                        "declare it once: offsetmgr migrate switch --declare --to MODE, or start=MODE in the "
                        "store's URI",
                    )
                nodes.declare(StorageModeNode(self._start, 1, f"member {self.name}", self._clock.now_ms()))
            elif nodes.acknowledge(self.name, self._node(seen), seen.version):
                return _Group(nodes, seen)
        raise Conflict(f"switch of group {nodes.group}", "it changes all the time", "try again when it is quiet")

    def _mark(self, group: str) -> None:
        with self._marking:
            self._marked.add(group)
        self._wake.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._marking:
                marked, self._marked = self._marked, set()
            late = False
            for group in marked & self._groups.keys():  # a member that is joining marks itself again
                try:
                    settled = self._look(self._groups[group])
                except SessionExpired:
                    return
                except OffsetMgrError as error:
                    _LOG.warning("switch of group %s: %s; trying again", group, error)
                    settled = False
                if not settled:
                    late = True
                    with self._marking:
                        self._marked.add(group)
            if late and not self._ended.wait(_AGAIN_S):
                self._wake.set()

    def _look(self, one: _Group) -> bool:
        """Adopts the mode of the node and acknowledges it. Returns False if it has to be read again soon."""

        def changed(_: str) -> None:
            self._mark(one.nodes.group)

        # During the read other code may be within `using`; after it nothing enters until the mode is known.
        seen = one.nodes.read(changed)
        with self._inside:
            one.seen = seen
            self._inside.notify_all()
            if seen is None:
                _LOG.error("group %s: its storage mode is no longer declared", one.nodes.group)
                return False
            if one.acknowledged != seen:
                if seen.storage.turning is not None and not self._flush(one.nodes.group):
                    return False
                if not one.nodes.acknowledge(self.name, self._node(seen), seen.version):
                    return False
                one.acknowledged = seen
        if seen.storage.turning is not None and one.nodes.switcher(changed) is None:
            self._give_back(one.nodes, seen)
            return False
        return True

    def _give_back(self, nodes: SwitchStateStore, seen: NodeState) -> None:
        who = f"member {self.name}: the process that was switching is gone"
        if nodes.give_back(seen, back(seen.storage, who, self._clock.now_ms())):
            _LOG.warning("group %s: back to %s, %s", nodes.group, seen.storage.mode.value, who)


def back(storage: StorageModeNode, who: str, now_ms: int) -> StorageModeNode:
    """Returns the node after a switch that was abandoned."""
    return replace(storage, epoch=storage.epoch + 1, who=who, when_ms=now_ms, turning=None)
