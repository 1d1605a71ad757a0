"""Splits groups into batches to limit memory, and reads one batch ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from offsetmgr.core.batches import batched

READ_BATCH_GROUPS = 128
"""The number of groups that are read together, which limits the memory of plan and verify."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def read_batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yields batches of at most `READ_BATCH_GROUPS` groups, which are read at once."""
    return batched(items, READ_BATCH_GROUPS)


def prefetch(read: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[tuple[_T, _R]]:
    """Yields each item with the result of ``read``, in order, and calls ``read`` for the next item while the caller
    processes the current item.

    ``read`` runs in a separate thread, one call at a time; ``items`` are consumed in the caller's thread. If ``read``
    fails for an item, the iterator raises the error instead of yielding the item.
    """
    with ThreadPoolExecutor(1, "offsetmgr-read-ahead") as pool:
        current: tuple[_T, Future[_R]] | None = None
        for item in items:
            following = (item, pool.submit(read, item))
            if current is not None:
                yield current[0], current[1].result()
            current = following
        if current is not None:
            yield current[0], current[1].result()
