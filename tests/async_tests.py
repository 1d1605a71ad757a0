"""`async_test`: a test that runs on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec

P = ParamSpec("P")

_TIMEOUT_S: Final = 600.0


def async_test(work: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs the test on an event loop of its own."""

    @wraps(work)
    def run(*args: P.args, **options: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(work(*args, **options), _TIMEOUT_S))

    return run
