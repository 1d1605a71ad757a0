"""Which thread of a group gets which partition: the strategies of the old consumer. Pure: no I/O, no clock.

Every member computes the whole answer by itself from what it reads in ZooKeeper and claims its own part, so two members
that compute differently never agree: each strategy is exactly that of Kafka's code, and its answer depends on what the
mappings hold, never on their order.

``assignor_named`` gives one by the name that ``partition.assignment.strategy`` has.
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
from offsetmgr.zookeeper.groups.assignors.clustered import ClusteredAssignor
from offsetmgr.zookeeper.groups.assignors.range import RangeAssignor
from offsetmgr.zookeeper.groups.assignors.roundrobin import EqualRoundRobinAssignor, RoundRobinAssignor, hashed_alike

STRATEGIES: Final = (
    RangeAssignor.name,
    RoundRobinAssignor.name,
    EqualRoundRobinAssignor.name,
    ClusteredAssignor.name,
)


def assignor_named(name: str, brokers: Mapping[TopicPartition, int] | None = None) -> Assignor:
    """The strategy of that name; ``brokers`` (which broker has the partition) is for ``clustered`` alone.

    Raises `UsageError` for an unknown name (where Kafka takes range without a word), and for ``clustered`` without
    ``brokers``.
    """
    if name == RangeAssignor.name:
        return RangeAssignor()
    if name == RoundRobinAssignor.name:
        return RoundRobinAssignor()
    if name == EqualRoundRobinAssignor.name:
        return EqualRoundRobinAssignor()
    if name == ClusteredAssignor.name:
        if brokers is None:
            raise UsageError(f"strategy {name}", "needs to know which broker has each partition")
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
    "hashed_alike",
    "moves",
    "threads_of",
]
