"""Formats counts, lists and names for messages."""

from __future__ import annotations

from collections.abc import Iterable


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


def printable(text: str) -> str:
    """Returns the text with escapes in place of control characters. A name with control characters could otherwise
    clear a terminal, change its title or forge a message."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
