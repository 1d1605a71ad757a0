"""`StoreHealth`: determines from the results of the calls to a store whether the store responds. If no call has
succeeded for a while, a probe reads from the store.

An error from the store itself (not allowed, a conflict, unreadable data) counts as a response. If another call
succeeded within the last second, a failed call counts as a failure of its group (whose coordinator may be down), not of
the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from offsetmgr.core.errors import AuthenticationFailed, OffsetMgrError, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.retry import cancel_tasks

_log = logging.getLogger(__name__)

_PROBE_GROUP: Final = "offsetmgr-store-probe"
"""The group that the probe reads if no other group has failed. This group does not have to exist."""
_RECENT_S: Final = 1.0
"""Failures do not count during this time, in seconds, after a successful call."""


class StoreHealth:
    """The health of one store. Use it on the event loop."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._error: OffsetMgrError | None = None
        self._group = _PROBE_GROUP
        self._last_success = -float("inf")
        self._probing: asyncio.Task[None] | None = None

    def failure(self) -> str | None:
        """The reason why the latest calls of the store failed; None if they succeeded."""
        return None if self._error is None else f"the store {self._uri} fails: {self._error}"

    def record(self, group: str, errors: Iterable[OffsetMgrError | None]) -> None:
        """Records the results of a call for a group. In ``errors``, None stands for a success."""
        now = asyncio.get_running_loop().time()
        failures = (error for error in errors if error is not None)
        down = next((e for e in failures if e.retriable or isinstance(e, AuthenticationFailed)), None)
        if down is None:
            self._last_success = now
            if self._error is not None:
                self._error, self._group = None, _PROBE_GROUP
                _log.info("the store responds again", extra={"store": self._uri})
        elif now - self._last_success >= _RECENT_S:
            if self._error is None:
                _log.warning("the store fails", extra={"store": self._uri, "error": str(down)})
            self._error, self._group = down, group

    def start_probing(
        self, read: Callable[[str, list[TopicPartition]], Awaitable[GroupOffsets]], interval_s: float, wait_s: float
    ) -> None:
        """Starts a task that calls ``read`` whenever no call has succeeded for ``interval_s`` seconds. ``read`` must
        call `record` itself; the task records a timeout if ``read`` takes longer than ``wait_s`` seconds."""
        loop = asyncio.get_running_loop()

        async def probe() -> None:
            while True:
                if loop.time() - self._last_success >= interval_s:
                    group = self._group
                    try:
                        async with asyncio.timeout(wait_s):
                            await read(group, [TopicPartition(_PROBE_GROUP, 0)])
                    except TimeoutError:
                        self.record(group, [TimedOut(self._uri, f"did not answer within {wait_s:g} s")])
                await asyncio.sleep(interval_s)

        self._probing = loop.create_task(probe())

    async def close(self) -> None:
        await cancel_tasks(self._probing)
