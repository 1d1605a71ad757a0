"""Finds idle partitions, which have no record in a period. The leader reports idle partitions as finished.

A partition counts as idle only if its log has no record with a time at or after the period's start. A ListOffsets
request with a time returns only the first record with this time or a later time. If this record is later than the
period, records of the period may still follow at higher offsets, so the partition does not count as idle. The
partition's consumer reads the later record and then reports the partition as finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.period.schedule import Period

_LOG: Final = logging.getLogger("offsetmgr.period")


def idle_partitions(
    cluster: KafkaCluster,
) -> Callable[[Period, Collection[TopicPartition]], Collection[TopicPartition]]:
    """Returns the function for `CoordinatorOptions.idle` that checks partitions in this cluster. If the check of a
    partition fails, the partition does not count as idle. The function raises `Unreachable`, `TimedOut`.

    Example::

        from offsetmgr import KafkaCluster
        from offsetmgr.period import CoordinatorOptions, Period, TopicPartition, idle_partitions

        with KafkaCluster("h1:9092") as cluster:
            options = CoordinatorOptions(idle=idle_partitions(cluster), grace_ms=60_000)
            find = idle_partitions(cluster)
            print(find(Period(0, 0, 3_600_000), [TopicPartition("orders", 0)]))
    """

    def idle_of(period: Period, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        requested = sorted(set(partitions))
        # Read the log end offsets first: a record that arrives between the two requests is not below the end.
        ends = cluster.log_ranges(requested)
        readable = [tp for tp in requested if not isinstance(ends[tp], OffsetMgrError)]
        first = cluster.offsets_for_time(readable, period.start_ms)
        idle = []
        for partition in requested:
            end = ends[partition]
            offset = end if isinstance(end, OffsetMgrError) else first[partition]
            if isinstance(offset, OffsetMgrError):
                _LOG.warning("period %d: cannot check whether %s is idle: %s", period.number, partition, offset)
            elif offset is None and isinstance(end, LogRange):
                why = f"no record below offset {end.end} has a time of {period.start_ms} ms or later"
                _LOG.info("period %d: idle partition: %s: %s", period.number, partition, why)
                idle.append(partition)
        return idle

    return idle_of
