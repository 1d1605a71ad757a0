"""A thread that encodes and decodes large messages. During this work the event loop can serve other clients.

The decoding of a request of some megabytes takes hundreds of milliseconds. If the event loop decoded such a request, it
would delay all other clients and the renewal of leases. Decoding in a second thread does not stop the event loop,
because the interpreter switches between the two threads every few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 32 * 1024
"""Messages above this size are encoded and decoded in the thread. The event loop decodes a message of this size within
10 ms."""

_executor: Final = ThreadPoolExecutor(1, thread_name_prefix="offsetmgr-codec")
# The executor has only one thread, so that the event loop competes for the processor with the decoding of only one
# large message at a time.


def in_codec_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Calls ``function`` in the codec thread and returns a future of its result. ``function`` must not use the event
    loop."""
    return asyncio.wrap_future(_executor.submit(function, *args, **kwargs))
