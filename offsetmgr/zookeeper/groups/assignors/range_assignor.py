"""`RangeAssignor`: assigns, for each topic separately, a run of consecutive partitions to each thread.

Source: kafka.consumer.RangeAssignor of Kafka 0.8.2 to 1.1. Before Kafka 0.8.2, the same code was in
ZookeeperConsumerConnector.
"""

from __future__ import annotations

from collections.abc import Sequence

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of


class RangeAssignor:
    """The default strategy. It sorts partitions by number, and threads by their text (``<member id>-<thread>``). If the
    partitions cannot be divided equally, the first threads get one partition more than the others.
    """

    def assign(self, streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
        """See `Assignor.assign`."""
        threads = threads_of(streams)
        return {
            TopicPartition(topic, partition): thread
            for topic in sorted(threads)
            for partition, thread in _assign_in_runs(sorted(partitions.get(topic, ())), threads[topic])
        }


def _assign_in_runs(items: Sequence[int], threads: Sequence[ThreadId]) -> list[tuple[int, ThreadId]]:
    """Assigns runs of ``len(items) // len(threads)`` items to the threads. The first ``len(items) % len(threads)`` runs
    have one item more."""
    length, longer = divmod(len(items), len(threads))
    assigned: list[tuple[int, ThreadId]] = []
    for position, thread in enumerate(threads):
        start = len(assigned)
        assigned += ((item, thread) for item in items[start : start + length + (position < longer)])
    return assigned
