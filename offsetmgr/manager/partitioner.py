"""Maps a group to a partition of the offsets topic by Kafka's rule, so that Kafka's tools look in the right partition.

Pure, apart from a bounded cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from offsetmgr.core.java_hash import java_hash as uncached_java_hash
from offsetmgr.core.java_hash import partition_of_hash

MAX_CACHED_GROUPS: Final = 65_536
"""The number of groups whose hash is cached: about 10 MB for names of the usual length, 25 MB at most."""
MAX_CACHED_NAME_LENGTH: Final = 249
"""The maximum length of a cached name. Longer names are not cached, because a client may send any number of names with
up to 32,767 characters."""


java_hash = lru_cache(MAX_CACHED_GROUPS)(uncached_java_hash)
"""Java's ``String.hashCode``, cached."""


def shard_for(group: str, partitions: int) -> int:
    """Returns the partition of an offsets topic that holds the offsets of a group (see `partition_of_hash`). For a
    manager this partition is the group's shard. ``partitions`` is the number of partitions of the topic.

    >>> shard_for("shop-new", 50)
    7
    """
    hash_code = java_hash(group) if len(group) <= MAX_CACHED_NAME_LENGTH else uncached_java_hash(group)
    return partition_of_hash(hash_code, partitions)
