"""`SingleStoreBackend`: one store behind the listener. `DualStoreBackend` has the same interface for two stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, PartialFailure
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import Change, GroupOffsets, OffsetStore
from offsetmgr.server.storefront.store_calls import Outcomes
from offsetmgr.server.storefront.store_executor import StoreExecutor, StoreWrite

_log = logging.getLogger(__name__)


class SingleStoreBackend:
    """Used on the event loop; create it there. Failures of reads and writes are in their results."""

    def __init__(self, store: OffsetStore) -> None:
        self.threads = StoreExecutor(store, written=self._written)
        """The store that commits go to (first)."""

    @property
    def compares(self) -> bool:
        """Whether conditional commits are atomic. (Kafka's group lock is, but every commit would pay for it.)"""
        return self.threads.capabilities.conditional in ("version", "file")

    @property
    def names_groups(self) -> bool:
        """Whether the deletion of an offset reports that the group does not exist."""
        return True

    def trouble(self) -> str | None:
        """See `StoreHealth.trouble`."""
        return self.threads.health.trouble()

    def start(self, look_every: float, wait_s: float) -> None:
        """Starts the background tasks; see `StoreHealth.watch`."""
        self.threads.watch(look_every, wait_s)

    async def read_capabilities(self) -> None:
        """Determines what the store can hold, and logs once what it cannot."""
        await learn(self.threads)

    def write(self, write: StoreWrite) -> None:
        self.threads.write(write)

    async def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> GroupOffsets:
        return await asyncio.shield(self.threads.read(group, partitions))

    async def groups(self) -> list[str]:
        """Raises `OffsetMgrError`."""
        return await self.threads.call(partial(listed, self.threads.store))

    async def delete_group(self, group: str) -> int:
        """Runs after all earlier writes; returns 0 or GROUP_ID_NOT_FOUND. Raises `OffsetMgrError`."""
        await self.threads.settled(group)
        return await self.threads.call(partial(delete_whole, self.threads.store, group))

    def metrics(self) -> Mapping[str, float]:
        """For the metrics endpoint."""
        return {"store_writes_waiting": self.threads.waiting}

    async def close(self, grace: float) -> None:  # noqa: ARG002  # nothing is on its way anywhere else
        await self.threads.close()

    def _written(
        self,
        group: str,  # noqa: ARG002
        changes: Mapping[TopicPartition, Change],  # noqa: ARG002
        outcomes: Outcomes,  # noqa: ARG002
    ) -> asyncio.Future[None] | None:
        """See `offsetmgr.server.storefront.store_executor.Written`."""
        return None


async def learn(threads: StoreExecutor) -> None:
    """See `SingleStoreBackend.read_capabilities`."""
    try:
        await threads.read_capabilities()
    except OffsetMgrError as error:
        what = {"store": threads.store.uri, "error": str(error)}
        _log.warning("the store cannot be reached yet; its capabilities are unknown", extra=what)
        return
    can = threads.capabilities
    lost = [name for name, kept in (("metadata", can.metadata), ("leader epochs", can.leader_epoch)) if not kept]
    if lost:
        what = {"store": threads.store.uri, "dropped": " and ".join(lost)}
        _log.warning("the store does not keep all that clients commit; the rest is dropped", extra=what)


# --- in the store's threads -----------------------------------------------------------------------


def listed(store: OffsetStore) -> list[str]:
    return list(store.groups())


def delete_whole(store: OffsetStore, group: str) -> int:
    """Deletes a group with the store's own operation, or all of its offsets. Raises `OffsetMgrError`."""
    delete = cast("Callable[[str], object] | None", getattr(store, "delete_group", None))
    try:
        if delete is not None:
            delete(group)
            return ErrorCode.NONE
        return ErrorCode.NONE if store.delete(group).outcomes else ErrorCode.GROUP_ID_NOT_FOUND
    except GroupNotFound:
        return ErrorCode.GROUP_ID_NOT_FOUND
    except PartialFailure as partial_failure:
        raise next(iter(partial_failure.failures.values())) from None
