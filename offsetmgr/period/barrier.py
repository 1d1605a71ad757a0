"""The barrier: the open period, the partitions that must finish the period, and the rule by which the period closes.
Pure.

A period closes when every partition *of that period* has finished it. This set of partitions is fixed when the period
opens. A partition that is added to a topic later takes part from the next period on. A finished partition stays
finished, even if the member that reported it dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.schedule import Period, PeriodSchedule

NewestPeriods: TypeAlias = Mapping[TopicPartition, int]
"""The number of the newest period that each partition has finished. A partition without an entry has not finished any
period."""


class TimePosition(Enum):
    """A record's time relative to the open period."""

    EARLIER = "earlier"
    """The record is late, for one of two reasons: its time is before the open period, or its time is within the open
    period but the partition has already finished the period."""
    OPEN = "open"
    LATER = "later"
    """The partition must wait, for one of two reasons: the record's time is after the open period, or the record's time
    is within the open period but the partition takes part only from the next period on."""


class ReportStatus(Enum):
    """The status of a report that a partition has finished a period."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The partition has already been reported as finished with this period or a later one."""
    LATE = "late"
    """The period was closed before the report."""
    TOO_EARLY = "too early"
    """The period is not open yet, so the partition cannot have finished it."""
    NOT_PARTICIPATING = "not participating"
    """The partition takes part from the next period on."""


@dataclass(frozen=True, slots=True)
class OpenPeriod:
    """The only period that is open, and the partitions that must finish this period."""

    period: Period
    partitions: frozenset[TopicPartition]

    def time_position(self, timestamp_ms: int) -> TimePosition:
        """Returns whether a time, in milliseconds since 1970, is in the period, before it or after it."""
        if timestamp_ms < self.period.start_ms:
            return TimePosition.EARLIER
        return TimePosition.OPEN if timestamp_ms < self.period.end_ms else TimePosition.LATER


def opening(schedule: PeriodSchedule, number: int, partitions: Iterable[TopicPartition]) -> OpenPeriod:
    """Returns the period with this number. Raises `UsageError` if there are no partitions, because a period without
    partitions would close at once."""
    found = frozenset(partitions)
    if not found:
        raise UsageError("a period without partitions", "it would close at once", "check that the topics exist")
    return OpenPeriod(schedule.period(number), found)


def check_report(open_: OpenPeriod, finished: NewestPeriods, partition: TopicPartition, number: int) -> ReportStatus:
    """Returns the status of the report "``partition`` has finished period ``number``", given the earlier reports."""
    if number > open_.period.number:
        return ReportStatus.TOO_EARLY
    if number <= finished.get(partition, -1):
        return ReportStatus.DUPLICATE
    if number < open_.period.number:
        return ReportStatus.LATE
    return ReportStatus.ACCEPTED if partition in open_.partitions else ReportStatus.NOT_PARTICIPATING


def lagging_partitions(open_: OpenPeriod, finished: NewestPeriods) -> list[TopicPartition]:
    """Returns the partitions that have not finished the open period, sorted. The period can close when the list is
    empty."""
    number = open_.period.number
    return sorted(partition for partition in open_.partitions if finished.get(partition, -1) < number)


def merged(reports: Iterable[NewestPeriods]) -> dict[TopicPartition, int]:
    """Merges the reports of all members. Returns for each partition the newest period that it has finished."""
    found: dict[TopicPartition, int] = {}
    for report in reports:
        for partition, number in report.items():
            if number > found.get(partition, -1):
                found[partition] = number
    return found
