"""`OffsetsTopicMonitor`: checks periodically whether the offsets topic has changed since the start of the manager.

An administrator may add partitions, switch compaction off, or delete the topic. After partitions are added, groups hash
to other partitions when the manager restarts. Without compaction, retention may delete offsets. The manager cannot
repair these faults. The monitor raises an alarm, and the manager continues to serve, because its memory still contains
the acknowledged offsets. If the topic was recreated, the offsets in memory are invalid. Therefore the monitor passes
the topic id to the runtime after every check, and the runtime reloads the shards that it read from a topic with another
id.

If a check fails, the state of the topic is unknown. The monitor ignores transient errors, which other operations
report. Other errors (a revoked authorization, an unknown error of the broker) become an alarm after `MAX_FAILED_CHECKS`
failures in succession.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.retry import cancel_tasks
from offsetmgr.manager.log.topic import OffsetsTopicState, TopicRecreated, UnsuitableTopic

_log = logging.getLogger(__name__)

MAX_FAILED_CHECKS: Final = 12
"""The number of consecutive failed checks that cause an alarm: one minute at the default interval of 5 s."""


@dataclass(slots=True, eq=False)
class OffsetsTopicMonitor:
    """Checks the topic every ``interval_s`` seconds. ``check`` compares the topic with its known state and raises an
    error if they differ. ``check`` blocks, so it runs in a thread. ``on_topic_id`` is called on the loop with the topic
    id after every check. ``check_starts`` checks whether records were deleted; until it has succeeded, an alarm
    stays."""

    known: OffsetsTopicState
    check: Callable[[OffsetsTopicState], object]
    on_topic_id: Callable[[str], None]
    check_starts: Callable[[], Awaitable[None]]
    interval_s: float
    alarm: str | None = None
    """The fault that the last completed check found, or the error of the last check after `MAX_FAILED_CHECKS` failures
    in succession; None if there is no fault."""
    recreated: str | None = None
    """The message that the topic was recreated since the start; None if the topic was not recreated. The message is
    never reset, because the commits of the earlier topic are lost."""
    _task: asyncio.Task[None] | None = None
    _failed_checks: int = 0
    """The number of failed checks since the last successful check."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        await cancel_tasks(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await asyncio.to_thread(self.check, self.known)
                await self.check_starts()
            except TopicRecreated as error:
                # The next check decides whether the new topic is suitable.
                self.known = replace(self.known, topic_id=error.topic_id)
                self.recreated = str(error)
                _log.error("the offsets topic was recreated", extra={"why": self.recreated})
            except UnsuitableTopic as error:
                self._failed_checks = 0
                self._set_alarm(str(error))
                with contextlib.suppress(OffsetMgrError):
                    await self.check_starts()
            except OffsetMgrError as error:
                if not error.retriable:
                    self._check_failed(error)
            else:
                self._failed_checks = 0
                self._set_alarm(None)
            # The id is passed after every check, even if it has not changed, because a load that began before the topic
            # was recreated may have ended since the previous check.
            self.on_topic_id(self.known.topic_id)

    def _check_failed(self, error: OffsetMgrError) -> None:
        self._failed_checks += 1
        if self._failed_checks == 1:
            _log.warning(
                "the check of the offsets topic failed; its state is unknown until a check succeeds",
                extra={"why": str(error)},
            )
        elif self._failed_checks == MAX_FAILED_CHECKS and self.alarm is None:
            self.alarm = f"the offsets topic could not be checked {MAX_FAILED_CHECKS} times in succession: {error}"
            _log.error("the offsets topic cannot be checked", extra={"why": str(error)})

    def _set_alarm(self, fault: str | None) -> None:
        if fault == self.alarm:
            return
        self.alarm = fault
        if fault:
            _log.error("the offsets topic is no longer suitable", extra={"why": fault})
        else:
            _log.info("the offsets topic is suitable again")
