"""`OffsetWatcher`: uses ZooKeeper watches to report the groups whose offsets may have changed.

The watcher sets one watch on each offset node and on each directory above it. When a watch fires, the watcher first
sets the watch again and then reports the group. If the caller reads a group after the watcher has reported it, the
caller misses no change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from offsetmgr.core.errors import value_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.watches import Watches
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.offsets.group_nodes import SINGULAR

_DEBOUNCE_S: Final = 0.02
"""How long the watcher waits for further changes after a change. It waits because a group's commit writes many
nodes."""


class OffsetWatcher:
    """Reports the groups of ``/consumers`` that may have changed (0.8 layout). Instances are not thread-safe.

    ``selects`` returns True for the groups to watch. A group is also reported if its live members have changed. `wait`
    returns None if all groups may have changed. This is the case on the first call, after a change of the list of
    groups, and on the first call after a failed call.
    """

    def __init__(self, session: ZookeeperSession, selects: Callable[[str], bool]) -> None:
        self._session = session
        self._selects = selects
        self._lock = threading.Lock()
        self._fired_paths: set[str] = set()
        self._wake = threading.Event()
        self._watches = Watches(session, self._on_change)
        self._all_watched = False
        """Whether all watches are set."""

    def wait(self, timeout_s: float) -> set[str] | None:
        """Waits for a change and returns the groups that may have changed since the last call.

        Returns an empty set if nothing changed within the timeout, and None if all groups may have changed. Raises as
        `ZookeeperSession`.
        """
        if not self._all_watched:
            self._take_fired()
            self._watch_everything()
            self._all_watched = paths.CONSUMERS in self._watches
            if self._all_watched:
                return None
        if not self._wake.wait(timeout_s):
            return set()
        self._all_watched = False
        time.sleep(_DEBOUNCE_S)
        fired = self._take_fired()
        groups = None if paths.CONSUMERS in fired else {path.split("/")[2] for path in fired}
        if groups is None:
            self._watch_everything()
        else:
            self._watch_groups(groups)
        self._all_watched = True
        return groups

    def _take_fired(self) -> set[str]:
        """Returns the paths whose watches have fired since the last call."""
        with self._lock:
            fired, self._fired_paths = self._fired_paths, set()
            self._wake.clear()
        return fired

    def _on_change(self, path: str) -> None:
        with self._lock:
            self._fired_paths.add(path)
        self._wake.set()

    def _watch_everything(self) -> None:
        self._watches.add((), (paths.CONSUMERS,))
        self._watch_groups(group for group in self._session.children(paths.CONSUMERS) or () if self._selects(group))

    def _watch_groups(self, groups: Iterable[str]) -> None:
        """Sets the missing watches of these groups. Sets watches on directories before watches on their children."""
        names = list(groups)
        offsets = [f"{paths.group(group)}/{directory}" for group in names for directory in ("offsets", SINGULAR)]
        self._watches.add((), [*(paths.group(group) for group in names), *map(paths.ids, names), *offsets])
        topics = list(self._children(offsets))
        self._watches.add((), topics)
        self._watches.add(list(self._children(topics)), ())

    def _children(self, parents: Sequence[str]) -> Iterator[str]:
        """Yields the paths of the children of these nodes. Skips nodes that have been deleted."""
        for parent, names in zip(parents, self._session.children_many(parents), strict=True):
            yield from (f"{parent}/{name}" for name in value_of(names) or ())
