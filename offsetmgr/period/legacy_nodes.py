"""Recognises the original coordinator's nodes, which are plain text without a version, and reads the time in
``coordinator``. Pure.

The members of the original coordinator write the nodes unconditionally, so they must not run together with offsetmgr's
members. Source: the period coordinator's document, "shared storage".
"""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.core.errors import CorruptData

_TIME: Final = re.compile("[0-9]{1,19}")


def is_legacy(data: bytes) -> bool:
    """Returns whether the original coordinator wrote a node: its content is not empty and does not begin with ``{``."""
    return bool(data.strip()) and not data.lstrip().startswith(b"{")


def parse_limit(path: str, data: bytes) -> int | None:
    """Parses ``coordinator``. Returns the end of the open period in ms; None if the node is empty or contains 0, which
    means that no end was ever set.

    Raises `CorruptData`.
    """
    text = _text(path, data)
    if text and not _TIME.fullmatch(text):
        raise _corrupt(path, f"{text[:40]!r} is not a time in milliseconds")
    return int(text) or None if text else None


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise _corrupt(path, "is not UTF-8") from error


def _corrupt(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why)
