"""`Assignor`, and the code that the strategies share: thread ids, and the threads of a topic.

Source: kafka.consumer.ConsumerThreadId, TopicCount, ZkUtils.getConsumersPerTopic of Kafka 0.10.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from offsetmgr.core.errors import AssignmentRefused
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

    def __lt__(self, other: tuple[object, ...]) -> bool:
        return str(self) < str(other)

    def __le__(self, other: tuple[object, ...]) -> bool:
        return str(self) <= str(other)

    def __gt__(self, other: tuple[object, ...]) -> bool:
        return str(self) > str(other)

    def __ge__(self, other: tuple[object, ...]) -> bool:
        return str(self) >= str(other)


class Assignor(Protocol):
    """A partition assignment strategy (``partition.assignment.strategy``)."""

    def assign(self, streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
        """Assigns every partition of each consumed topic to a thread; the result is sorted by partition.

        The result omits topics that are not in ``partitions``, and topics without consumers. Raises
        `AssignmentRefused`.
        """
        ...


def threads_of(streams: StreamsOfMembers) -> dict[str, list[ThreadId]]:
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
