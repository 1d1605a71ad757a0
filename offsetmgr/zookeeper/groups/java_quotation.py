"""Java's quotation in regular expressions."""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.zookeeper.groups.java_classes import ALPHABET

_NOTHING_MATCHES: Final = r"[^\s\S]"


def _without_quotation(pattern: str) -> tuple[str, list[bool]]:
    """The pattern without ``\\Q`` and ``\\E``, and a flag for each character that was between them."""
    text, quoted = "", []
    at, inside = 0, False
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if not inside and pair == "\\Q":
            inside, at = True, at + 2
        elif inside and pair == "\\E":
            inside, at = False, at + 2
        else:
            taken = pair if pair[0] == "\\" and not inside else pair[0]
            text += taken
            quoted += [inside] * len(taken)
            at += len(taken)
    return text, quoted


def _class_text(characters: frozenset[str]) -> str:
    if not characters:
        return _NOTHING_MATCHES
    if characters == ALPHABET:
        return "."
    return re.escape("".join(characters)) if len(characters) == 1 else f"[{re.escape(''.join(sorted(characters)))}]"
