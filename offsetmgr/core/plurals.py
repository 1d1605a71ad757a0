"""Formats counts for messages."""

from __future__ import annotations


def count_of(number: int, what: str) -> str:
    """Returns the number with its noun in the singular or plural: ``1 group``, ``2 groups``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
