"""The partition assignment strategies of the old consumer. Pure: no I/O, no clock.

Every member computes the whole assignment from the nodes in ZooKeeper, and claims the partitions that are assigned to
this member. All members must compute the same assignment, so each strategy returns exactly the result of Kafka's code.
The result does not depend on the order of the items in the given mappings.

Source: kafka.consumer.ConsumerThreadId, TopicCount, ZkUtils.getConsumersPerTopic of Kafka 0.10.2; RangeAssignor of
Kafka 0.8.2 to 1.1 (before Kafka 0.8.2, the same code was in ZookeeperConsumerConnector); RoundRobinAssignor of Kafka
0.10.2 to 1.1. The round-robin strategy of Kafka 0.8.2 to 0.10.1 rejects groups whose members do not all consume the
same topics. KAFKA-2434 removed this check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.errors import AssignmentRefused
from offsetmgr.core.java_hash import java_hash
from offsetmgr.core.model import TopicPartition

StreamsOfMembers: TypeAlias = Mapping[str, Mapping[str, int]]
"""Member id -> topic -> number of streams. If a member subscribes by a pattern, its topics are the topics that the
pattern selects."""
PartitionsOfTopics: TypeAlias = Mapping[str, Sequence[int]]
"""Topic -> the numbers of its partitions, in any order."""


class ThreadId(NamedTuple):
    """One stream of one member. Owner nodes contain it as the text ``<member id>-<thread>``.

    As in Kafka, threads are sorted by this text: ``c-10`` comes before ``c-2``.
    """

    member_id: str
    thread: int

    def __str__(self) -> str:
        return f"{self.member_id}-{self.thread}"


Assignor: TypeAlias = Callable[[StreamsOfMembers, PartitionsOfTopics], dict[TopicPartition, ThreadId]]
"""A strategy (``partition.assignment.strategy``). It assigns every partition of each consumed topic to a thread; the
result is sorted by partition, and omits topics without partitions or consumers. Raises `AssignmentRefused`."""


def _threads_of(streams: StreamsOfMembers) -> dict[str, list[ThreadId]]:
    """Returns the sorted threads that consume each topic.

    Raises `AssignmentRefused` if a subscription has no streams. Kafka asserts that each subscription has at least one
    stream, so a member that reads a registration without streams cannot rebalance.
    """
    found: dict[str, list[ThreadId]] = {}
    for member_id, topics in streams.items():
        for topic, count in topics.items():
            if count < 1:
                raise AssignmentRefused(
                    f"member {member_id}", f"has {count} streams of {topic}", "a member needs at least one stream"
                )
            found.setdefault(topic, []).extend(ThreadId(member_id, thread) for thread in range(count))
    return {topic: sorted(threads, key=str) for topic, threads in found.items()}


def assign_ranges(streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
    """The default strategy: assigns, for each topic separately, a run of consecutive partitions to each thread.

    Partitions are sorted by number, and threads by their text. If the partitions cannot be divided equally, the first
    threads get one partition more than the others.
    """
    assigned: dict[TopicPartition, ThreadId] = {}
    for topic, threads in sorted(_threads_of(streams).items()):
        numbers = sorted(partitions.get(topic, ()))
        length, longer = divmod(len(numbers), len(threads))
        start = 0
        for position, thread in enumerate(threads):
            end = start + length + (position < longer)
            assigned.update((TopicPartition(topic, number), thread) for number in numbers[start:end])
            start = end
    return assigned


def assign_round_robin(streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
    """The round-robin strategy of Kafka 0.10.2 and later: sorts the partitions of all topics by hash, and assigns them
    to the threads in rotation. If the next thread does not consume the partition's topic, this thread is skipped.

    The hash is ``String.hashCode`` of ``[topic,partition]``. Partitions of different topics can have the same hash, for
    example those of ``Aa`` and ``BB``. Kafka assigns partitions with equal hashes in the order of a hash table. This
    order depends on the order in which ZooKeeper lists the members. This function does not receive the list of members
    from ZooKeeper, so it sorts partitions with equal hashes by name.
    """
    consuming = {topic: frozenset(threads) for topic, threads in _threads_of(streams).items()}
    all_threads = sorted(frozenset[ThreadId]().union(*consuming.values()), key=str)
    all_partitions = (TopicPartition(topic, number) for topic in consuming for number in partitions.get(topic, ()))
    found: dict[TopicPartition, ThreadId] = {}
    turn = 0
    for partition in sorted(all_partitions, key=lambda one: (java_hash(f"[{one.topic},{one.partition}]"), one)):
        while all_threads[turn % len(all_threads)] not in consuming[partition.topic]:
            turn += 1
        found[partition] = all_threads[turn % len(all_threads)]
        turn += 1
    return dict(sorted(found.items()))


ASSIGNORS: Final[Mapping[str, Assignor]] = {"range": assign_ranges, "roundrobin": assign_round_robin}
"""Each supported value of ``partition.assignment.strategy`` -> its strategy."""
