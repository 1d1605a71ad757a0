"""`TopicWatch`: looks now and then whether the offsets topic is still what it was when the manager started.

Somebody may add partitions (then groups hash elsewhere for whoever starts anew), switch compaction off (then retention
deletes offsets), or delete the topic.  The manager cannot mend that; it says so, loudly and again, and what it serves
from memory is still what was acknowledged.  Not so where the topic was made anew: that holds other offsets, so whoever
serves those of the deleted one is told at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from offsetmgr.errors import OffsetMgrError
from offsetmgr.log.topic import TopicMadeAnew, TopicState

_log = logging.getLogger(__name__)


class TopicWatch:
    """``check`` examines the topic against what is known of it and raises what is wrong; it blocks, and runs in a
    thread, ``every`` so many seconds. ``seen`` is told the topic's id on the loop, after every look."""

    def __init__(
        self, known: TopicState, check: Callable[[TopicState], object], seen: Callable[[str], None], every: float
    ) -> None:
        self._known = known
        self._check = check
        self._seen = seen
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self.alarm: str | None = None
        """What is wrong with the topic; None where nothing is, as far as could be seen."""
        self.loss: str | None = None
        """What became of the topic that was there at the start; None where it is still there. Stays."""

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
            try:
                await asyncio.to_thread(self._check, self._known)
            except TopicMadeAnew as error:
                self._made_anew(error)
            except OffsetMgrError as error:
                # That the brokers cannot be asked is told elsewhere, by who cannot work then.
                self._note(self.alarm if error.retriable else str(error))
            else:
                self._note(None)
            # Every time: what was being loaded when the topic was made anew is served only now.
            self._seen(self._known.topic_id)

    def _made_anew(self, error: TopicMadeAnew) -> None:
        """The next look tells whether the new one is fit."""
        self._known = replace(self._known, topic_id=error.topic_id)
        self.loss = str(error)
        _log.error("the offsets topic was made anew", extra={"why": self.loss})

    def _note(self, found: str | None) -> None:
        if found == self.alarm:
            return
        self.alarm = found
        if found:
            _log.error("the offsets topic is not fit any more", extra={"why": found})
        else:
            _log.info("the offsets topic is fit again")
