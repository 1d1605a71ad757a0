"""Splits a sequence of any length into batches, and groups pairs by their first item and partitions by topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
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
