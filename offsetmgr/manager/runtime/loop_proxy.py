"""`LoopProxy`: lets the thread of the standby call functions on the event loop, which owns the state."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LOOP_CHECK_INTERVAL_S = 1.0


class LoopEnded(Exception):
    """The event loop has ended."""


class LoopProxy:
    """Calls functions on the loop from any thread, in the order of the calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def post(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Schedules a call and does not wait for it. Does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: call(*args, **kwargs))

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function and waits for its result, so that the thread does not queue calls faster than the loop
        executes them. Raises the error of the function, or `LoopEnded` if the loop has ended."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def execute() -> None:
            try:
                outcome.set_result(call(*args, **kwargs))
            except BaseException as error:
                outcome.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(execute)
        except RuntimeError as error:
            raise LoopEnded from error
        while True:
            # A TimeoutError of `outcome.result` would be ambiguous, because the called function may raise a
            # TimeoutError too.
            if concurrent.futures.wait([outcome], _LOOP_CHECK_INTERVAL_S).done:
                return outcome.result()
            if self._loop.is_closed():
                raise LoopEnded
