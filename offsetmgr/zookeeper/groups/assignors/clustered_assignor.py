"""`ClusteredAssignor`: the strategy of Kafka 0.7, which keeps the partitions of a broker together.

In Kafka 0.7 a partition's name is ``<broker>-<number>``. The consumer sorts these names as text (``0-1, 0-10, 0-2``)
and then assigns runs of consecutive partitions as the range strategy does, so that each thread connects to few brokers.
Source: kafka.utils.ZkUtils.getPartitionsForTopics and ZookeeperConsumerConnector.rebalance of Kafka 0.7.

Since Kafka 0.8, partition numbers do not contain the broker, and the Java consumer no longer supports this strategy.
The strategy is useful only in groups whose members are all Python members. The members compute the same assignment only
if all of them read the same leader for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of
from offsetmgr.zookeeper.groups.assignors.range_assignor import assign_in_runs

_AFTER_ALL_BROKERS: Final = ":"  # the character after "9"


class ClusteredAssignor:
    """``brokers`` maps a partition to its leader. Partitions that are not in ``brokers`` are sorted last.

    A partition of Kafka 0.7 (`BrokerPartition`) contains its broker and does not have to be in ``brokers``.
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
            found.update(sorted(assign_in_runs(ordered, threads[topic])))
        return found

    def _name(self, partition: TopicPartition) -> str:
        """The partition's name in Kafka 0.7."""
        if isinstance(partition.partition, BrokerPartition):
            return str(partition.partition)
        return f"{self._brokers.get(partition, _AFTER_ALL_BROKERS)}-{partition.partition}"
