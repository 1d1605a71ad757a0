"""`ExpirationTask`: expires the offsets of the served shards in batches, so that the loop can serve requests between
two batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from offsetmgr.config.manager_settings import ManagerSettings, Members
from offsetmgr.core.batches import batched_by_size
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.expiration import ExpirationSchedule
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.runtime.status import Counters
from offsetmgr.manager.shard import Shard

_logger: Final = logging.getLogger(__name__)
_BATCH_OFFSETS: Final = 2_000
"""The number of offsets that a pass checks at a time. One such check occupies the loop for a few milliseconds."""

RecordAppender: TypeAlias = Callable[[Shard, CoordinatorResult[int]], "asyncio.Future[int | None]"]
"""Appends the records of a pass. The future's result is the number of deleted offsets, or None if the append failed."""


@dataclass(frozen=True, slots=True)
class ExpirationTask:
    """Runs expiration passes on the loop, by the schedule of the served partitions. ``serving`` returns the shard of a
    partition if this process serves the shard, and None otherwise. If ``members`` is None, every group counts as a
    group without members. The commit timeout limits each request for the members of groups. ``now_ms`` returns the time
    by which offsets expire; None if no offset may expire."""

    schedule: ExpirationSchedule
    settings: ManagerSettings
    members: Members | None
    now_ms: Callable[[], int | None]
    serving: Callable[[int], Shard | None]
    append: RecordAppender
    counters: Counters

    async def run_due(self) -> None:
        """Runs the passes that are due."""
        for partition in self.schedule.take_due(time.monotonic()):
            shard = self.serving(partition)
            if shard is not None:
                await self.run(shard)

    async def run(self, shard: Shard) -> None:
        """Runs one pass over a shard. The pass ends early if the shard is no longer served or an append fails."""
        if (now := self.now_ms()) is None:
            _logger.error("no offset expires: a clock is wrong, or unknown", extra={"shard": shard.partition})
            return
        for groups in batched_by_size(shard.expiry_groups(), lambda group: 1 + shard.size(group), _BATCH_OFFSETS):
            await asyncio.sleep(0)
            if self.serving(shard.partition) is not shard:
                break
            if (expired := await self._expire(shard, now, groups)) is None:
                break
            self.counters.expired_offsets += expired

    async def _expire(self, shard: Shard, now: int, groups: Sequence[str]) -> int | None:
        """Expires the offsets of these groups. Returns their number, or None if the pass must end."""
        expirable = [group for group in groups if shard.expirable(group, now)]
        if not expirable:
            return 0
        members: Mapping[str, bool] = dict.fromkeys(expirable, False)
        if self.members is not None:
            try:
                # `asyncio.wait_for` would ignore a cancellation that coincides with the response (Python 3.11).
                async with asyncio.timeout(self.settings.commit_timeout_s):
                    members = await self.members(expirable)
            except OffsetMgrError:
                raise
            except TimeoutError:
                members = {}  # the members are unknown, so no offset of these groups expires
            if self.serving(shard.partition) is not shard:
                return None
        return await self.append(shard, shard.expire(now, members.get, expirable))
