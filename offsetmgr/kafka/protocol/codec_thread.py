"""One thread that decodes and encodes large messages, so that the event loop serves other clients meanwhile.

A request of some megabytes takes hundreds of milliseconds to decode. On the event loop, no other client would be served
and no lease renewed during that time. The interpreter interrupts a second thread every few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 32 * 1024
"""A message above this size goes to the thread. The event loop decodes so many bytes within 10 ms."""

_executor: Final = ThreadPoolExecutor(1, thread_name_prefix="offsetmgr-codec")
# A single thread: large requests wait for one another, and other clients share the processor with one of them only.


def in_codec_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Calls ``function``, which must not touch the event loop, in the codec thread; returns a future of its result."""
    return asyncio.wrap_future(_executor.submit(function, *args, **kwargs))
