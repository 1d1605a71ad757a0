"""Round-robin strategies: sort the partitions of all topics by hash, and assign them to the threads in rotation.

Source: kafka.consumer.RoundRobinAssignor of Kafka 0.10.2 to 1.1, and of Kafka 0.8.2 to 0.10.1. The older version
rejects groups whose members do not all consume the same topics. KAFKA-2434 removed this check.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.errors import UnequalSubscriptions
from offsetmgr.core.java_hash import java_hash
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of


class RoundRobinAssignor:
    """The round-robin strategy of Kafka 0.10.2 and later. If the next thread does not consume the partition's topic,
    this thread is skipped.

    The strategy sorts partitions by ``String.hashCode`` of ``[topic,partition]``. Partitions of different topics can
    have the same hash, for example those of ``Aa`` and ``BB``. Kafka assigns partitions with equal hashes in the order
    of a hash table. This order depends on the order in which ZooKeeper lists the members. This class does not receive
    the list of members from ZooKeeper, so it sorts partitions with equal hashes by name. See
    `partitions_with_equal_hash`.
    """

    name: Final = "roundrobin"

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


class EqualRoundRobinAssignor:
    """The round-robin strategy of Kafka 0.8.2 to 0.10.1. It computes the same assignment as `RoundRobinAssignor`, but
    rejects unequal subscriptions.

    All members must consume the same topics, and each member must have the same number of streams for each of its
    topics.
    """

    name: Final = "roundrobin-0.8.2"

    def assign(self, streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
        """See `Assignor.assign`. Raises `UnequalSubscriptions`, which names the members whose subscriptions differ."""
        _check_equal(streams)
        return RoundRobinAssignor().assign(streams, partitions)


def partitions_with_equal_hash(topics: PartitionsOfTopics) -> list[tuple[TopicPartition, ...]]:
    """Returns sets of partitions of different topics; the partitions of a set have the same hash. Kafka does not define
    the order of the partitions in a set. Usually no partitions have the same hash."""
    by_hash: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for topic, numbers in topics.items():
        for number in numbers:
            by_hash[_hash(TopicPartition(topic, number))].append(TopicPartition(topic, number))
    return sorted(tuple(sorted(alike)) for alike in by_hash.values() if len({one.topic for one in alike}) > 1)


def _sorted_by_hash(topics: dict[str, frozenset[ThreadId]], partitions: PartitionsOfTopics) -> list[TopicPartition]:
    all_partitions = (TopicPartition(topic, number) for topic in topics for number in partitions.get(topic, ()))
    return sorted(all_partitions, key=lambda one: (_hash(one), one))


def _hash(partition: TopicPartition) -> int:
    return java_hash(f"[{partition.topic},{partition.partition}]")


def _check_equal(streams: StreamsOfMembers) -> None:
    threads_of(streams)
    consuming = {member: topics for member, topics in sorted(streams.items()) if topics}
    common_topics = _most_common_topics(consuming)
    differences = {member: what for member, topics in consuming.items() if (what := _difference(topics, common_topics))}
    if differences:
        differing = "; ".join(f"{member} {what}" for member, what in differences.items())
        raise UnequalSubscriptions(
            "strategy roundrobin-0.8.2",
            f"needs equal subscriptions, but {differing}",
            "members of 0.10.2 and later accept unequal subscriptions: strategy roundrobin",
            members=tuple(differences),
        )


def _most_common_topics(streams: StreamsOfMembers) -> frozenset[str]:
    counted = Counter(frozenset(topics) for topics in streams.values())
    return max(counted, key=lambda topics: (counted[topics], sorted(topics)), default=frozenset())


def _difference(topics: Mapping[str, int], common_topics: frozenset[str]) -> str:
    """Describes how a subscription differs from the most common subscription. Returns an empty string if the
    subscriptions do not differ."""
    if missing := sorted(common_topics - topics.keys()):
        return f"lacks {', '.join(missing)}"
    if more := sorted(topics.keys() - common_topics):
        return f"also has {', '.join(more)}"
    if len(set(topics.values())) > 1:
        return "has " + ", ".join(f"{count} streams of {topic}" for topic, count in sorted(topics.items()))
    return ""
