"""`Watches`: the watches of one session. Each path is watched once until its watch fires."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from offsetmgr.zookeeper.client.session import ZookeeperSession


class NewWatches(NamedTuple):
    """The paths that had no watch, and those of them that still have none because the node does not exist."""

    nodes: list[str]
    parents: list[str]
    missing: set[str]


class Watches:
    """Watches nodes, and the children of parents. ``on_fired`` is called with the path of each watch that fires, on a
    thread of the session."""

    def __init__(self, session: ZookeeperSession, on_fired: Callable[[str], object]) -> None:
        self._session = session
        self._on_fired = on_fired
        self._set = set[str]()
        self._lock = threading.Lock()

    def __contains__(self, path: str) -> bool:
        with self._lock:
            return path in self._set

    def add(self, nodes: Iterable[str], parents: Iterable[str], *, await_parents: bool = False) -> NewWatches:
        """Sets watches on the paths without a watch. With ``await_parents``, the watch of a parent that does not exist
        fires when the parent is created. Raises the errors of the session."""
        with self._lock:
            new = [path for path in nodes if path not in self._set]
            new_parents = [path for path in parents if path not in self._set]
            self._set.update(new, new_parents)
        missing = {*new, *new_parents}
        try:
            if missing:
                missing = set(self._session.watch_many(new, new_parents, self._fired))
            for path in missing.intersection(new_parents) if await_parents else ():
                self._session.watch_children(path, self._fired)
                missing.discard(path)
        finally:
            with self._lock:
                self._set -= missing
        return NewWatches(new, new_parents, missing)

    def _fired(self, path: str) -> None:
        with self._lock:
            self._set.discard(path)
        self._on_fired(path)
