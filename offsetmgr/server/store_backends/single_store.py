"""`SingleStoreBackend`: reads and writes the single store behind the listener. The subclass `DualStoreBackend` reads
and writes two stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.server.store_backends.store_executor import OnWritten, StoreExecutor, StoreWrite


class SingleStoreBackend:
    """Create and use a backend on the event loop. The results of reads and writes contain the failures."""

    reports_missing_groups = True
    """Whether a deletion of offsets reports an error if the group does not exist."""

    def __init__(self, store: OffsetStore, on_written: OnWritten | None = None) -> None:
        self.executor = StoreExecutor(store, on_written=on_written)
        """The store that receives commits; for a dual store, this is the primary."""

    @property
    def supports_conditional_commits(self) -> bool:
        """Whether the store can compare and write atomically. False for Kafka, where each commit would need the group
        lock."""
        return self.executor.capabilities.conditional in ("version", "file")

    def failure(self) -> str | None:
        """See `StoreHealth.failure`."""
        return self.executor.health.failure()

    def start(self, probe_interval_s: float, wait_s: float) -> None:
        """Starts the background tasks; see `StoreHealth.start_probing`."""
        self.executor.start_probing(probe_interval_s, wait_s)

    async def read_capabilities(self) -> None:
        """See `StoreExecutor.read_capabilities`."""
        await self.executor.read_capabilities()

    def write(self, write: StoreWrite) -> None:
        self.executor.write(write)

    async def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> GroupOffsets:
        return await asyncio.shield(self.executor.read(group, partitions))

    async def groups(self) -> list[str]:
        """Raises `OffsetMgrError`."""
        return await self.executor.groups()

    async def delete_group(self, group: str) -> int:
        """Deletes the group after all earlier writes of the group have ended. Returns NONE or GROUP_ID_NOT_FOUND.
        Raises `OffsetMgrError`."""
        await self.executor.wait_for_writes(group)
        return await self.executor.delete_group(group)

    def metrics(self) -> Mapping[str, float]:
        """See `Backend.metrics`."""
        return {"store_writes_waiting": self.executor.waiting}

    async def close(self, grace_s: float) -> None:  # noqa: ARG002  # no other store has pending writes
        await self.executor.close()
