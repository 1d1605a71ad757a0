"""API keys and messages of requests to a `MemoryListener`, and commits that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from memory_listener import MemoryListener

COMMIT, FETCH, FIND_COORDINATOR, API_VERSIONS = 8, 9, 10, 18


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def block_commits(listening: MemoryListener) -> Callable[[], None]:
    """Blocks commits from now on. Returns a function that releases them."""

    async def make() -> asyncio.Event:
        return asyncio.Event()

    event = listening.backend.commits_allowed = listening.run(make())

    def allow() -> None:
        listening.loop.call_soon_threadsafe(event.set)

    return allow


def fetch_message(group: str) -> dict[str, Any]:
    return {"group_id": group, "topics": None}
