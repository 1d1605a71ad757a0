"""`LogRanges`: fetches the log range of each partition once, and again if an offset is outside of it."""

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
    """The cached log ranges of a run.

    Logs grow, so an offset outside of a cached range may be valid. In this case the range is fetched again; because the
    offset was read before, the new range decides.
    """

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._fetch = fetch
        self._cached: dict[TopicPartition, LogRange | OffsetMgrError] = {}

    def ranges_for(self, groups: Iterable[GroupFacts], cluster: ClusterFacts) -> Ranges:
        """Returns the log range, or the error, of each partition in which these groups have offsets.

        The result may also contain other partitions. If the whole request fails, its error is the result for every
        requested partition.
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
