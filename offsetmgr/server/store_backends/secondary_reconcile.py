"""Brings a dual store's secondary up to date with the primary, once, when the listener starts.

Values that wait for the secondary are kept only in memory (`secondary`), so a crash of the listener may have left old
values in the secondary. The next commit of a partition repairs that partition's value; this module repairs the values
of partitions that get no further commit. It checks only groups with offsets in the secondary, because other groups of
the primary's Kafka cluster never used this listener. A write only raises a value. The write takes effect only if the
secondary still holds the value that was read, so commits made in the meantime are kept. A value of the secondary that
is larger than the primary's value stays unchanged, because the module cannot find out whether a rewind was lost.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.server.store_backends.secondary import Secondary
from offsetmgr.server.store_backends.single_store import list_groups
from offsetmgr.server.store_backends.store_executor import StoreExecutor, StoreWrite
from offsetmgr.stores.dual_calls import GROUPS_IN_FLIGHT
from offsetmgr.stores.dual_policy import catch_up_changes, without_epochs

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff.fixed(5.0)
"""The pauses before the task retries groups that it could not read or write."""


class StartupReconciliation:
    """Reconciles all groups; call `run` once, on the event loop."""

    def __init__(
        self, primary: StoreExecutor, secondary_executor: StoreExecutor, secondary: Secondary, *, keeps_epochs: bool
    ) -> None:
        """``keeps_epochs``: whether the primary's leader epochs are valid for the secondary's logs."""
        self._primary = primary
        self._secondary_executor = secondary_executor
        self._secondary = secondary
        self._keeps_epochs = keeps_epochs
        self.written = 0
        """Number of partitions whose value in the secondary was raised."""

    async def run(self) -> None:
        """Checks all groups of the secondary. Retries groups with a retriable error until they succeed."""
        left = iter(await self._groups())
        checked, retries = 0, Retries(backoff=_BACKOFF)
        while batch := list(islice(left, GROUPS_IN_FLIGHT)):
            checked += len(batch)
            while batch := await self._check(batch):
                await retries.pause()
        if self.written:
            what = {"store": self._secondary_executor.store.uri, "groups": checked, "partitions": self.written}
            _log.warning(
                "the secondary store was behind the primary after a restart; its offsets were updated", extra=what
            )

    async def _groups(self) -> list[str]:
        retries = Retries(backoff=_BACKOFF)
        while True:
            try:
                return await self._secondary_executor.call(partial(list_groups, self._secondary_executor.store))
            except OffsetMgrError:
                await retries.pause()

    async def _check(self, groups: list[str]) -> list[str]:
        """Updates these groups; returns the groups that must be checked again."""
        reads = [(self._primary.read(group, None), self._secondary_executor.read(group, None)) for group in groups]
        writes: list[StoreWrite] = []
        again: list[str] = []
        for group, (first, second) in zip(groups, reads, strict=True):
            primary, secondary = await first, await second
            if error := primary.error or secondary.error:
                if error.retriable:
                    again.append(group)
            elif secondary.offsets:
                found = primary if self._keeps_epochs else without_epochs(primary)
                readable = {tp: offset for tp, offset in found.offsets.items() if tp not in secondary.errors}
                changes = catch_up_changes(secondary.offsets, readable)
                if changes:
                    writes.append(
                        StoreWrite(group, changes, asyncio.get_running_loop().create_future(), exclusive=True)
                    )
        for write in writes:
            self._secondary_executor.write(write)
        for write in writes:
            if await self._must_retry(write):
                again.append(write.group)
        return again

    async def _must_retry(self, write: StoreWrite) -> bool:
        """Waits for a write; returns whether its group must be checked again. A conflict is not an error: another
        client has changed the value, and that client's value is kept."""
        failed = False
        for tp, outcome in (await write.done).items():
            after = write.changes[tp].after
            if outcome.error is None and after is not None:
                self.written += 1
                self._secondary.record_value(write.group, tp, after.offset)
            elif outcome.error is not None and not isinstance(outcome.error, Conflict):
                failed = failed or outcome.error.retriable
        return failed
