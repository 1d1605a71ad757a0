"""Stores in memory with the URIs ``memory:NAME``, which commands and the library open like any other store, and the
logs of a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from offsetmgr.app.connections import Connections
from offsetmgr.core import register_scheme
from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.model import GroupDescription, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, UnrecognisedData
from offsetmgr.stores.uri import Scheme, StoreUri
from offsetmgr.testing.memory import MemoryStore

STORES: Final[dict[str, MemoryStore]] = {}
"""The store that each name opens."""

SCHEME: Final = Scheme(
    frozenset(),
    parse=lambda _shown, name, _options: StoreUri("memory", name),
    open=lambda uri, _config: STORES[uri.removeprefix("memory:")],
)

register_scheme("memory", f"{__name__}:SCHEME")


def in_memory(**stores: MemoryStore) -> None:
    """Makes ``memory:NAME`` the URI of each store, in place of the stores of earlier tests."""
    STORES.clear()
    STORES.update(stores)


@dataclass
class StoreWithTopicIds(MemoryStore):
    """A store whose topics have this id; another id means that they were recreated."""

    topic_id: str = "before"

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return dict.fromkeys(topics or ("orders",), self.topic_id)


class HidingStore(MemoryStore):
    """A store with data of each group that offsetmgr does not understand, and that may be offsets."""

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        for found in super().scan(groups):
            hidden = CorruptData(f"group {found.name!r}", "its offsets may be incomplete")
            yield replace(found, hidden=hidden, unrecognised=(UnrecognisedData("/consumers/g/x", "holds '7'"),))


@dataclass
class LockableMemoryStore(MemoryStore):
    """A store whose groups a mirror and a refresh lock, unless the lock of a group fails (``unlockable``). Its topics
    were created at second 5. ``refreshed`` has the partitions that were committed again."""

    has_topic_creation_times = True
    unlockable: dict[str, OffsetMgrError] = field(default_factory=dict)
    refreshed: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def topic_creation_times(self, topics: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 5000)

    def lock_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, Any]]:
        return (
            (group, self.unlockable.get(group) or SimpleNamespace(group=group, lost=None, replaced=False))
            for group in groups
        )

    def refresh_locked(self, held: Iterable[Any], leave_out: Mapping[str, Any]) -> Iterator[tuple[str, None]]:
        for lock in held:
            self.refreshed[lock.group] = {*self.data[lock.group]}.difference(leave_out.get(lock.group, ()))
            yield lock.group, None

    def commit_locked(self, _commits: Iterable[Any]) -> tuple[()]:
        return ()

    release_locks = commit_locked


LOGS: Final = "in-memory:9092"
"""The bootstrap server of the cluster of `logs_in_memory`."""


@dataclass
class OneLog:
    """A cluster whose partitions all have one log range."""

    log: LogRange | OffsetMgrError
    id: str = "one-log"
    requested: list[TopicPartition] = field(default_factory=list)

    def cluster_id(self) -> str:
        return self.id

    def brokers(self) -> frozenset[str]:
        return frozenset({LOGS})

    def topics(self, names: Iterable[str] | None = None) -> dict[str, int]:
        return dict.fromkeys(names or (), 8)

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        new = list(partitions)
        self.requested += new
        return dict.fromkeys(new, self.log)

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return {group: GroupDescription(group, "EMPTY") for group in groups}


@contextmanager
def logs_in_memory(cluster: Any) -> Iterator[None]:
    """The bootstrap server `LOGS` belongs to this cluster."""
    with patch.object(Connections, "cluster_at", lambda *_: cluster):
        yield
