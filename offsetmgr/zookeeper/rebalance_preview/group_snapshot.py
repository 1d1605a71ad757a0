"""`GroupSnapshot`: everything that the members of a group read before they divide its partitions, as one value.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import AssignmentRefused
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.subscription import Subscription

MOST_STREAMS: Final = 100_000
"""Maximum of all members and topics together. More is a typo, or a corrupt registration."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group at one moment."""

    group: str
    members: Mapping[str, Subscription | None]
    """Live member -> its subscription; None if its registration cannot be read."""
    topics: Mapping[str, Mapping[int, tuple[int, ...]]]
    """Topic -> partition -> its brokers in sync, the leader first, then in the order of election; empty if unknown.
    Topics that no member selects may be left out."""
    owners: Mapping[TopicPartition, ThreadId | None] | None
    """The present owner of each partition; None for an unreadable owner. The whole mapping is None if unknown."""
    brokers: frozenset[int] | None
    """The live brokers; None if unknown."""

    @property
    def partitions(self) -> dict[str, list[int]]:
        """Topic -> its partitions, sorted."""
        return {topic: sorted(found) for topic, found in self.topics.items()}

    @property
    def leaders(self) -> dict[TopicPartition, int]:
        """The broker of each partition, if known."""
        return {
            TopicPartition(topic, partition): brokers[0]
            for topic, partitions in self.topics.items()
            for partition, brokers in partitions.items()
            if brokers
        }

    @property
    def of_kafka_0_7(self) -> bool:
        """Whether its partitions belong to brokers."""
        return any(isinstance(one, BrokerPartition) for partitions in self.topics.values() for one in partitions)

    def streams(self, *, internal: bool = False) -> dict[str, dict[str, int]]:
        """Member -> topic -> number of streams, patterns resolved; ``internal``: patterns also select Kafka's own
        topics.

        Raises `AssignmentRefused` for an unreadable registration and for more than `MOST_STREAMS`, `InvalidPattern`,
        `UnsupportedOperation`.
        """
        found: dict[str, dict[str, int]] = {}
        total = 0
        for member, subscription in sorted(self.members.items()):
            if subscription is None:
                raise AssignmentRefused(
                    f"member {member}",
                    "its registration cannot be read, so no member of its group can rebalance",
                    f"restart that member; what happens without it: --simulate --leave {member}",
                )
            found[member] = subscription.topics(self.topics, exclude_internal=not internal)
            own = sum(found[member].values())
            total += own
            if total > MOST_STREAMS:
                raise AssignmentRefused(
                    f"member {member}",
                    f"has {own:,} streams, and the members so far {total:,}: at most {MOST_STREAMS:,} can be divided",
                    "is that number meant?",
                )
        return found
