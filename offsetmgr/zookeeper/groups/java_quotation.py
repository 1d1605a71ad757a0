"""Removes ``\\Q...\\E`` quotation from Java's regular expressions, and writes character classes in Python's syntax."""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.zookeeper.groups.java_classes import ALPHABET

NO_CHARACTER: Final = r"[^\s\S]"
"""A character class that matches no character."""


def strip_quotation(pattern: str) -> tuple[str, list[bool]]:
    """Returns the pattern without ``\\Q`` and ``\\E``, and for each remaining character whether it was quoted."""
    text, quoted = "", []
    at, inside = 0, False
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if not inside and pair == "\\Q":
            inside, at = True, at + 2
        elif inside and pair == "\\E":
            inside, at = False, at + 2
        else:
            literal = pair if pair[0] == "\\" and not inside else pair[0]
            text += literal
            quoted += [inside] * len(literal)
            at += len(literal)
    return text, quoted


def python_class(characters: frozenset[str]) -> str:
    """Returns a Python pattern that matches one of these characters."""
    if not characters:
        return NO_CHARACTER
    if characters == ALPHABET:
        return "."
    return re.escape("".join(characters)) if len(characters) == 1 else f"[{re.escape(''.join(sorted(characters)))}]"
