"""Which partitions have no record in a period, as the cluster knows it: they do not hold the barrier.

What counts as seen is one thing alone: no record of the partition is dated at or after the period's start. Where a
later record follows, the cluster's offsets for times do not prove that none of the period does: one record dated ahead
hides those behind it. Such a partition is not idle; its consumer meets the later record and reports by itself.
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
    """The log's end before it was asked: whatever is dated in the period lies at or after it, and came later."""

    def __str__(self) -> str:
        return f"{self.partition}: no record below offset {self.end} is dated {self.period.start_ms} or later"


def look(
    cluster: Cluster, period: Period, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, IdleCheck | OffsetMgrError | None]:
    """For each partition the evidence that it has no record in the period; None where it has, or may have, some; the
    error where it could not be asked. Raises `Unreachable`, `TimedOut`."""
    asked = sorted(set(partitions))
    # The ends are read first: what comes between the two questions is after the end that the evidence names.
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
    """For `PeriodCoordinator`'s ``idle``: asks this cluster. A partition that could not be asked holds the barrier."""

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
