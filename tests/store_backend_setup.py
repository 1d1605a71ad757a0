"""In-memory stores behind the listener, and requests to them, for the tests of `StoreBackend`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.results import CommitRequest, FetchRequest
from offsetmgr.server.store_backends.store_backend import StoreBackend
from offsetmgr.stores.dual import DualStore
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

HERE = NodeAddress(1, "127.0.0.1", 9192)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class SlowStore(MemoryStore):
    """Waits in each stream of edits until ``go`` is set, and records the streams."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.streams: list[list[GroupEdit]] = []

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        taken = list(edits)
        self.streams.append(taken)
        assert self.go.wait(60)
        return super().edit(taken)


@asynccontextmanager
async def running(store: Any, **options: Any) -> AsyncIterator[StoreBackend]:
    # The backend waits long for the second store, in case the machine is busy; a test of the wait sets the option.
    backend = StoreBackend(store, HERE, **{"secondary_wait_s": 20.0, **options})
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close(grace_s=0.2)


def commit(group: str, offset: int, *partitions: TopicPartition, metadata: str = "", **more: Any) -> CommitRequest:
    rows = [(tp.partition, offset, -1, metadata) for tp in partitions or (A,)]
    return CommitRequest(group, [("t", rows)], **more)


def fetch(group: str, *partitions: int) -> FetchRequest:
    return FetchRequest(group, [("t", list(partitions))] if partitions else None)


async def until(condition: Any, what: str) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"timed out while waiting for {what}")


def dual(first: Any = None, second: Any = None) -> tuple[FaultyStore, FaultyStore, DualStore]:
    primary, secondary = FaultyStore(first or MemoryStore("first")), FaultyStore(second or MemoryStore("second"))
    return primary, secondary, DualStore(primary, secondary)


def offsets_in(store: FaultyStore, group: str = "g") -> dict[TopicPartition, int]:
    assert isinstance(store.store, MemoryStore)
    return {tp: found.offset for tp, found in store.store.data.get(group, {}).items()}
