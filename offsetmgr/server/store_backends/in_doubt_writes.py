"""`InDoubtWrites`: finds out whether writes with an unknown outcome reached a dual store's primary.

The module reads the primary until the primary responds. If the primary has the value of a write in doubt, the value is
written to the secondary too. A client usually retries after a retriable error, and the retry writes both stores.
Without this module, the commit of a client that does not retry could remain in the primary only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcomes, GroupOffsets
from offsetmgr.server.store_backends.secondary import Secondary
from offsetmgr.server.store_backends.store_errors import outcome_unknown
from offsetmgr.server.store_backends.store_executor import StoreExecutor

_PAUSE_S: Final = 0.5


class InDoubtWrites:
    """The writes in doubt, by group and partition. Use it on the event loop."""

    def __init__(self, primary: StoreExecutor, secondary: Secondary) -> None:
        self._primary = primary
        self._secondary = secondary
        self._writes: dict[str, dict[TopicPartition, list[OffsetAndMetadata | None]]] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Number of partitions in doubt."""
        return sum(map(len, self._writes.values()))

    def contains(self, group: str, tp: TopicPartition) -> bool:
        return tp in self._writes.get(group, {})

    def record(self, group: str, changes: Mapping[TopicPartition, Change], outcomes: ChangeOutcomes) -> None:
        """Records the outcomes of a write to the primary. Call it for all writes, in order within each group."""
        if group not in self._writes and all(outcome.error is None for outcome in outcomes.values()):
            return
        held = self._writes.setdefault(group, {})
        for tp, outcome in outcomes.items():
            if outcome.error is None:
                held.pop(tp, None)
            elif outcome_unknown(outcome.error):
                # Creates a new list object: `_resolve` compares the identity of the list to detect that the value which
                # it has read is outdated.
                held[tp] = [*held.get(tp, ()), changes[tp].after]
        if not held:
            del self._writes[group]
        elif self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._check_loop())

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _check_loop(self) -> None:
        while self._writes:
            await asyncio.sleep(_PAUSE_S)
            for group, held in [(group, dict(held)) for group, held in self._writes.items()]:
                self._resolve(group, held, await self._primary.read(group, list(held)))
        self._running = None

    def _resolve(
        self, group: str, checked: Mapping[TopicPartition, list[OffsetAndMetadata | None]], found: GroupOffsets
    ) -> None:
        held = self._writes.get(group, {})
        if found.error is not None:
            return
        for tp, values in checked.items():
            if tp in found.errors or held.get(tp) is not values:
                continue
            del held[tp]
            now = found.offsets.get(tp, ABSENT)
            if isinstance(now, Committed):
                if any(value is not None and value.offset == now.offset for value in values):
                    self._secondary.enqueue(group, {tp: now.value()})
            elif None in values:
                self._secondary.enqueue(group, {tp: None})
        if not held:
            self._writes.pop(group, None)
