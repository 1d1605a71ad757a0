"""`TopicWatch`: looks now and then whether the offsets topic is still what it was when the manager started.

Somebody may add partitions (then groups hash elsewhere for whoever starts anew), switch compaction off (then retention
deletes offsets), or delete the topic.  The manager cannot mend that; it says so, loudly and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from offsetmgr.errors import OffsetMgrError

_EVERY: Final = 15.0
"""Seconds."""

_log = logging.getLogger(__name__)


class TopicWatch:
    """``check`` raises what is wrong; it blocks, and runs in a thread."""

    def __init__(self, check: Callable[[], object], every: float = _EVERY) -> None:
        self._check = check
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self.alarm: str | None = None
        """What is wrong with the topic; None where nothing is, as far as could be seen."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            found = await asyncio.to_thread(self._look)
            if found != self.alarm:
                self.alarm = found
                if found:
                    _log.error("the offsets topic is not fit any more", extra={"why": found})
                else:
                    _log.info("the offsets topic is fit again")

    def _look(self) -> str | None:
        try:
            self._check()
        except OffsetMgrError as error:
            # That the brokers cannot be asked is told elsewhere, by who cannot work then.
            return self.alarm if error.retriable else str(error)
        return None
