"""`Assignor`, and the code that the strategies share: thread ids, the threads of a topic, differences between
assignments.

Source: kafka.consumer.ConsumerThreadId, TopicCount, ZkUtils.getConsumersPerTopic of Kafka 0.10.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    @property
    def name(self) -> str: ...

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


@dataclass(frozen=True, slots=True)
class Moves:
    """The numbers of partitions that keep or change their owner between two assignments."""

    kept: int
    """Partitions that stay with the same thread."""
    rethreaded: int
    """Partitions that move to another thread of the same member. The member discards the messages that it has fetched
    from these partitions. The offsets of these partitions stay in the process of the member."""
    moved: int
    """Partitions that move to another member."""
    gained: int
    """Partitions that had no owner."""
    lost: int
    """Partitions that no longer have an owner."""

    @property
    def changed(self) -> int:
        """The number of partitions whose thread differs between the two assignments. Includes partitions that gain or
        lose an owner."""
        return self.rethreaded + self.moved + self.gained + self.lost


def moves(before: Mapping[TopicPartition, ThreadId], after: Mapping[TopicPartition, ThreadId]) -> Moves:
    """Counts the partitions that keep or change their owner between two assignments."""
    both = before.keys() & after.keys()
    kept = sum(before[one] == after[one] for one in both)
    same_member = sum(before[one].member_id == after[one].member_id for one in both)
    return Moves(
        kept=kept,
        rethreaded=same_member - kept,
        moved=len(both) - same_member,
        gained=len(after) - len(both),
        lost=len(before) - len(both),
    )
