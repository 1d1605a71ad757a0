"""`LogRanges`: fetches the log range of each partition once, and again if an offset is outside of the fetched range."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, Ranges
from offsetmgr.zookeeper.check.offset_rules import partitions_with_log

FetchLogRanges: TypeAlias = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, LogRange | OffsetMgrError]]
"""Fetches log ranges, as `offsetmgr.kafka.cluster.base.Cluster.log_ranges` does."""


class LogRanges:
    """The log ranges that one run of the check has fetched.

    Logs grow, so an offset outside of a cached range may be valid. For such an offset the range is fetched again. The
    new range decides whether the offset is valid, because the new range was fetched after the offset was read.
    """

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._fetch = fetch
        self._cached: dict[TopicPartition, LogRange | OffsetMgrError] = {}

    def ranges_for(self, groups: Iterable[GroupFacts], cluster: ClusterFacts) -> Ranges:
        """Returns the log range, or the error, of each partition in which these groups have offsets.

        The result may also contain other partitions. If the whole request fails, the result for each requested
        partition is the request's error.
        """
        missing: set[TopicPartition] = set()
        outdated: set[TopicPartition] = set()
        for facts in groups:
            for tp in partitions_with_log(facts, cluster):
                found = self._cached.get(tp)
                if found is None:
                    missing.add(tp)
                elif isinstance(found, LogRange) and not found.start <= facts.offsets[tp].offset <= found.end:
                    outdated.add(tp)
        if needed := sorted(missing | outdated):
            try:
                self._cached.update(self._fetch(needed))
            except OffsetMgrError as error:
                self._cached.update(dict.fromkeys(needed, error))
        return self._cached
