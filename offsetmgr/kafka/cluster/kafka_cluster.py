"""`KafkaCluster`: implements `Cluster` with offsetmgr's own Kafka client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, UnsupportedOperation
from offsetmgr.core.model import BrokerPartition, GroupDescription, LogRange, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.kafka.client.brokers import ClusterBroker
    from offsetmgr.kafka.cluster.base import Cluster

T = TypeVar("T")


def open_cluster(bootstrap: str, config: ConnectionConfig | None = None) -> Cluster:
    """Returns a `KafkaCluster`, or a `LibrdkafkaCluster` if only librdkafka supports the security settings.

    Performs no I/O. Raises `ConfigError` for invalid settings.
    """
    try:
        return KafkaCluster(bootstrap, config)
    except UnsupportedOperation:
        from offsetmgr.kafka.cluster.librdkafka import LibrdkafkaCluster

        return LibrdkafkaCluster(bootstrap, config)


class KafkaCluster:
    """Topics, log ranges, offsets by time, groups and settings of a Kafka cluster, for brokers from 0.8.2 on.

    ``bootstrap`` is ``host:port,...``. The constructor performs no I/O; the first call connects. Each call ends after
    ``ConnectionConfig.timeout_ms``. The class implements `offsetmgr.kafka.cluster.base.Cluster`.

    Example::

        from offsetmgr import KafkaCluster, TopicPartition

        with KafkaCluster("h1:9092") as cluster:
            print(cluster.topics(["orders"]))  # the number of partitions of each topic
            print(cluster.log_ranges([TopicPartition("orders", 0)]))
            print(cluster.offsets_for_time([TopicPartition("orders", 0)], 1_700_000_000_000))
    """

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        """Raises `UnsupportedOperation` for SASL mechanisms and key stores that only librdkafka supports, and
        `ConfigError` for invalid settings."""
        from offsetmgr.kafka.client.background_loop import EventLoopThread
        from offsetmgr.kafka.client.client import Client
        from offsetmgr.kafka.client.security import Security

        config = config or ConnectionConfig()
        self._timeout_s = config.timeout_ms / 1000
        self._client = Client(bootstrap, Security.of(config.kafka))
        self._runner = EventLoopThread()

    def cluster_id(self) -> str | None:
        cluster_id, _ = self._run(self._client.cluster)
        return cluster_id or None

    def brokers(self) -> frozenset[str]:
        _, brokers = self._run(self._client.cluster)
        return frozenset(str(broker).lower() for broker in brokers)

    def describe_brokers(self) -> list[ClusterBroker]:
        """Returns every broker with its release and its capabilities. Raises `Unreachable` or `TimedOut` if no broker
        responds."""
        from offsetmgr.kafka.client.brokers import describe_brokers

        return self._run(lambda deadline: describe_brokers(self._client, deadline))

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        from offsetmgr.kafka.client.log_ranges import partition_counts

        requested = None if names is None else set(names)
        return self._run(lambda deadline: partition_counts(self._client, requested, deadline))

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        from offsetmgr.kafka.client.log_ranges import log_ranges

        numbered, others = _by_kind(partitions)
        if not numbered:
            return others
        return {**others, **self._run(lambda deadline: log_ranges(self._client, numbered, deadline))}

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        from offsetmgr.kafka.client.log_ranges import offsets_for_time

        numbered, others = _by_kind(partitions)
        if not numbered:
            return others
        found = self._run(lambda deadline: offsets_for_time(self._client, numbered, timestamp_ms, deadline))
        return {**others, **found}

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        requested = list(dict.fromkeys(groups))
        return self._run(lambda deadline: self._client.describe(requested, deadline)) if requested else {}

    def offsets_retention_ms(self) -> int | None:
        from offsetmgr.kafka.client.broker_settings import offsets_retention_ms

        return self._run(lambda deadline: offsets_retention_ms(self._client, deadline))

    def broker_setting(self, broker: int, name: str) -> str | None:
        from offsetmgr.kafka.client.broker_settings import broker_setting

        return self._run(lambda deadline: broker_setting(self._client, broker, name, deadline))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Callable[[float], Awaitable[T]]) -> T:
        """Runs ``call`` in the event loop, passes it a deadline, and waits for the result."""
        import asyncio

        async def within() -> T:
            return await call(asyncio.get_running_loop().time() + self._timeout_s)

        return self._runner.run(within())


def _by_kind(
    partitions: Iterable[TopicPartition],
) -> tuple[list[TopicPartition], dict[TopicPartition, OffsetMgrError]]:
    """Returns the partitions of Kafka 0.8 and later, and an error for each partition of Kafka 0.7. A cluster of Kafka
    0.8 or later has no partitions of Kafka 0.7."""
    requested = list(dict.fromkeys(partitions))
    old: dict[TopicPartition, OffsetMgrError] = {
        tp: UnknownTopicOrPartition(str(tp), "is a partition of Kafka 0.7, of which this cluster has no log")
        for tp in requested
        if isinstance(tp.partition, BrokerPartition)
    }
    return [tp for tp in requested if tp not in old], old
