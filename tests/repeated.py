"""`repeated` repeats calls in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def repeated(*steps: Callable[[], object]) -> Iterator[None]:
    """Repeats each step in its own thread until the end of the block, and raises its error there."""
    ended = threading.Event()

    def run(step: Callable[[], object]) -> None:
        while not ended.is_set():
            step()

    with ThreadPoolExecutor(len(steps)) as threads:
        running = [threads.submit(run, step) for step in steps]
        try:
            yield
        finally:
            ended.set()
    for one in running:
        one.result()
