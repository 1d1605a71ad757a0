"""Splits a sequence of any length into batches, and groups pairs by their first item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yields lists of at most ``size`` items, lazily."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def by_key(pairs: Iterable[tuple[_K, _T]]) -> dict[_K, list[_T]]:
    """Returns the second items of the pairs by the first items, both in the order of the pairs."""
    found: dict[_K, list[_T]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found
