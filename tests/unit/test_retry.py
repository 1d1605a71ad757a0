"""Retries: the pauses, the deadline, and the errors that are not retried."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from offsetmgr.core.errors import CoordinatorNotAvailable, LockLost, NotAuthorized, OffsetMgrError
from offsetmgr.core.retry import REQUEST_BACKOFF, Backoff, BlockingRetries, Retries, is_retriable

BUSY = CoordinatorNotAvailable("group g", "the coordinator moves")
FORBIDDEN = NotAuthorized("group g", "not authorized")
LOST = LockLost("lock of group g", "was lost")


class SetClock:
    """A clock that moves only when its user sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


Pauses = Callable[[float, Backoff, SetClock], "list[bool]"]


def blocking(deadline: float, backoff: Backoff, clock: SetClock) -> list[bool]:
    retries = BlockingRetries(deadline, backoff, clock)
    return [retries.pause() for _ in range(10)]


def on_a_loop(deadline: float, backoff: Backoff, clock: SetClock) -> list[bool]:
    async def run() -> list[bool]:
        retries = Retries(deadline, backoff)
        return [await retries.pause() for _ in range(10)]

    return with_clock(run(), clock)


def with_clock(work: Coroutine[Any, Any, Any], clock: SetClock) -> Any:
    """Runs a coroutine on a loop with this clock."""

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    with pytest.MonkeyPatch.context() as patched, asyncio.Runner() as runner:
        patched.setattr(asyncio, "sleep", sleep)
        patched.setattr(runner.get_loop(), "time", clock.monotonic)
        return runner.run(work)


both_kinds = pytest.mark.parametrize("pauses", [blocking, on_a_loop])


def test_the_pauses_double_up_to_the_maximum() -> None:
    assert [REQUEST_BACKOFF.pause_s(n) for n in range(1, 8)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert [Backoff.fixed(0.25).pause_s(n) for n in (1, 2, 50)] == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("failures", [1_000, 100_000])
def test_any_number_of_failures_has_a_pause(failures: int) -> None:
    assert REQUEST_BACKOFF.pause_s(failures) == 0.5
    assert math.isfinite(Backoff(0.2, math.inf).pause_s(failures))


@both_kinds
def test_the_last_attempt_begins_before_the_deadline(pauses: Pauses) -> None:
    clock = SetClock()

    assert pauses(100.5, Backoff(0.1, 10.0), clock) == [True, True] + [False] * 8

    assert clock.pauses == [0.1, 0.2]  # a third pause would end after the deadline


@both_kinds
def test_no_attempt_begins_at_the_deadline(pauses: Pauses) -> None:
    clock = SetClock()
    assert not any(pauses(100.25, Backoff.fixed(0.25), clock))
    assert clock.pauses == []


@both_kinds
def test_the_number_of_retries_is_limited(pauses: Pauses) -> None:
    clock = SetClock()
    assert pauses(math.inf, Backoff(1.0, 3.0, max_retries=3), clock) == [True] * 3 + [False] * 7
    assert clock.pauses == [1.0, 2.0, 3.0]


@both_kinds
def test_without_a_deadline_retries_do_not_end(pauses: Pauses) -> None:
    assert all(pauses(math.inf, Backoff.fixed(60), SetClock()))


def test_the_caller_sees_the_next_pause_and_the_end_before_it_pauses() -> None:
    clock = SetClock()
    retries = BlockingRetries(100.5, Backoff(0.1, 10.0), clock)
    assert (retries.next_pause_s, retries.exhausted) == (0.1, False)
    retries.pause()
    retries.pause()
    assert (retries.next_pause_s, retries.exhausted) == (0.4, True)


@pytest.mark.parametrize(
    ("error", "retriable"),
    [(BUSY, True), (FORBIDDEN, False), (LOST, False)],
)
def test_a_lost_lock_and_a_permanent_error_are_not_retried(error: OffsetMgrError, retriable: bool) -> None:
    assert is_retriable(error) is retriable


def raised(error: OffsetMgrError, deadline: float) -> tuple[BaseException | None, list[float]]:
    clock = SetClock()

    async def run() -> BaseException | None:
        retries = Retries(deadline, Backoff.fixed(0.1))
        try:
            await retries.pause_or_raise(error)
        except OffsetMgrError as found:
            return found
        return None

    return with_clock(run(), clock), clock.pauses


def test_pause_or_raise_pauses_after_a_retriable_error_while_time_is_left() -> None:
    assert raised(BUSY, 101) == (None, [0.1])
    assert raised(BUSY, 100.1) == (BUSY, [])
    assert raised(FORBIDDEN, 101) == (FORBIDDEN, [])
    assert raised(LOST, 101) == (LOST, [])
