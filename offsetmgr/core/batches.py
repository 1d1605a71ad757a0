"""Splits a sequence of any length into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yields lists of at most ``size`` items, lazily."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
