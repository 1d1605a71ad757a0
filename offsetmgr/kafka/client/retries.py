"""Helpers for retries: backoff, retriable errors and the remaining time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from offsetmgr.core.errors import (
    LockLost,
    OffsetMgrError,
    TimedOut,
)

_INITIAL_BACKOFF_S: Final = 0.02
_MAX_BACKOFF_S: Final = 0.5


def backoff() -> itertools.chain[float]:
    """Returns the endless sequence of pauses between attempts, in seconds. The caller checks the deadline."""
    growing = itertools.takewhile(lambda p: p < _MAX_BACKOFF_S, (_INITIAL_BACKOFF_S * 2**n for n in itertools.count()))
    return itertools.chain(growing, itertools.repeat(_MAX_BACKOFF_S))


def is_retriable(error: OffsetMgrError) -> bool:
    """Returns whether the client should send the same request again. After `LockLost` the client must not repeat the
    request, because it first has to join the group again."""
    return error.retriable and not isinstance(error, LockLost)


def remaining(deadline: float) -> float:
    """Returns the seconds until the deadline. Raises `TimedOut` after it."""
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise TimedOut("Kafka", "the timeout has expired")
    return left
