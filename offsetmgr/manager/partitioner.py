"""Which partition of the offsets topic holds a group: Kafka's own rule, so that its tools look in the right place.

Pure, apart from a bounded memo.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from offsetmgr.core.java_hash import java_hash as uncached_java_hash

MOST_REMEMBERED: Final = 65_536
"""Groups whose hash is remembered; with names of the usual length about 10 MB when full, and 25 MB at most."""
LONGEST_REMEMBERED: Final = 249
"""Characters of the longest name whose hash is remembered: a client may ask for any number of names of 32,767."""
_SMALLEST: Final = -(1 << 31)


java_hash = lru_cache(MOST_REMEMBERED)(uncached_java_hash)
"""``String.hashCode`` of Java, remembered."""


def shard_for(group: str, partitions: int) -> int:
    """The partition of a group (``GroupMetadataManager.partitionFor``).

    Kafka's ``Utils.abs`` is the absolute value, except that the smallest hash, which has none in 32 bits, counts as 0.
    (Brokers before 0.8.2 cleared the sign bit instead, which puts every group with a negative hash elsewhere.)
    """
    found = java_hash(group) if len(group) <= LONGEST_REMEMBERED else uncached_java_hash(group)
    return 0 if found == _SMALLEST else abs(found) % partitions
