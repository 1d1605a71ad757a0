"""`LogRangeCache` fetches each log range once, and again if an offset is beyond the cached end."""

from __future__ import annotations

from collections.abc import Collection

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.log_range_cache import LogRangeCache
from offsetmgr.core.model import LogRange, TopicPartition

ORDERS = [TopicPartition("orders", number) for number in range(3)]


class GrowingLogs:
    """The log of partition 2 is missing. The other logs grow by 50 offsets between two requests."""

    def __init__(self) -> None:
        self.requests: list[set[TopicPartition]] = []

    def log_ranges(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        self.requests.append(set(partitions))
        known = LogRange(10, 50 * len(self.requests))
        return {tp: UnknownTopicOrPartition(str(tp)) if tp.partition == 2 else known for tp in partitions}


def test_each_range_is_fetched_once() -> None:
    logs = GrowingLogs()
    cache = LogRangeCache(logs.log_ranges)

    cache.load(ORDERS[:1], [(ORDERS[1], 50)])
    cache.load(ORDERS[:2], [(ORDERS[0], 20), (ORDERS[0], 30)])

    assert logs.requests == [{ORDERS[0], ORDERS[1]}]
    assert cache.known == {ORDERS[0]: LogRange(10, 50), ORDERS[1]: LogRange(10, 50)}


def test_a_range_is_fetched_again_if_an_offset_is_beyond_its_end() -> None:
    logs = GrowingLogs()
    cache = LogRangeCache(logs.log_ranges)
    cache.load(ORDERS[:2])

    cache.load(offsets=[(ORDERS[0], 50), (ORDERS[1], 51)])

    assert logs.requests[1:] == [{ORDERS[1]}]
    assert cache.known == {ORDERS[0]: LogRange(10, 50), ORDERS[1]: LogRange(10, 100)}


def test_a_range_is_not_fetched_again_for_an_offset_below_its_start() -> None:
    logs = GrowingLogs()
    cache = LogRangeCache(logs.log_ranges)
    cache.load(ORDERS[:1])

    cache.load(offsets=[(ORDERS[0], 9)])

    assert len(logs.requests) == 1


def test_the_error_of_a_partition_is_kept() -> None:
    logs = GrowingLogs()
    cache = LogRangeCache(logs.log_ranges)

    cache.load(ORDERS)
    cache.load(offsets=[(ORDERS[2], 1_000)])

    assert len(logs.requests) == 1
    assert isinstance(cache.known[ORDERS[2]], UnknownTopicOrPartition)


def test_a_cleared_cache_fetches_all_ranges_again() -> None:
    logs = GrowingLogs()
    cache = LogRangeCache(logs.log_ranges)
    cache.load(ORDERS[:1])

    cache.clear()
    assert cache.known == {}
    cache.load(ORDERS[:1])

    assert cache.known == {ORDERS[0]: LogRange(10, 100)}
