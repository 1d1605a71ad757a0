"""Formats counts, lists, names and bytes for messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

SHOWN: Final = 20
"""Maximum number of printed lines of one kind. One more line replaces all further lines."""


def count_of(number: int, what: str) -> str:
    """Returns the number with its noun in the singular or plural: ``1 group``, ``2 groups``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def list_of(items: Iterable[object], limit: int, separator: str = ", ") -> str:
    """Returns the first ``limit`` items, and the number of the others: ``a, b and 2 more``. With another separator,
    the number follows it: ``a; b; and 2 more``."""
    texts = [str(item) for item in items]
    shown = separator.join(texts[:limit])
    if len(texts) <= limit:
        return shown
    return f"{shown}{' ' if separator == ', ' else separator}and {len(texts) - limit:,} more"


def runs_of_numbers(numbers: Iterable[int]) -> str:
    """Returns the numbers in ascending order, with neighbours as runs: ``0-3,7``."""
    neighbours = groupby(enumerate(sorted(set(numbers))), key=lambda item: item[1] - item[0])
    runs = ([number for _, number in run] for _, run in neighbours)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def printable(text: str) -> str:
    """Returns the text with escapes in place of control characters. A name with control characters could otherwise
    clear a terminal, change its title or forge a message."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def raw_json(data: bytes | None) -> Any:
    """Returns bytes of an unknown format as a JSON value: as text if the bytes are valid UTF-8, else as hexadecimal
    digits."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
