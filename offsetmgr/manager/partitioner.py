"""Which partition of the offsets topic holds a group: Kafka's own rule, so that its tools look in the right place.

Pure, apart from a bounded memo.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from offsetmgr import javahash

MOST_REMEMBERED: Final = 65_536
"""Groups whose hash is remembered; with their names about 10 MB when full."""
_SMALLEST: Final = -(1 << 31)


@lru_cache(MOST_REMEMBERED)
def java_hash(text: str) -> int:
    """``String.hashCode`` of Java, remembered."""
    return javahash.java_hash(text)


def shard_for(group: str, partitions: int) -> int:
    """The partition of a group (``GroupMetadataManager.partitionFor``).

    Kafka's ``Utils.abs`` is the absolute value, except that the smallest hash, which has none in 32 bits, counts as 0.
    (Brokers before 0.8.2 cleared the sign bit instead, which puts every group with a negative hash elsewhere.)
    """
    found = java_hash(group)
    return 0 if found == _SMALLEST else abs(found) % partitions
