"""`OffsetWatcher`: which groups' offsets have changed, told by watches.

Every offset node, and every directory above it, carries one watch. A watch that fires marks its group; the mark is
handed out only after the watch stands again, and the reader reads after that, so no change falls between the two.
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
"""How long further changes are gathered after the first one: a commit of a group touches many nodes."""


class OffsetWatcher:
    """Tells which groups of ``/consumers`` may have changed (0.8 layout). Not for use by several threads.

    ``wants`` says which groups are of interest. A group's mark also tells that its live members may have changed. The
    first `wait` returns None: everything may have changed; so does one after the list of groups itself changed, and
    the first after one that failed.
    """

    def __init__(self, session: ZookeeperSession, wants: Callable[[str], bool]) -> None:
        self._session = session
        self._wants = wants
        self._lock = threading.Lock()
        self._fired: set[str] = set()
        self._wake = threading.Event()
        self._watched: set[str] = set()
        self._complete = False
        """Whether every watch stands that should."""

    def wait(self, timeout_s: float) -> set[str] | None:
        """Groups that may have changed since the last call; none where nothing happened within the timeout, None where
        any group may have changed. Raises as `ZookeeperSession`."""
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
        """What has fired, watched again."""
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
        """Sets the watches of groups that do not stand: directories from the top down, then the offsets."""
        names = list(groups)
        offsets = [paths.offsets(group) for group in names]
        self._arm((), [*(paths.group(group) for group in names), *map(paths.ids, names), *offsets])
        topics = list(self._children(offsets))
        self._arm((), topics)
        self._arm(list(self._children(topics)), ())

    def _children(self, parents: Sequence[str]) -> Iterator[str]:
        """Paths of the children of many nodes; those of nodes that have gone are left out."""
        for parent, names in zip(parents, self._session.children_many(parents), strict=True):
            if isinstance(names, OffsetMgrError):
                raise names
            yield from (f"{parent}/{name}" for name in names or ())

    def _arm(self, nodes: Sequence[str], parents: Sequence[str]) -> None:
        nodes = [path for path in nodes if path not in self._watched]
        parents = [path for path in parents if path not in self._watched]
        missing = set(self._session.watch_many(nodes, parents, self._on_change))
        self._watched |= {*nodes, *parents} - missing
