"""`RoundRobinAssignor`: sorts the partitions of all topics by hash, and assigns them to the threads in rotation.

Source: kafka.consumer.RoundRobinAssignor of Kafka 0.10.2 to 1.1. The version of Kafka 0.8.2 to 0.10.1 rejects groups
whose members do not all consume the same topics. KAFKA-2434 removed this check.
"""

from __future__ import annotations

from offsetmgr.core.java_hash import java_hash
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of


class RoundRobinAssignor:
    """The round-robin strategy of Kafka 0.10.2 and later. If the next thread does not consume the partition's topic,
    this thread is skipped.

    The strategy sorts partitions by ``String.hashCode`` of ``[topic,partition]``. Partitions of different topics can
    have the same hash, for example those of ``Aa`` and ``BB``. Kafka assigns partitions with equal hashes in the order
    of a hash table. This order depends on the order in which ZooKeeper lists the members. This class does not receive
    the list of members from ZooKeeper, so it sorts partitions with equal hashes by name.
    """

    def assign(self, streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
        """See `Assignor.assign`."""
        consuming = {topic: frozenset(threads) for topic, threads in threads_of(streams).items()}
        all_threads = sorted(frozenset[ThreadId]().union(*consuming.values()), key=str)
        found: dict[TopicPartition, ThreadId] = {}
        turn = 0
        for partition in _sorted_by_hash(consuming, partitions):
            while all_threads[turn % len(all_threads)] not in consuming[partition.topic]:
                turn += 1
            found[partition] = all_threads[turn % len(all_threads)]
            turn += 1
        return dict(sorted(found.items()))


def _sorted_by_hash(topics: dict[str, frozenset[ThreadId]], partitions: PartitionsOfTopics) -> list[TopicPartition]:
    all_partitions = (TopicPartition(topic, number) for topic in topics for number in partitions.get(topic, ()))
    return sorted(all_partitions, key=lambda one: (_hash(one), one))


def _hash(partition: TopicPartition) -> int:
    return java_hash(f"[{partition.topic},{partition.partition}]")
