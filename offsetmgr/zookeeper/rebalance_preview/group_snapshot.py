"""`GroupSnapshot`: the input of a group's assignment, and the present owners of its partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import AssignmentRefused
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.subscription import Subscription

MAX_STREAMS: Final = 100_000
"""The maximum total number of streams of all members and topics. A higher number indicates a typo or a corrupt
registration."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group at one moment."""

    group: str
    members: Mapping[str, Subscription | None]
    """Live member -> the member's subscription, or None if the member's registration cannot be read."""
    topics: Mapping[str, Mapping[int, tuple[int, ...]]]
    """Topic -> partition -> the partition's in-sync replicas (empty if unknown). The first replica is the leader; the
    others follow in the order in which they would become leader. Topics that no member selects may be missing."""
    owners: Mapping[TopicPartition, ThreadId | None] | None
    """The present owner of each partition. An owner is None if the owner node cannot be decoded. The whole mapping is
    None if the owners are unknown."""
    brokers: frozenset[int] | None
    """The live brokers; None if unknown."""

    @property
    def partitions(self) -> dict[str, list[int]]:
        """Topic -> its partitions, sorted."""
        return {topic: sorted(found) for topic, found in self.topics.items()}

    @property
    def leaders(self) -> dict[TopicPartition, int]:
        """The leader of each partition whose leader is known."""
        return {
            TopicPartition(topic, partition): brokers[0]
            for topic, partitions in self.topics.items()
            for partition, brokers in partitions.items()
            if brokers
        }

    @property
    def of_kafka_0_7(self) -> bool:
        """Whether the partitions are partitions of Kafka 0.7, which belong to brokers."""
        return any(isinstance(one, BrokerPartition) for partitions in self.topics.values() for one in partitions)

    def streams(self, *, internal: bool = False) -> dict[str, dict[str, int]]:
        """Returns the number of streams of each member and topic. If a member subscribes by a pattern, its topics are
        the topics that the pattern selects.

        If ``internal`` is True, patterns also select Kafka's internal topics. Raises `AssignmentRefused` if a
        registration is unreadable or the members have more than `MAX_STREAMS` streams, and `InvalidPattern` or
        `UnsupportedOperation` if a pattern cannot be translated.
        """
        found: dict[str, dict[str, int]] = {}
        total = 0
        for member, subscription in sorted(self.members.items()):
            if subscription is None:
                raise AssignmentRefused(
                    f"member {member}",
                    "its registration cannot be read, so no member of its group can rebalance",
                    f"restart that member; to preview the group without it: --simulate --leave {member}",
                )
            found[member] = subscription.topics(self.topics, exclude_internal=not internal)
            own = sum(found[member].values())
            total += own
            if total > MAX_STREAMS:
                raise AssignmentRefused(
                    f"member {member}",
                    f"has {own:,} of {total:,} or more streams in the group; at most {MAX_STREAMS:,} can be assigned",
                    "check the number",
                )
        return found
