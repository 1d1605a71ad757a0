"""`OffsetsTopicMonitor`: looks now and then whether the offsets topic is still what it was when the manager started.

Somebody may add partitions (then groups hash elsewhere for whoever starts again), switch compaction off (then retention
deletes offsets), or delete the topic. The manager cannot repair that; it says so, loudly and again, and what it serves
from memory is still what was acknowledged. Not so where the topic was recreated: that holds other offsets, so whoever
serves those of the deleted one is told at once.

A look that failed says nothing of the topic. Errors that pass by themselves are told by who cannot work then; others (a
right that was taken away, an error that the broker does not explain) become an alarm when no look succeeds any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.topic import OffsetsTopicState, TopicRecreated, UnsuitableTopic

_log = logging.getLogger(__name__)

FAILED_LOOKS: Final = 12
"""So many looks in succession that tell nothing are an alarm: a minute, at 5 s each."""


class OffsetsTopicMonitor:
    """``check`` examines the topic against what is known of it and raises what is wrong; it blocks, and runs in a
    thread, ``every`` so many seconds. ``seen`` is told the topic's id on the loop, after every look."""

    def __init__(
        self,
        known: OffsetsTopicState,
        check: Callable[[OffsetsTopicState], object],
        seen: Callable[[str], None],
        every: float,
    ) -> None:
        self._known = known
        self._check = check
        self._seen = seen
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self._failed = 0
        """Looks that told nothing since the last that did."""
        self.alarm: str | None = None
        """What is wrong with the topic, or that nobody can look at it; None where nothing is, as far as could be
        seen."""
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
            except TopicRecreated as error:
                self._made_anew(error)
            except UnsuitableTopic as error:
                self._failed = 0
                self._note(str(error))
            except OffsetMgrError as error:
                if not error.retriable:
                    self._look_failed(error)
            else:
                self._failed = 0
                self._note(None)
            # Every time: what was being loaded when the topic was recreated is served only now.
            self._seen(self._known.topic_id)

    def _made_anew(self, error: TopicRecreated) -> None:
        """The next look tells whether the new one is fit."""
        self._known = replace(self._known, topic_id=error.topic_id)
        self.loss = str(error)
        _log.error("the offsets topic was made anew", extra={"why": self.loss})

    def _look_failed(self, error: OffsetMgrError) -> None:
        self._failed += 1
        if self._failed == 1:
            _log.warning(
                "the offsets topic could not be looked at; whether it is still fit is unknown",
                extra={"why": str(error)},
            )
        elif self._failed == FAILED_LOOKS and self.alarm is None:
            self.alarm = f"nobody could look at the offsets topic {FAILED_LOOKS} times in succession: {error}"
            _log.error("the offsets topic cannot be looked at", extra={"why": str(error)})

    def _note(self, found: str | None) -> None:
        if found == self.alarm:
            return
        self.alarm = found
        if found:
            _log.error("the offsets topic is not fit any more", extra={"why": found})
        else:
            _log.info("the offsets topic is fit again")
