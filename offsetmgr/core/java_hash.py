"""Java's ``String.hashCode``. Kafka uses this hash for two purposes: to choose the partition of ``__consumer_offsets``
for a group, and to compute round-robin assignments."""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """Returns the hash of the UTF-16 code units of ``text`` as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for (unit,) in struct.iter_unpack(">H", units):
        result = (result * 31 + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result
