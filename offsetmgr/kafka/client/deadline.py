"""The time that is left until the deadline of a request, and for one of its attempts. Deadlines are times of the event
loop's clock."""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.core.errors import TimedOut

_ATTEMPT_SHARE: Final = 3
MIN_ATTEMPT_S: Final = 1.0


def remaining(deadline: float, what: str = "Kafka") -> float:
    """Returns the seconds until the deadline. Raises `TimedOut` for ``what`` after it."""
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise TimedOut(what, "the timeout has expired")
    return left


def attempt_deadline(deadline: float, wait_s: float = 0.0) -> float:
    """Returns the deadline of an attempt that begins now. Each attempt gets a third of the remaining time, at least
    `MIN_ATTEMPT_S`. Therefore time remains for other attempts if a broker does not respond. ``wait_s`` is the time for
    which the broker may delay its response on purpose."""
    now = asyncio.get_running_loop().time()
    return min(deadline, now + wait_s + max((deadline - now) / _ATTEMPT_SHARE, MIN_ATTEMPT_S))
