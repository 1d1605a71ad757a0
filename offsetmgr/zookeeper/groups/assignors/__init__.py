"""The partition assignment strategies of the old consumer. Pure: no I/O, no clock.

Every member computes the whole assignment from the nodes in ZooKeeper, and claims the partitions that are assigned to
this member. All members must compute the same assignment, so each strategy returns exactly the result of Kafka's code.
The result does not depend on the order of the items in the given mappings.

``assignor_named`` returns the strategy for a value of ``partition.assignment.strategy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import (
    Assignor,
    Moves,
    PartitionsOfTopics,
    StreamsOfMembers,
    ThreadId,
    moves,
    threads_of,
)
from offsetmgr.zookeeper.groups.assignors.clustered_assignor import ClusteredAssignor
from offsetmgr.zookeeper.groups.assignors.range_assignor import RangeAssignor
from offsetmgr.zookeeper.groups.assignors.round_robin_assignor import (
    EqualRoundRobinAssignor,
    RoundRobinAssignor,
    partitions_with_equal_hash,
)

STRATEGIES: Final = (
    RangeAssignor.name,
    RoundRobinAssignor.name,
    EqualRoundRobinAssignor.name,
    ClusteredAssignor.name,
)


def assignor_named(name: str, brokers: Mapping[TopicPartition, int] | None = None) -> Assignor:
    """Returns the strategy with this name. ``brokers`` maps each partition to its broker; only ``clustered`` needs this
    mapping.

    Raises `UsageError` if the name is unknown (Kafka uses ``range`` in this case), or if ``name`` is ``clustered`` and
    ``brokers`` is None.
    """
    if name == RangeAssignor.name:
        return RangeAssignor()
    if name == RoundRobinAssignor.name:
        return RoundRobinAssignor()
    if name == EqualRoundRobinAssignor.name:
        return EqualRoundRobinAssignor()
    if name == ClusteredAssignor.name:
        if brokers is None:
            raise UsageError(f"strategy {name}", "needs the broker of each partition, which is unknown here")
        return ClusteredAssignor(brokers)
    raise UsageError(f"strategy {name!r}", "is unknown", f"strategies: {', '.join(STRATEGIES)}")


__all__ = [
    "STRATEGIES",
    "Assignor",
    "ClusteredAssignor",
    "EqualRoundRobinAssignor",
    "Moves",
    "PartitionsOfTopics",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StreamsOfMembers",
    "ThreadId",
    "assignor_named",
    "moves",
    "partitions_with_equal_hash",
    "threads_of",
]
