"""`StoreHealth`: whether a store responds at present, according to its last calls; without calls, a probe checks it.

An error from the store itself (not allowed, a conflict, unreadable data) counts as a response. A failure among
successes is one group's trouble (its coordinator is down), not the store's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from offsetmgr.core.errors import AuthenticationFailed, OffsetMgrError, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets

_log = logging.getLogger(__name__)

_NOBODY: Final = "offsetmgr-store-probe"
"""A group that need not exist: the probe reads it if no other group has failed."""
_RECENT_S: Final = 1.0
"""Seconds for which a success outweighs failures."""


class StoreHealth:
    """Used on the event loop."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._error: OffsetMgrError | None = None
        self._group = _NOBODY
        self._answered = -float("inf")
        self._watching: asyncio.Task[None] | None = None

    def trouble(self) -> str | None:
        """The reason why the store cannot be used, according to its last calls; None while it can."""
        return None if self._error is None else f"the store {self._uri} fails: {self._error}"

    def note(self, group: str, errors: Iterable[OffsetMgrError | None]) -> None:
        """Records the outcome of a call for a group; None is a success."""
        now = asyncio.get_running_loop().time()
        down = next((error for error in errors if error is not None and _is_down(error)), None)
        if down is None:
            self._answered = now
            if self._error is not None:
                self._error, self._group = None, _NOBODY
                _log.info("the store answers again", extra={"store": self._uri})
        elif now - self._answered >= _RECENT_S:
            if self._error is None:
                _log.warning("the store fails", extra={"store": self._uri, "error": str(down)})
            self._error, self._group = down, group

    def watch(
        self, read: Callable[[str, list[TopicPartition]], Awaitable[GroupOffsets]], every: float, wait_s: float
    ) -> None:
        """Probes with ``read``, which records its result, whenever no call has succeeded for ``every`` seconds;
        ``wait_s``: seconds that a response may take."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(read, every, wait_s))

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(
        self, read: Callable[[str, list[TopicPartition]], Awaitable[GroupOffsets]], every: float, wait_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - self._answered >= every:
                group = self._group
                try:
                    async with asyncio.timeout(wait_s):
                        await read(group, [TopicPartition(_NOBODY, 0)])
                except TimeoutError:
                    self.note(group, [TimedOut(self._uri, f"did not answer within {wait_s:g} s")])
            await asyncio.sleep(every)


def _is_down(error: OffsetMgrError) -> bool:
    return error.retriable or isinstance(error, AuthenticationFailed)
