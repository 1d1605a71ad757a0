"""`OffsetWatcher`: reports through watches which groups' offsets have changed.

Every offset node, and every directory above it, has one watch. A watch that fires marks its group. The mark is reported
only after the watch has been set again, and the caller reads after that, so no change is missed in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths

_DEBOUNCE_S: Final = 0.02
"""Time during which further changes are gathered after the first one: a group's commit touches many nodes."""


class OffsetWatcher:
    """Reports the groups of ``/consumers`` that may have changed (0.8 layout). Instances are not thread-safe.

    ``wants`` selects the groups. A reported group's live members may have changed too. `wait` returns None, which means
    that everything may have changed, at its first call, after a change of the list of groups, and at the first call
    after a failed one.
    """

    def __init__(self, session: ZookeeperSession, wants: Callable[[str], bool]) -> None:
        self._session = session
        self._wants = wants
        self._lock = threading.Lock()
        self._fired: set[str] = set()
        self._wake = threading.Event()
        self._watched: set[str] = set()
        self._complete = False
        """Whether all watches are set."""

    def wait(self, timeout_s: float) -> set[str] | None:
        """Returns the groups that may have changed since the last call: empty if nothing happened within the timeout,
        None if any group may have changed. Raises as `ZookeeperSession`."""
        if not self._complete:
            with self._lock:
                fired, self._fired = self._fired, set()
                self._wake.clear()
            self._watched -= fired
            self._watch_everything()
            self._complete = bool(self._watched)
            if self._complete:
                return None
        if not self._wake.wait(timeout_s):
            return set()
        self._complete = False
        groups = self._gather()
        self._complete = True
        return groups

    def _gather(self) -> set[str] | None:
        """Collects the fired watches and sets them again."""
        time.sleep(_DEBOUNCE_S)
        with self._lock:
            fired, self._fired = self._fired, set()
            self._wake.clear()
        self._watched -= fired
        if paths.CONSUMERS in fired:
            self._watch_everything()
            return None
        groups = {path.split("/")[2] for path in fired}
        self._watch_groups(groups)
        return groups

    def _on_change(self, path: str) -> None:
        with self._lock:
            self._fired.add(path)
        self._wake.set()

    def _watch_everything(self) -> None:
        self._arm((), (paths.CONSUMERS,))
        self._watch_groups(group for group in self._session.children(paths.CONSUMERS) or () if self._wants(group))

    def _watch_groups(self, groups: Iterable[str]) -> None:
        """Sets the missing watches of groups: directories from the top down, then the offsets."""
        names = list(groups)
        offsets = [paths.offsets(group) for group in names]
        self._arm((), [*(paths.group(group) for group in names), *map(paths.ids, names), *offsets])
        topics = list(self._children(offsets))
        self._arm((), topics)
        self._arm(list(self._children(topics)), ())

    def _children(self, parents: Sequence[str]) -> Iterator[str]:
        """Paths of the children of many nodes; those of deleted nodes are left out."""
        for parent, names in zip(parents, self._session.children_many(parents), strict=True):
            if isinstance(names, OffsetMgrError):
                raise names
            yield from (f"{parent}/{name}" for name in names or ())

    def _arm(self, nodes: Sequence[str], parents: Sequence[str]) -> None:
        nodes = [path for path in nodes if path not in self._watched]
        parents = [path for path in parents if path not in self._watched]
        missing = set(self._session.watch_many(nodes, parents, self._on_change))
        self._watched |= {*nodes, *parents} - missing
