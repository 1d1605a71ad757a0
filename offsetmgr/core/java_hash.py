"""``String.hashCode`` of Java, on which Kafka builds: where a group's offsets are, how round-robin deals."""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """Over UTF-16 code units, not characters, in 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for (unit,) in struct.iter_unpack(">H", units):
        result = (result * 31 + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result
