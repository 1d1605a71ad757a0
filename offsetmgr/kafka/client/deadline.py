"""The time that is left until the deadline of a request. Deadlines are times of the event loop's clock."""

from __future__ import annotations

import asyncio

from offsetmgr.core.errors import TimedOut


def remaining(deadline: float, what: str = "Kafka") -> float:
    """Returns the seconds until the deadline. Raises `TimedOut` for ``what`` after it."""
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise TimedOut(what, "the timeout has expired")
    return left
