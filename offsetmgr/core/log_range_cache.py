"""`LogRangeCache` fetches each log range once, and fetches it again if an offset is beyond the cached end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition

FetchLogRanges: TypeAlias = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, LogRange | OffsetMgrError]]
"""Fetches log ranges in bulk, as `offsetmgr.kafka.cluster.base.Cluster.log_ranges` does."""


class LogRangeCache:
    """The log ranges that one run of a command has fetched. The cache also contains errors of single partitions and
    does not fetch these partitions again. Memory grows with the number of partitions, not with the number of offsets.

    Logs grow, so an offset beyond a cached end may be valid. For such an offset the range is fetched again. The new
    range decides whether the offset is valid, because the new range was fetched after the offset was read. An offset
    below a cached start is below the present start too.
    """

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._fetch = fetch
        self._known: dict[TopicPartition, LogRange | OffsetMgrError] = {}
        self.known: Mapping[TopicPartition, LogRange | OffsetMgrError] = MappingProxyType(self._known)
        """The log range, or the error, of each partition that was fetched."""

    def load(
        self, partitions: Iterable[TopicPartition] = (), offsets: Iterable[tuple[TopicPartition, int]] = ()
    ) -> None:
        """Fetches, in one request, the ranges of these partitions and of the partitions of these offsets, unless the
        cache contains them. Raises the errors of the request."""
        known = self._known
        needed = {tp for tp in partitions if tp not in known}
        for tp, offset in offsets:
            found = known.get(tp)
            if found is None or (isinstance(found, LogRange) and offset > found.end):
                needed.add(tp)
        if needed:
            known.update(self._fetch(needed))

    def clear(self) -> None:
        """Removes all ranges, because topics may have been recreated."""
        self._known.clear()
