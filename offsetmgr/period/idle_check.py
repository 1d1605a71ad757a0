"""Finds idle partitions, which have no record in a period. The leader reports idle partitions as finished.

A partition counts as idle only if its log has no record with a time at or after the period's start. A ListOffsets
request with a time returns only the first record with this time or a later time. If this record is later than the
period, records of the period may still follow at higher offsets, so the partition does not count as idle. The
partition's consumer reads the later record and then reports the partition as finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.period.schedule import Period

_LOG: Final = logging.getLogger("offsetmgr.period")


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """The evidence that a partition has no record with a time at or after a period's start."""

    partition: TopicPartition
    period: Period
    end: int
    """The log end offset before the check. All records below this offset are earlier than the period."""

    def __str__(self) -> str:
        return f"{self.partition}: no record below offset {self.end} has a time of {self.period.start_ms} ms or later"


def find_idle(
    cluster: Cluster, period: Period, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, IdleCheck | OffsetMgrError | None]:
    """Returns one value for each partition: the evidence that the partition has no record in the period, `None` if the
    partition may have a record in the period, or the error if the request failed. Raises `Unreachable`, `TimedOut`."""
    requested = sorted(set(partitions))
    # Read the log end offsets first, so that the evidence does not cover a record that arrives between the two
    # requests.
    ends = cluster.log_ranges(requested)
    first = cluster.offsets_for_time(
        [tp for tp in requested if not isinstance(ends[tp], OffsetMgrError)], period.start_ms
    )
    found: dict[TopicPartition, IdleCheck | OffsetMgrError | None] = {}
    for partition in requested:
        end = ends[partition]
        if isinstance(end, OffsetMgrError):
            found[partition] = end
            continue
        offset = first[partition]
        if isinstance(offset, OffsetMgrError):
            found[partition] = offset
        else:
            found[partition] = IdleCheck(partition, period, end.end) if offset is None else None
    return found


def idle_partitions(cluster: Cluster) -> Callable[[Period, Collection[TopicPartition]], Collection[TopicPartition]]:
    """Returns the function for `CoordinatorOptions.idle` that checks partitions in this cluster. If the check of a
    partition fails, the partition does not count as idle.

    Example::

        from offsetmgr import KafkaCluster
        from offsetmgr.period import CoordinatorOptions, Period, TopicPartition, idle_partitions

        with KafkaCluster("h1:9092") as cluster:
            options = CoordinatorOptions(idle=idle_partitions(cluster), grace_ms=60_000)
            find = idle_partitions(cluster)
            print(find(Period(0, 0, 3_600_000), [TopicPartition("orders", 0)]))
    """

    def idle_of(period: Period, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        idle = []
        for partition, found in find_idle(cluster, period, partitions).items():
            if isinstance(found, OffsetMgrError):
                _LOG.warning("period %d: cannot check whether %s is idle: %s", period.number, partition, found)
            elif found is not None:
                _LOG.info("period %d: idle partition: %s", period.number, found)
                idle.append(partition)
        return idle

    return idle_of
