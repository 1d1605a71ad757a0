"""`DualStoreBackend`: reads and writes the two stores of a dual store (data rule "dual commit: Kafka first").

A commit is written to the primary first. The values that the primary accepts are then written to the secondary
(`secondary`), and the client gets its response when both stores have the values. If the write to the secondary fails,
the client still gets a successful response; the failure is logged and counted, and the write is retried in the
background. If the outcome of a write to the primary is unknown, `in_doubt_writes` reads the primary later. If the
primary has the value, the value is written to the secondary.

A fetch returns the larger of the two stores' values. While a rewind is not yet written to the secondary, a fetch
returns the primary's value. Values that wait for the secondary are kept only in memory. After a crash, the next start
updates the secondary (`secondary_reconcile`), and the next commit of a partition makes both values equal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, ChangeOutcomes, GroupOffsets
from offsetmgr.server.store_backends.in_doubt_writes import InDoubtWrites
from offsetmgr.server.store_backends.secondary import Secondary
from offsetmgr.server.store_backends.secondary_reconcile import StartupReconciliation
from offsetmgr.server.store_backends.store_executor import StoreExecutor
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.dual_policy import accepted_by_primary

_log = logging.getLogger(__name__)


class DualStoreBackend:
    """Commits to the primary, then to the secondary; see the module's docstring. `StoreBackend` uses it in place of a
    `StoreExecutor`."""

    reports_missing_groups = False
    """A group that is missing in the primary may exist in the secondary."""
    supports_conditional_commits = False
    """Each store can compare and write atomically, but the two stores together cannot."""

    def __init__(self, store: DualStore, wait_s: float) -> None:
        """``wait_s``: see `Secondary`."""
        self._store = store
        self._primary = StoreExecutor(store.primary, on_written=self._on_written)
        self.write = self._primary.write
        self.wait_for_writes = self._primary.wait_for_writes
        self._secondary_executor = StoreExecutor(store.secondary)
        self._executors = (self._primary, self._secondary_executor)
        self._secondary = Secondary(
            self._secondary_executor,
            self._primary,
            lambda group, tp: self._primary.is_writing(group, tp) or self._in_doubt.contains(group, tp),
            wait_s=wait_s,
            keeps_epochs=store.shares_epochs,
        )
        self._in_doubt = InDoubtWrites(self._primary, self._secondary)
        self._reconciliation: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._primary.capabilities

    def failure(self) -> str | None:
        """The failure of either store. A failure of one store is reported, because an offset that only one store holds
        is not safe."""
        failures = [executor.failure() for executor in self._executors]
        return "; ".join(filter(None, failures)) or None

    def start(self, probe_interval_s: float, wait_s: float) -> None:
        for executor in self._executors:
            executor.start(probe_interval_s, wait_s)
        reconciliation = StartupReconciliation(
            self._primary, self._secondary_executor, self._secondary, keeps_epochs=self._store.shares_epochs
        )
        self._reconciliation = asyncio.get_running_loop().create_task(reconciliation.run())

    async def read_capabilities(self) -> None:
        for executor in self._executors:
            await executor.read_capabilities()

    async def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> GroupOffsets:
        rewinding = self._secondary.rewinding(group)  # before the reads, which may miss a rewind that ends meanwhile
        reads = [executor.read(group, partitions) for executor in self._executors]
        primary, secondary = await asyncio.gather(*map(asyncio.shield, reads))
        both = self._store.merged(primary, secondary)
        if not rewinding or both.error is not None:
            return both
        offsets = {tp: found for tp, found in both.offsets.items() if tp not in rewinding}
        offsets |= {tp: primary.offsets[tp] for tp in rewinding if tp in primary.offsets}
        return GroupOffsets(group, offsets, both.errors)

    async def groups(self) -> list[str]:
        lists = await asyncio.gather(*(executor.groups() for executor in self._executors))
        return list(dict.fromkeys(group for groups in lists for group in groups))

    async def delete_group(self, group: str) -> int:
        """Deletes the group in the primary, then its offsets in the secondary, then the group in the secondary."""
        code = await self._primary.delete_group(group)
        secondary = await self._secondary_executor.read(group, None)
        if secondary.error is not None:
            raise secondary.error
        to_delete = {*secondary.offsets, *secondary.errors, *self._secondary.pending_partitions(group)}
        waiting = self._secondary.enqueue(group, dict.fromkeys(to_delete))
        if waiting is not None:
            await waiting
        if not self._secondary.pending_partitions(group):
            try:
                await self._secondary_executor.delete_group(group)
            except OffsetMgrError as error:  # the group's offsets are already deleted
                _log.info(
                    "the secondary store could not delete the group itself; its offsets are deleted",
                    extra={"error": str(error)},
                )
        return ErrorCode.NONE if to_delete else code

    def metrics(self) -> Mapping[str, float]:
        return {
            **self._primary.metrics(),
            "secondary_pending": self._secondary.pending,
            "secondary_failing": int(self._secondary.failing),
            "secondary_failures_total": self._secondary.failures,
            "secondary_dropped_total": self._secondary.dropped,
            "primary_in_doubt": self._in_doubt.count,
        }

    async def close(self, grace_s: float) -> None:
        if self._reconciliation is not None:
            self._reconciliation.cancel()
        self._in_doubt.close()
        if left := await self._secondary.flush(grace_s):
            what = {"store": self._secondary_executor.store.uri, "partitions": left}
            _log.error(
                "stopped before the secondary store received all commits; the next start writes the missing ones",
                extra=what,
            )
        self._secondary.close()
        await self._secondary_executor.close()
        await self._primary.close()

    def _on_written(
        self, group: str, changes: Mapping[TopicPartition, Change], outcomes: ChangeOutcomes
    ) -> asyncio.Future[None] | None:
        self._in_doubt.record(group, changes, outcomes)
        accepted = {
            tp: changes[tp].after for tp, outcome in outcomes.items() if accepted_by_primary(changes[tp], outcome)
        }
        return self._secondary.enqueue(group, accepted)
