"""Writes to a dual store's primary with an unknown outcome: read again until it is known, then passed on or not.

A client usually retries after a retriable error, which ends the doubt. A client that does not would leave a commit only
in the primary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupOffsets
from offsetmgr.server.storefront.secondary import Secondary
from offsetmgr.server.storefront.store_calls import Outcomes
from offsetmgr.server.storefront.store_errors import outcome_unknown
from offsetmgr.server.storefront.store_executor import StoreExecutor

_PAUSE_S: Final = 0.5


class InDoubtWrites:
    """Used on the event loop."""

    def __init__(self, primary: StoreExecutor, secondary: Secondary) -> None:
        self._primary = primary
        self._secondary = secondary
        self._doubts: dict[str, dict[TopicPartition, list[OffsetAndMetadata | None]]] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Partitions in doubt."""
        return sum(map(len, self._doubts.values()))

    def record(self, group: str, changes: Mapping[TopicPartition, Change], outcomes: Outcomes) -> None:
        """Called with the outcome of each write to the primary, in order within each group."""
        if group not in self._doubts and all(outcome.error is None for outcome in outcomes.values()):
            return
        held = self._doubts.setdefault(group, {})
        for tp, outcome in outcomes.items():
            if outcome.error is None:
                held.pop(tp, None)
            elif outcome_unknown(outcome.error):
                # A new list: one that is being checked must not be confused with this one.
                held[tp] = [*held.get(tp, ()), changes[tp].after]
        if not held:
            del self._doubts[group]
        elif self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._look())

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _look(self) -> None:
        while self._doubts:
            await asyncio.sleep(_PAUSE_S)
            for group, held in [(group, dict(held)) for group, held in self._doubts.items()]:
                self._settle(group, held, await self._primary.read(group, list(held)))
        self._running = None

    def _settle(
        self, group: str, looked: Mapping[TopicPartition, list[OffsetAndMetadata | None]], found: GroupOffsets
    ) -> None:
        held = self._doubts.get(group, {})
        if found.error is not None:
            return
        for tp, values in looked.items():
            if tp in found.errors or held.get(tp) is not values:
                continue
            del held[tp]
            now = found.offsets.get(tp, ABSENT)
            if isinstance(now, Committed):
                if any(value is not None and value.offset == now.offset for value in values):
                    self._secondary.take(group, {tp: now.value()})
            elif None in values:
                self._secondary.take(group, {tp: None})
        if not held:
            self._doubts.pop(group, None)
