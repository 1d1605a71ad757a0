"""Retries: repeats an operation with growing pauses until it succeeds or a deadline passes.

A pause of these classes ends only when its time has passed. A thread that has to end its pause when it is stopped waits
for its own event instead: `manager.runtime.shard_group`, `manager.runtime.standby`, `zookeeper.client.session_member`
and `zookeeper.groups.consumer_member`. Periodic work and polling are no retries.

A caller does the following:

1. It creates `Retries` on an event loop, or `BlockingRetries` in a thread, before the first attempt.
2. It makes an attempt in a loop, and leaves the loop after a success.
3. After a failure it calls `pause`. If `pause` returns False, no time is left for another attempt, and the caller
   reports the failure. If the failure is an exception, the caller can use `pause_or_raise`, which pauses or raises the
   exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import LockLost, OffsetMgrError, Unreachable

_MAX_DOUBLINGS: Final = 64
"""A limit for the exponent, because a float overflows after about 1,000 doublings."""


class Backoff(NamedTuple):
    """The pauses between attempts. The first pause lasts ``first_s`` seconds, and each further pause is twice as long
    as the previous one, up to ``max_s`` seconds."""

    first_s: float
    max_s: float
    max_retries: float = math.inf
    """The largest number of attempts after the first one."""

    @classmethod
    def fixed(cls, pause_s: float, max_retries: float = math.inf) -> Backoff:
        """Returns a backoff whose pauses all last ``pause_s`` seconds."""
        return cls(pause_s, pause_s, max_retries)

    def pause_s(self, failures: int) -> float:
        """Returns the number of seconds to wait after ``failures`` consecutive failures (at least one failure)."""
        return min(self.first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), self.max_s)


REQUEST_BACKOFF: Final = Backoff(0.02, 0.5)
"""The pauses between two requests of a Kafka client."""


class UnusableAddress(Unreachable):
    """A bootstrap server answers, but no address that its cluster advertises accepts connections. A repetition within
    the same call cannot succeed."""


def is_retriable(error: OffsetMgrError) -> bool:
    """Returns whether the caller should repeat the operation after this error. Returns False for `LockLost`, because
    the caller has to join the group again first, and for `UnusableAddress`."""
    return error.retriable and not isinstance(error, LockLost | UnusableAddress)


class _Attempts:
    """The number of pauses so far and the time limit of one operation."""

    __slots__ = ("_backoff", "_deadline", "_now", "_pauses")

    def __init__(self, deadline: float, backoff: Backoff, now: Callable[[], float]) -> None:
        self._deadline = deadline
        self._backoff = backoff
        self._now = now
        self._pauses = 0

    @property
    def next_pause_s(self) -> float:
        """The pause in seconds before the next attempt."""
        return self._backoff.pause_s(self._pauses + 1)

    @property
    def exhausted(self) -> bool:
        """Whether the next attempt would begin at the deadline or later, or would exceed the number of retries."""
        return self._pauses >= self._backoff.max_retries or self._now() + self.next_pause_s >= self._deadline


class Retries(_Attempts):
    """The retries of one operation on an event loop. ``deadline`` is a time of the loop's clock."""

    __slots__ = ()

    def __init__(self, deadline: float = math.inf, backoff: Backoff = REQUEST_BACKOFF) -> None:
        from asyncio import get_running_loop  # not imported by commands that use no event loop

        super().__init__(deadline, backoff, get_running_loop().time)

    async def pause(self) -> bool:
        """Waits before the next attempt. Returns False at once if the retries are `exhausted`."""
        from asyncio import sleep

        if self.exhausted:
            return False
        self._pauses += 1
        await sleep(self._backoff.pause_s(self._pauses))
        return True

    async def pause_or_raise(self, error: OffsetMgrError) -> None:
        """Waits before the next attempt. Raises ``error`` if it is not retriable or the retries are `exhausted`."""
        if not is_retriable(error) or not await self.pause():
            raise error


class BlockingRetries(_Attempts):
    """The retries of one operation in a thread. ``deadline`` is a time of `Clock.monotonic`."""

    __slots__ = ("_clock",)

    def __init__(
        self, deadline: float = math.inf, backoff: Backoff = REQUEST_BACKOFF, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        super().__init__(deadline, backoff, self._clock.monotonic)

    def pause(self) -> bool:
        """Waits before the next attempt. Returns False at once if the retries are `exhausted`."""
        if self.exhausted:
            return False
        self._pauses += 1
        self._clock.sleep(self._backoff.pause_s(self._pauses))
        return True


# The end of background tasks of an event loop, and completed futures.

T = TypeVar("T")


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels the tasks and waits until they have ended. Ignores None."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    for task in started:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def completed(value: T) -> asyncio.Future[T]:
    """Returns a future of the running event loop that has this result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
