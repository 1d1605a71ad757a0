"""Bulk work in batches: what bounds the memory, and one batch read ahead of the one being worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

READ_GROUPS = 128
"""Groups that are read and decided together: the memory that planning and verifying take."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Lists of at most ``size`` items, lazily."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def prefetch(read: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[tuple[_T, _R]]:
    """Each item with what ``read`` gave for it, in order; the next one is being read while the caller works.

    ``read`` runs in one thread, never twice at once; ``items`` are taken in the caller's. Its failure is raised when
    its item's turn comes.
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
