"""`OffsetsTopicMonitor`: checks periodically whether the offsets topic has changed since the start of the manager.

An administrator may add partitions (groups then hash to other partitions after a restart), switch compaction off
(retention then deletes offsets), or delete the topic. The manager cannot repair that; it reports it repeatedly, and the
offsets in memory are still the acknowledged ones. A recreated topic is different: it has other offsets, so the manager
is notified at once.

A failed check says nothing about the topic. Transient errors are reported by the operations that fail; other errors (a
revoked authorization, an unexplained error of the broker) become an alarm when no check succeeds any more.
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
"""The number of consecutive failed checks that make an alarm: one minute, at 5 s each."""


class OffsetsTopicMonitor:
    """``check`` compares the topic with its known state and raises a difference; it blocks and runs in a thread,
    ``every`` so many seconds. ``seen`` receives the topic id on the loop after every check."""

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
        """Failed checks since the last successful one."""
        self.alarm: str | None = None
        """The fault of the topic, or that no check succeeds; None if no fault was seen."""
        self.loss: str | None = None
        """The fate of the topic of the start; None while it exists. Never reset."""

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
                self._recreated(error)
            except UnsuitableTopic as error:
                self._failed = 0
                self._note(str(error))
            except OffsetMgrError as error:
                if not error.retriable:
                    self._look_failed(error)
            else:
                self._failed = 0
                self._note(None)
            # After every check, because a load that began before the recreation may be served only now.
            self._seen(self._known.topic_id)

    def _recreated(self, error: TopicRecreated) -> None:
        """The next check decides whether the new topic is suitable."""
        self._known = replace(self._known, topic_id=error.topic_id)
        self.loss = str(error)
        _log.error("the offsets topic was recreated", extra={"why": self.loss})

    def _look_failed(self, error: OffsetMgrError) -> None:
        self._failed += 1
        if self._failed == 1:
            _log.warning(
                "the offsets topic could not be looked at; whether it is still fit is unknown",
                extra={"why": str(error)},
            )
        elif self._failed == FAILED_LOOKS and self.alarm is None:
            self.alarm = f"the offsets topic could not be checked {FAILED_LOOKS} times in succession: {error}"
            _log.error("the offsets topic cannot be looked at", extra={"why": str(error)})

    def _note(self, found: str | None) -> None:
        if found == self.alarm:
            return
        self.alarm = found
        if found:
            _log.error("the offsets topic is no longer suitable", extra={"why": found})
        else:
            _log.info("the offsets topic is fit again")
