"""Range: for each topic separately, a run of consecutive partitions for each thread.

Source: kafka.consumer.RangeAssignor of 0.8.2 to 1.1; before that the same code was in ZookeeperConsumerConnector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of

Item = TypeVar("Item")


class RangeAssignor:
    """The default. Partitions sort by number, threads by their text. If the division leaves a remainder, the first
    threads get one more. (A document that rounds up for all threads contradicts its own example.)"""

    name: Final = "range"

    def assign(self, streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
        """See `Assignor.assign`."""
        threads = threads_of(streams)
        return {
            TopicPartition(topic, partition): thread
            for topic in sorted(threads)
            for partition, thread in dealt_in_runs(sorted(partitions.get(topic, ())), threads[topic])
        }


def dealt_in_runs(items: Sequence[Item], threads: Sequence[ThreadId]) -> list[tuple[Item, ThreadId]]:
    """Pairs each item with its thread: runs of equal length, the first ``len(items) % len(threads)`` longer by one."""
    each, longer = divmod(len(items), len(threads))
    dealt: list[tuple[Item, ThreadId]] = []
    for position, thread in enumerate(threads):
        start = len(dealt)
        dealt += ((item, thread) for item in items[start : start + each + (position < longer)])
    return dealt
