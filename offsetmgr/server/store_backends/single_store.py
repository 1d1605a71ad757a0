"""`SingleStoreBackend`: reads and writes the single store behind the listener. The subclass `DualStoreBackend` reads
and writes two stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from offsetmgr.core.errors import ErrorCode, GroupNotFound, OffsetMgrError, PartialFailure
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import Change, GroupOffsets, OffsetStore
from offsetmgr.server.store_backends.store_calls import ChangeOutcomes
from offsetmgr.server.store_backends.store_executor import StoreExecutor, StoreWrite

_log = logging.getLogger(__name__)


class SingleStoreBackend:
    """Create and use a backend on the event loop. The results of reads and writes contain the failures."""

    def __init__(self, store: OffsetStore) -> None:
        self.executor = StoreExecutor(store, on_written=self._on_written)
        """The store that receives commits; for a dual store, this is the primary."""

    @property
    def supports_conditional_commits(self) -> bool:
        """Whether the store can compare and write atomically. False for Kafka, where each commit would need the group
        lock."""
        return self.executor.capabilities.conditional in ("version", "file")

    @property
    def reports_missing_groups(self) -> bool:
        """Whether a deletion of offsets reports an error if the group does not exist."""
        return True

    def failure(self) -> str | None:
        """See `StoreHealth.failure`."""
        return self.executor.health.failure()

    def start(self, probe_interval_s: float, wait_s: float) -> None:
        """Starts the background tasks; see `StoreHealth.start_probing`."""
        self.executor.start_probing(probe_interval_s, wait_s)

    async def read_capabilities(self) -> None:
        """Reads the store's capabilities, and logs which fields of a commit the store drops."""
        await read_store_capabilities(self.executor)

    def write(self, write: StoreWrite) -> None:
        self.executor.write(write)

    async def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> GroupOffsets:
        return await asyncio.shield(self.executor.read(group, partitions))

    async def groups(self) -> list[str]:
        """Raises `OffsetMgrError`."""
        return await self.executor.call(partial(list_groups, self.executor.store))

    async def delete_group(self, group: str) -> int:
        """Deletes the group after all earlier writes of the group have ended. Returns NONE or GROUP_ID_NOT_FOUND.
        Raises `OffsetMgrError`."""
        await self.executor.wait_for_writes(group)
        return await self.executor.call(partial(delete_whole_group, self.executor.store, group))

    def metrics(self) -> Mapping[str, float]:
        """See `Backend.metrics`."""
        return {"store_writes_waiting": self.executor.waiting}

    async def close(self, grace_s: float) -> None:  # noqa: ARG002  # no other store has pending writes
        await self.executor.close()

    def _on_written(
        self,
        group: str,  # noqa: ARG002
        changes: Mapping[TopicPartition, Change],  # noqa: ARG002
        outcomes: ChangeOutcomes,  # noqa: ARG002
    ) -> asyncio.Future[None] | None:
        """See `offsetmgr.server.store_backends.store_executor.OnWritten`."""
        return None


async def read_store_capabilities(executor: StoreExecutor) -> None:
    """See `SingleStoreBackend.read_capabilities`."""
    try:
        await executor.read_capabilities()
    except OffsetMgrError as error:
        what = {"store": executor.store.uri, "error": str(error)}
        _log.warning("the store cannot be reached yet; its capabilities are unknown", extra=what)
        return
    can = executor.capabilities
    lost = [name for name, kept in (("metadata", can.metadata), ("leader epochs", can.leader_epoch)) if not kept]
    if lost:
        what = {"store": executor.store.uri, "dropped": " and ".join(lost)}
        _log.warning("the store cannot hold all fields of a commit; it drops some", extra=what)


# --- in the store's threads -----------------------------------------------------------------------


def list_groups(store: OffsetStore) -> list[str]:
    return list(store.groups())


def delete_whole_group(store: OffsetStore, group: str) -> int:
    """Deletes a group with the store's own operation. If the store has no such operation, deletes all offsets of the
    group. Raises `OffsetMgrError`."""
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
