"""A committed offset in a node: valid numbers, and their text form."""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.core.errors import CorruptData, UsageError

MAX_OFFSET: Final = 2**63 - 1
SURE_DIGITS: Final = len(str(MAX_OFFSET)) - 1
"""Any number with at most this many digits is a valid offset."""

_MOST_DIGITS: Final = 40


def check_offset(offset: int) -> int:
    """Returns the offset, if it is valid. Raises `UsageError`."""
    if not 0 <= offset <= MAX_OFFSET:
        raise UsageError(f"offset {offset}", "is no offset: they go from 0 to 9223372036854775807")
    return offset


def parse_decimal(path: str, data: bytes) -> int:
    """Parses an offset in ASCII decimal. Raises `CorruptData` naming the node."""
    # Only the digits that Long.toString writes and String.toLong reads; int() alone would accept "1_0" and " 7", and
    # reject thousands of digits with a different error.
    if data.isdigit() and len(data) <= _MOST_DIGITS and (offset := int(data)) <= MAX_OFFSET:
        return offset
    raise CorruptData(f"ZooKeeper node {path}", _not_an_offset(data))


def _not_an_offset(data: bytes) -> str:
    if not data:
        return "is empty instead of holding an offset"
    shown = data[:40].decode("ascii", "backslashreplace") + ("..." if len(data) > 40 else "")
    if re.fullmatch(rb"-[0-9]{1,19}", data):
        return f"holds {shown}: a negative number is not a committed offset, and does not mean that there is none"
    if data.isdigit():
        return f"holds {shown}, which is beyond the largest offset"
    return f"holds {shown!r}, which is not a decimal number"
