"""Log ranges: each partition is read once, and again if an offset is outside the range."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, Ranges
from offsetmgr.zookeeper.check.offset_rules import existing

AskRanges: TypeAlias = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, LogRange | OffsetMgrError]]
"""As `offsetmgr.kafka.cluster.base.Cluster.log_ranges`."""


class LogRangeCheck:
    """A cache of ranges. Logs grow, so an offset outside a cached range proves nothing until the range is read again. A
    range read after the offset that does not contain it has never contained it."""

    def __init__(self, ask: AskRanges) -> None:
        self._ask = ask
        self._known: dict[TopicPartition, LogRange | OffsetMgrError] = {}

    def known_for(self, groups: Iterable[GroupFacts], cluster: ClusterFacts) -> Ranges:
        """Returns the ranges, or errors, of all existing partitions in which these groups have offsets."""
        missing: set[TopicPartition] = set()
        doubtful: set[TopicPartition] = set()
        for facts in groups:
            for tp in existing(facts, cluster):
                found = self._known.get(tp)
                if found is None:
                    missing.add(tp)
                elif isinstance(found, LogRange) and not found.start <= facts.offsets[tp].offset <= found.end:
                    doubtful.add(tp)
        if asked := sorted(missing | doubtful):
            try:
                self._known.update(self._ask(asked))
            except OffsetMgrError as error:
                self._known.update(dict.fromkeys(asked, error))
        return self._known
