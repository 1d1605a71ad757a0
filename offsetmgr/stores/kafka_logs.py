"""`KafkaLogs`: topics and logs of the brokers of a Kafka store, over the store's connections.

See `offsetmgr.kafka.cluster.base.Logs`. For a process with an open Kafka store that needs nothing else of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.stores.kafka import KafkaStore


class KafkaLogs:
    """Closed with its store."""

    def __init__(self, store: KafkaStore) -> None:
        self._store = store

    def cluster_id(self) -> str | None:
        return self._store.log_origin().cluster_id

    def brokers(self) -> frozenset[str]:
        return self._store.log_origin().brokers

    def topics(self, names: Iterable[str]) -> Mapping[str, int]:
        from offsetmgr.kafka.client.log_ranges import partition_counts

        wire, wanted = self._store.wire(), set(names)
        return wire.run(lambda deadline: partition_counts(wire.client, wanted, deadline))

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        from offsetmgr.kafka.client.log_ranges import log_ranges

        wire, asked = self._store.wire(), list(partitions)
        return wire.run(lambda deadline: log_ranges(wire.client, asked, deadline))
