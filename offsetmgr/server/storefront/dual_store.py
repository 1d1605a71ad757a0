"""`DualStoreBackend`: a dual store behind the listener (data rule "dual commit: Kafka first").

A commit goes to the primary; the accepted values go to the secondary (`secondary`), and the commit is acknowledged when
both have it. A failure of the secondary is logged, counted and repaired in the background, and the commit is
acknowledged all the same. A write to the primary with an unknown outcome is read later, and passed on if it happened
(`in_doubt_writes`). A fetch returns the larger of both values, except where a rewind is still on its way to the
secondary: there it returns the primary's. Pending values are kept only in memory: after a crash the next start updates
the secondary (`secondary_reconcile`), and the next commit of a partition makes both equal in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import Change, GroupOffsets
from offsetmgr.server.storefront.in_doubt_writes import InDoubtWrites
from offsetmgr.server.storefront.secondary import Secondary
from offsetmgr.server.storefront.secondary_reconcile import StartupReconciliation
from offsetmgr.server.storefront.single_store import SingleStoreBackend, delete_whole, learn, listed
from offsetmgr.server.storefront.store_calls import Outcomes
from offsetmgr.server.storefront.store_executor import StoreExecutor
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.dual_policy import merged

_log = logging.getLogger(__name__)


class DualStoreBackend(SingleStoreBackend):
    """See the module's docstring."""

    def __init__(self, store: DualStore, wait_s: float) -> None:
        """``wait_s``: see `Secondary`."""
        super().__init__(store.primary)
        self._store = store
        self._threads = StoreExecutor(store.secondary)
        self._secondary = Secondary(self._threads, wait_s=wait_s, keeps_epochs=store.shares_epochs)
        self._doubts = InDoubtWrites(self.threads, self._secondary)
        self._catch_up: asyncio.Task[None] | None = None

    @property
    def compares(self) -> bool:
        """False: each store would compare, but not both together."""
        return False

    @property
    def names_groups(self) -> bool:
        """A group may exist only in the secondary."""
        return False

    def trouble(self) -> str | None:
        """The problem of either store, since an offset in only one store is not safe."""
        troubles = [threads.health.trouble() for threads in (self.threads, self._threads)]
        return "; ".join(filter(None, troubles)) or None

    def start(self, look_every: float, wait_s: float) -> None:
        super().start(look_every, wait_s)
        self._threads.watch(look_every, wait_s)
        catch_up = StartupReconciliation(
            self.threads, self._threads, self._secondary, keeps_epochs=self._store.shares_epochs
        )
        self._catch_up = asyncio.get_running_loop().create_task(catch_up.run())

    async def read_capabilities(self) -> None:
        await learn(self.threads)
        await learn(self._threads)

    async def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> GroupOffsets:
        going_back = self._secondary.lowering(group)  # before the reads: they may not show writes of the meantime
        reads = [threads.read(group, partitions) for threads in (self.threads, self._threads)]
        here, there = await asyncio.gather(*map(asyncio.shield, reads))
        if not self._store.shares_epochs:
            there = replace(there, offsets={tp: c._replace(leader_epoch=None) for tp, c in there.offsets.items()})
        both = merged(here, there)
        if not going_back or both.error is not None:
            return both
        offsets = {tp: found for tp, found in both.offsets.items() if tp not in going_back}
        offsets |= {tp: here.offsets[tp] for tp in going_back if tp in here.offsets}
        return GroupOffsets(group, offsets, both.errors)

    async def groups(self) -> list[str]:
        lists = await asyncio.gather(*(t.call(partial(listed, t.store)) for t in (self.threads, self._threads)))
        return list(dict.fromkeys(group for groups in lists for group in groups))

    async def delete_group(self, group: str) -> int:
        """Deletes the primary's whole group, then the offsets of it in the secondary, then the secondary's whole
        group."""
        code = await super().delete_group(group)
        there = await self._threads.read(group, None)
        if there.error is not None:
            raise there.error
        to_delete = {*there.offsets, *there.errors, *self._secondary.wanted(group)}
        waiting = self._secondary.take(group, dict.fromkeys(to_delete))
        if waiting is not None:
            await waiting
        if not self._secondary.wanted(group):
            try:
                await self._threads.call(partial(delete_whole, self._threads.store, group))
            except OffsetMgrError as error:  # the rest of the group holds no offsets
                _log.info("of a deleted group something is left in the secondary store", extra={"error": str(error)})
        return ErrorCode.NONE if to_delete else code

    def metrics(self) -> Mapping[str, float]:
        return {
            **super().metrics(),
            "secondary_pending": self._secondary.pending,
            "secondary_failing": int(self._secondary.failing),
            "secondary_failures_total": self._secondary.failures,
            "secondary_dropped_total": self._secondary.dropped,
            "primary_doubts": self._doubts.count,
        }

    async def close(self, grace: float) -> None:
        if self._catch_up is not None:
            self._catch_up.cancel()
        self._doubts.close()
        if left := await self._secondary.flush(grace):
            what = {"store": self._threads.store.uri, "partitions": left}
            _log.error("closed while the secondary store lacks commits; the next start looks for them", extra=what)
        self._secondary.close()
        await self._threads.close()
        await super().close(grace)

    def _written(
        self, group: str, changes: Mapping[TopicPartition, Change], outcomes: Outcomes
    ) -> asyncio.Future[None] | None:
        self._doubts.record(group, changes, outcomes)
        taken = {
            tp: changes[tp].after
            for tp, outcome in outcomes.items()
            if outcome.error is None or (changes[tp].after is None and isinstance(outcome.error, GroupNotFound))
        }
        return self._secondary.take(group, taken)
