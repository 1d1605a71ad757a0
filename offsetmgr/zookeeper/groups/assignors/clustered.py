"""Clustered: the order of Kafka 0.7, which keeps a broker's partitions together.

There a partition was named ``<broker>-<number>``, and these names were sorted as texts before runs of them were dealt
out as in range: a thread so meets few brokers. Ten partitions of a broker or more come in the order of texts,
``0-1, 0-10, 0-2``. Source: kafka.utils.ZkUtils.getPartitionsForTopics and ZookeeperConsumerConnector.rebalance of 0.7.

Brokers since 0.8 number a topic's partitions without regard to brokers, and the real consumer has forgotten this
order: of use in groups of Python members alone, who must see the same leaders to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors.base import PartitionsOfTopics, StreamsOfMembers, ThreadId, threads_of
from offsetmgr.zookeeper.groups.assignors.range import dealt_in_runs

_AFTER_ALL_BROKERS: Final = ":"  # the character after "9"


class ClusteredAssignor:
    """``brokers`` says which broker has a partition (its leader); a partition that it does not name comes last.

    Those of Kafka 0.7 (`BrokerPartition`) say it themselves.
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
        """As 0.7 named it."""
        if isinstance(partition.partition, BrokerPartition):
            return str(partition.partition)
        return f"{self._brokers.get(partition, _AFTER_ALL_BROKERS)}-{partition.partition}"
