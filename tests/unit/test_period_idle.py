"""The evidence that a partition has no records in a period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.period.idle_check import IdleCheck, find_idle, idle_partitions
from offsetmgr.period.schedule import Period

PERIOD = Period(3, 1_300, 1_400)
EMPTY, OLD, WITHIN, LATER, AHEAD, GONE = (TopicPartition("t", n) for n in range(6))
BROKEN = UnknownTopicOrPartition("t-5", "is not there")


class Logs:
    """A cluster whose partitions have records with these timestamps, in the order of their offsets."""

    def __init__(self, records: Mapping[TopicPartition, list[int]]) -> None:
        self._records = records

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        return {tp: LogRange(0, len(self._records[tp])) if tp in self._records else BROKEN for tp in partitions}

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        return {
            tp: next((at for at, time in enumerate(self._records[tp]) if time >= timestamp_ms), None)
            for tp in partitions
        }


RECORDS = {
    EMPTY: [],
    OLD: [1_100, 1_299],
    WITHIN: [1_299, 1_300],
    LATER: [1_299, 1_400],
    AHEAD: [1_100, 9_000, 1_350],
}
LOGS = cast(Cluster, Logs(RECORDS))


def test_only_a_partition_without_any_record_since_the_start_is_idle() -> None:
    assert find_idle(LOGS, PERIOD, [*RECORDS, GONE]) == {
        EMPTY: IdleCheck(EMPTY, PERIOD, 0),
        OLD: IdleCheck(OLD, PERIOD, 2),
        WITHIN: None,
        LATER: None,  # its consumer reads the later record, and reports
        AHEAD: None,  # the record with the late time hides the next one from the search by time
        GONE: BROKEN,
    }
    assert str(IdleCheck(OLD, PERIOD, 2)) == "t-1: no record below offset 2 has a time of 1300 ms or later"


def test_an_unreadable_partition_does_not_count_as_idle() -> None:
    assert list(idle_partitions(LOGS)(PERIOD, [GONE, OLD, WITHIN])) == [OLD]
