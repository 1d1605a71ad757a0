"""`KafkaLogs`: topics and log ranges of the cluster of a `KafkaStore`, through the store's connections.

It implements `offsetmgr.kafka.cluster.base.Logs` for a process that has a `KafkaStore` open, so that the process needs
no second client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.stores.kafka import KafkaStore


class KafkaLogs:
    """Reads topics and log ranges. The connections belong to the store and end when the store is closed."""

    def __init__(self, store: KafkaStore) -> None:
        self._store = store

    def cluster_id(self) -> str | None:
        return self._store.log_origin().cluster_id

    def brokers(self) -> frozenset[str]:
        return self._store.log_origin().brokers

    def topics(self, names: Iterable[str]) -> Mapping[str, int]:
        from offsetmgr.kafka.client.log_ranges import partition_counts

        wire, requested = self._store.wire(), set(names)
        return wire.run(lambda deadline: partition_counts(wire.client, requested, deadline))

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        from offsetmgr.kafka.client.log_ranges import log_ranges

        wire, requested = self._store.wire(), list(partitions)
        return wire.run(lambda deadline: log_ranges(wire.client, requested, deadline))
