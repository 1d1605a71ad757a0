"""Handles read positions outside the log, and offsets inside the log that have no records."""

from __future__ import annotations

from collections.abc import Iterable

from offsetmgr.core.errors import OffsetMgrError, ServerError, value_of
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.fetch import FetchedPartition, log_ranges


async def start_of_log(client: Client, partition: TopicPartition, position: int, deadline: float) -> int:
    """Returns the offset at which a reader continues after the leader has rejected its position: the log's start if the
    start has advanced past the position. Returns the position itself if it is inside the log, because the leader has
    changed meanwhile.

    Raises `ServerError` if the log ends before the position, and the errors of the requests.
    """
    found = value_of((await log_ranges(client, [partition], deadline))[partition])
    if position > found.end:
        raise ServerError(
            str(partition),
            f"it ends at {found.end}, but has been read up to {position}: it was truncated, or the topic was recreated",
            "restart this manager, so that it loads the partition again",
        )
    return max(position, found.start)


def is_empty(outcomes: Iterable[FetchedPartition | OffsetMgrError]) -> bool:
    """Returns whether a response contains no bytes of any partition. (A partition without bytes in another response may
    have been omitted because the response was full.)"""
    return not any(isinstance(outcome, FetchedPartition) and outcome.data for outcome in outcomes)


class GapDetector:
    """Detects that the log has no records from a position up to the high watermark, because the log cleaner has removed
    them. An empty response may have other reasons, so the detector waits for a second empty response."""

    def __init__(self) -> None:
        self._empty_at: dict[int, int] = {}

    def end_of_gap(self, partition: int, position: int, high_watermark: int) -> int:
        """Returns the offset at which the reader continues after an empty response."""
        if position >= high_watermark:
            return position
        if self._empty_at.get(partition) == position:
            return high_watermark
        self._empty_at[partition] = position
        return position
