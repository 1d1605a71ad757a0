"""Values that an earlier process did not write to a dual store's secondary: searched once, at the start.

Pending values of the secondary are kept only in memory (`secondary`), so a listener that died may have left the
secondary behind for partitions without further commits. Only groups with offsets in the secondary are checked: others
of the same Kafka cluster never used it. Values only move forward, and each write requires that the secondary still
holds the value that was read, so every commit of the meantime wins. A pending rewind looks the same as a secondary that
is ahead, and is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupOffsets
from offsetmgr.server.storefront.secondary import Secondary
from offsetmgr.server.storefront.single_store import listed
from offsetmgr.server.storefront.store_executor import StoreExecutor, StoreWrite

_log = logging.getLogger(__name__)

_GROUPS_AT_ONCE: Final = 200
_PAUSE_S: Final = 5.0
"""Seconds until groups that could not be read or written are checked again."""


class StartupReconciliation:
    """Used on the event loop: one task, `run`."""

    def __init__(
        self, primary: StoreExecutor, secondary_threads: StoreExecutor, secondary: Secondary, *, keeps_epochs: bool
    ) -> None:
        """``keeps_epochs``: whether the primary's leader epochs are those of the secondary's logs."""
        self._primary = primary
        self._threads = secondary_threads
        self._secondary = secondary
        self._keeps_epochs = keeps_epochs
        self.written = 0
        """Number of partitions moved forward."""

    async def run(self) -> None:
        """Checks all groups of the secondary, until each of them has succeeded."""
        left = iter(await self._groups())
        looked = 0
        while batch := list(islice(left, _GROUPS_AT_ONCE)):
            looked += len(batch)
            while batch := await self._look(batch):
                await asyncio.sleep(_PAUSE_S)
        if self.written:
            what = {"store": self._threads.store.uri, "groups": looked, "partitions": self.written}
            _log.warning("the secondary store was behind the primary, and was brought forward", extra=what)

    async def _groups(self) -> list[str]:
        while True:
            try:
                return await self._threads.call(partial(listed, self._threads.store))
            except OffsetMgrError:
                await asyncio.sleep(_PAUSE_S)

    async def _look(self, groups: list[str]) -> list[str]:
        """Updates these groups; returns those that have to be checked again."""
        reads = [(self._primary.read(group, None), self._threads.read(group, None)) for group in groups]
        writes: list[StoreWrite] = []
        again: list[str] = []
        for group, (first, second) in zip(groups, reads, strict=True):
            here, there = await first, await second
            if error := here.error or there.error:
                if error.retriable:
                    again.append(group)
            elif there.offsets:
                changes = dict(_behind(here, there, keeps_epochs=self._keeps_epochs))
                if changes:
                    writes.append(StoreWrite(group, changes, asyncio.get_running_loop().create_future(), alone=True))
        for write in writes:
            self._threads.write(write)
        for write in writes:
            if await self._failed(write):
                again.append(write.group)
        return again

    async def _failed(self, write: StoreWrite) -> bool:
        """Whether the group has to be checked again. Values that other clients changed meanwhile are kept."""
        failed = False
        for tp, outcome in (await write.done).items():
            after = write.changes[tp].after
            if outcome.error is None and after is not None:
                self.written += 1
                self._secondary.read_capabilities(write.group, tp, after.offset)
            elif outcome.error is not None and not isinstance(outcome.error, Conflict):
                failed = failed or outcome.error.retriable
        return failed


def _behind(here: GroupOffsets, there: GroupOffsets, *, keeps_epochs: bool) -> Iterator[tuple[TopicPartition, Change]]:
    """The partitions in which the secondary is behind."""
    for tp, found in here.offsets.items():
        held: Offset = there.offsets.get(tp, ABSENT)
        if tp not in there.errors and (not isinstance(held, Committed) or held.offset < found.offset):
            epoch = found.leader_epoch if keeps_epochs else None
            yield tp, Change(OffsetAndMetadata(found.offset, found.metadata, epoch), held)
