"""The end of background tasks of an event loop, and completed futures."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

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
