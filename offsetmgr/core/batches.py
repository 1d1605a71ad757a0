"""Splits a sequence of any length into batches, groups pairs by their first item and partitions by topic, and calls
functions at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextvars import Context

    from offsetmgr.core.model import TopicPartition

_K = TypeVar("_K")
_T = TypeVar("_T")


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yields lists of at most ``size`` items, lazily."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def batched_by_size(items: Iterable[_T], size_of: Callable[[_T], int], max_size: int) -> Iterator[list[_T]]:
    """Yields lists of items whose sizes have a sum of at most ``max_size``, lazily. An item of a larger size forms a
    list by itself."""
    batch: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and total + size > max_size:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def by_key(pairs: Iterable[tuple[_K, _T]]) -> dict[_K, list[_T]]:
    """Returns the second items of the pairs by the first items, both in the order of the pairs."""
    found: dict[_K, list[_T]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


def by_topic(values: Mapping[TopicPartition, _T]) -> dict[str, dict[str, _T]]:
    """Returns the values of partitions as ``{"topic": {"partition": value}}``, sorted by topic and partition."""
    found: dict[str, dict[str, _T]] = {}
    for (topic, partition), value in sorted(values.items(), key=lambda item: item[0]):
        found.setdefault(topic, {})[str(partition)] = value
    return found


def in_threads(calls: Iterable[Callable[[], _T]]) -> list[Future[_T]]:
    """Starts each call in a thread of its own, with the context variables of this one, and returns the results to come.
    The threads are daemons, so that Ctrl-C and the end of the process do not wait for a server that does not
    respond."""
    import threading
    from concurrent.futures import Future
    from contextvars import copy_context

    def run(future: Future[_T], call: Callable[[], _T], context: Context) -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:  # the caller gets it from the future
            future.set_exception(error)

    found = [(Future[_T](), call) for call in calls]
    for future, call in found:
        threading.Thread(target=run, args=(future, call, copy_context()), daemon=True).start()
    return [future for future, _ in found]
