"""Validates committed offsets and parses their decimal form in nodes."""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import CorruptData, UsageError
from offsetmgr.core.model import MAX_OFFSET, NEGATIVE_OFFSET, Committed, is_valid_offset
from offsetmgr.zookeeper.client.jute import NodeData

SAFE_DIGITS: Final = len(str(MAX_OFFSET)) - 1
"""The number of decimal digits up to which every number is a valid offset, so that no comparison is necessary."""

REPAIR_HINT: Final = Advice(
    "to replace or delete it, name its partition in offsets set or offsets delete: {topic} TOPIC:NUMBER"
)
_MAX_DIGITS: Final = 40


def check_offset(offset: int) -> int:
    """Returns the offset if it is valid. Raises `UsageError` otherwise."""
    if not is_valid_offset(offset):
        raise UsageError(f"offset {offset}", f"is not a valid offset (0 to {MAX_OFFSET})")
    return offset


def decimal_commit(node: object) -> Committed | None:
    """Returns the commit in a node whose data is a decimal offset of at most `SAFE_DIGITS` digits. Returns None if the
    node has children or other data, which `parse_decimal` parses or rejects, does not exist or could not be read."""
    if isinstance(node, NodeData) and node[0].isdigit() and len(node[0]) <= SAFE_DIGITS and not node[6]:
        return tuple.__new__(Committed, (int(node[0]), "", None, node[3], node[4]))
    return None


def parse_decimal(path: str, data: bytes, notes: object = None) -> int:  # noqa: ARG001
    """Parses an offset in ASCII decimal. Raises `CorruptData`, which names the node."""
    # Accepts only ASCII digits, because Long.toString writes and String.toLong reads an offset as ASCII digits. int()
    # would also accept "1_0" and " 7", and would raise a different error for thousands of digits.
    if data.isdigit() and len(data) <= _MAX_DIGITS and (offset := int(data)) <= MAX_OFFSET:
        return offset
    raise CorruptData(f"ZooKeeper node {path}", _not_an_offset(data), REPAIR_HINT)


def _not_an_offset(data: bytes) -> str:
    if not data:
        return "is empty and contains no offset"
    shown = data[:40].decode("ascii", "backslashreplace") + ("..." if len(data) > 40 else "")
    if re.fullmatch(rb"-[0-9]{1,19}", data):
        return f"contains {shown}: {NEGATIVE_OFFSET}"
    if data.isdigit():
        return f"contains {shown}, which is beyond the largest offset"
    return f"contains {shown!r}, which is not a decimal number"
