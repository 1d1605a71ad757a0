"""The end of background tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels the tasks and waits until they have ended. Ignores None."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    for task in started:
        with contextlib.suppress(asyncio.CancelledError):
            await task
