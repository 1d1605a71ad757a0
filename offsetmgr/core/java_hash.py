"""Java's ``String.hashCode``. Kafka uses this hash for two purposes: to choose the partition of ``__consumer_offsets``
for a group, and to compute round-robin assignments."""

from __future__ import annotations

import struct
from typing import Final

_MIN_INT32: Final = -(1 << 31)


def java_hash(text: str) -> int:
    """Returns the hash of the UTF-16 code units of ``text`` as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for (unit,) in struct.iter_unpack(">H", units):
        result = (result * 31 + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def partition_of_hash(hash_code: int, partitions: int) -> int:
    """Returns the partition of an offsets topic for a group with this hash, as ``GroupMetadataManager.partitionFor``
    does.

    Kafka's ``Utils.abs`` is the absolute value, with one exception: the smallest hash has no absolute value in 32 bits
    and counts as 0. (Brokers before Kafka 0.8.2 cleared the sign bit instead, which results in another partition for
    every negative hash.)
    """
    return 0 if hash_code == _MIN_INT32 else abs(hash_code) % partitions
