"""Retries: the pauses, the deadline, and the errors that are not retried."""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pytest
from set_clock import SetClock

from offsetmgr.core.errors import CoordinatorNotAvailable, LockLost, NotAuthorized, OffsetMgrError
from offsetmgr.core.retry import REQUEST_BACKOFF, Backoff, BlockingRetries, Retries

BUSY = CoordinatorNotAvailable("group g", "the coordinator moves")


def run(work: Coroutine[Any, Any, Any], clock: SetClock) -> Any:
    """Runs a coroutine on a loop with this clock."""

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    with pytest.MonkeyPatch.context() as patched, asyncio.Runner() as runner:
        patched.setattr(asyncio, "sleep", sleep)
        patched.setattr(runner.get_loop(), "time", clock.monotonic)
        return runner.run(work)


def test_the_pauses_double_up_to_the_maximum() -> None:
    assert [REQUEST_BACKOFF.pause_s(n) for n in range(1, 8)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert [Backoff.fixed(0.25).pause_s(n) for n in (1, 2, 50)] == [0.25, 0.25, 0.25]
    for failures in (1_000, 100_000):
        assert REQUEST_BACKOFF.pause_s(failures) == 0.5
        assert math.isfinite(Backoff(0.2, math.inf).pause_s(failures))


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(
    ("deadline", "backoff", "expected"),
    [
        (100.5, Backoff(0.1, 10.0), [0.1, 0.2]),  # a third pause would end after the deadline
        (100.25, Backoff.fixed(0.25), []),  # no attempt begins at the deadline
        (math.inf, Backoff(1.0, 3.0, max_retries=3), [1.0, 2.0, 3.0]),
        (math.inf, Backoff.fixed(60), [60.0] * 10),
    ],
)
def test_the_pauses_end_at_the_deadline_and_at_the_number_of_retries(blocks: bool, deadline, backoff, expected) -> None:
    clock = SetClock()
    blocking = BlockingRetries(deadline, backoff, clock)

    async def pauses() -> list[bool]:
        retries = Retries(deadline, backoff)
        return [blocking.pause() if blocks else await retries.pause() for _ in range(10)]

    assert run(pauses(), clock) == [True] * len(expected) + [False] * (10 - len(expected))
    assert clock.pauses == expected
    assert not blocks or blocking.exhausted == (len(expected) < 10)


@pytest.mark.parametrize(
    ("error", "deadline", "pauses"),
    [
        (BUSY, 101, [0.1]),
        (BUSY, 100.1, []),
        (NotAuthorized("group g", "not authorized"), 101, []),
        (LockLost("lock of group g", "was lost"), 101, []),
    ],
)
def test_only_a_retriable_error_is_followed_by_a_pause_while_time_is_left(error, deadline: float, pauses) -> None:
    async def pause() -> None:
        await Retries(deadline, Backoff.fixed(0.1)).pause_or_raise(error)

    clock, raised = SetClock(), None
    try:
        run(pause(), clock)
    except OffsetMgrError as found:
        raised = found
    assert (raised, clock.pauses) == (None if pauses else error, pauses)
