"""Partitions without a record in a period, according to the cluster: they do not hold the barrier.

The only evidence is that the partition has no record with a time at or after the period's start. If a later record
exists, the cluster's offsets for times do not prove that the period has none: one record whose time is ahead hides the
records after it. Such a partition is not idle; its consumer reaches the later record and reports by itself.
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
    """The evidence that a partition has no record at or after a period's start: *seen* in its log."""

    partition: TopicPartition
    period: Period
    end: int
    """The log's end before the request: any record in the period has this offset or a higher one."""

    def __str__(self) -> str:
        return f"{self.partition}: no record below offset {self.end} is dated {self.period.start_ms} or later"


def look(
    cluster: Cluster, period: Period, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, IdleCheck | OffsetMgrError | None]:
    """For each partition the evidence that it has no record in the period; None if it has, or may have, some; the error
    if the request failed. Raises `Unreachable`, `TimedOut`."""
    asked = sorted(set(partitions))
    # The ends are read first: a record that arrives between the two requests is after the end in the evidence.
    ends = cluster.log_ranges(asked)
    first = cluster.offsets_for_time([tp for tp in asked if not isinstance(ends[tp], OffsetMgrError)], period.start_ms)
    found: dict[TopicPartition, IdleCheck | OffsetMgrError | None] = {}
    for partition in asked:
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
    """For `PeriodCoordinator`'s ``idle``: asks this cluster. A partition whose request failed holds the barrier."""

    def ask(period: Period, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        empty = []
        for partition, found in look(cluster, period, partitions).items():
            if isinstance(found, OffsetMgrError):
                _LOG.warning("period %d: whether %s has records: %s", period.number, partition, found)
            elif found is not None:
                _LOG.info("period %d: idle: %s", period.number, found)
                empty.append(partition)
        return empty

    return ask
