"""`ClusteredAssignor`, the strategy of that name: the order of Kafka 0.7, which keeps a broker's partitions together.

In 0.7 a partition was named ``<broker>-<number>``. These names were sorted as text before runs of them were assigned as
in range, so a thread connects to few brokers. Ten or more partitions of a broker are in text order: ``0-1, 0-10, 0-2``.
Source: kafka.utils.ZkUtils.getPartitionsForTopics and ZookeeperConsumerConnector.rebalance of 0.7.

Since 0.8 brokers number a topic's partitions independently of brokers, and the Java consumer no longer supports this
order. It is useful only in groups of Python members, which must see the same leaders to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of
from offsetmgr.zookeeper.groups.assignors.range import dealt_in_runs

_AFTER_ALL_BROKERS: Final = ":"  # the character after "9"


class ClusteredAssignor:
    """``brokers`` maps a partition to its broker (its leader); partitions without an entry come last.

    Partitions of Kafka 0.7 (`BrokerPartition`) contain their broker.
    """

    name: Final = "clustered"

    def __init__(self, brokers: Mapping[TopicPartition, int]) -> None:
        self._brokers = dict(brokers)

    def assign(self, streams: StreamsOfMembers, partitions: PartitionsOfTopics) -> dict[TopicPartition, ThreadId]:
        """See `Assignor.assign`."""
        threads = threads_of(streams)
        found: dict[TopicPartition, ThreadId] = {}
        for topic in sorted(threads):
            ordered = sorted((TopicPartition(topic, one) for one in partitions.get(topic, ())), key=self._name)
            found.update(sorted(dealt_in_runs(ordered, threads[topic])))
        return found

    def _name(self, partition: TopicPartition) -> str:
        """The partition's name in 0.7."""
        if isinstance(partition.partition, BrokerPartition):
            return str(partition.partition)
        return f"{self._brokers.get(partition, _AFTER_ALL_BROKERS)}-{partition.partition}"
