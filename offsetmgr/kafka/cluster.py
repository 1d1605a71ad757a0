"""`KafkaCluster`: topics, log ranges and groups of a Kafka cluster. It uses offsetmgr's own client.

Its bulk calls return one outcome for each key: its value, or its error (data rule "absent is not zero").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import OffsetMgrError, TopicNotAuthorized, UnknownTopicOrPartition
from offsetmgr.core.model import GroupDescription, GroupKind, LogRange, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.core.check_result import CheckResult
    from offsetmgr.core.clock import Clock, ClockDifference
    from offsetmgr.kafka.client.client import ClientThread
    from offsetmgr.kafka.client.log_reader import PartitionLogReader
    from offsetmgr.kafka.client.producers import OpenTransactions
    from offsetmgr.kafka.client.share_groups import ShareOffsets
    from offsetmgr.kafka.client.topics import ClusterBroker

T = TypeVar("T")


def all_partitions(cluster: KafkaCluster, topics: Sequence[str]) -> list[TopicPartition]:
    """Returns all partitions of the topics. Raises `UnknownTopicOrPartition` if a topic does not exist."""
    counts = cluster.topics(topics)
    if missing := [topic for topic in topics if topic not in counts]:
        raise UnknownTopicOrPartition(f"topic {', '.join(missing)}", "the cluster has no such topic")
    return [TopicPartition(topic, n) for topic in topics for n in range(counts[topic])]


def describable_topics(cluster: Logs, names: Iterable[str]) -> tuple[dict[str, int], dict[str, OffsetMgrError]]:
    """Returns the partition counts of topics, and the error of each topic that the principal may not describe. Missing
    topics are in neither. Raises `Unreachable`, `TimedOut`."""
    names, counts, hidden = set(names), dict[str, int](), dict[str, OffsetMgrError]()
    try:
        return dict(cluster.topics(names)), hidden
    except TopicNotAuthorized:
        for name in names:
            try:
                counts.update(cluster.topics([name]))
            except TopicNotAuthorized as error:
                hidden[name] = error
    return counts, hidden


class Logs:
    """The topics and log ranges of a Kafka cluster, read with the connections of an existing client, which the owner of
    the client closes."""

    def __init__(self, thread: ClientThread) -> None:
        self._thread = thread
        self._reader: PartitionLogReader | None = None
        self.on_slow: Callable[[float], None] | None = None
        """The function that is called with the seconds that are left, while a request about topics or logs waits."""

    def cluster_id(self) -> str | None:
        """Returns the cluster id; None for brokers before 0.10.1. Raises `Unreachable`, `TimedOut`."""
        cluster_id, _ = self._thread.run(self._thread.client.cluster)
        return cluster_id or None

    def brokers(self) -> frozenset[str]:
        """Returns the addresses of the brokers as ``host:port`` in lower case. Raises `Unreachable`, `TimedOut`."""
        _, brokers = self._thread.run(self._thread.client.cluster)
        return frozenset(str(broker).lower() for broker in brokers)

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        """Returns the partition counts of the topics in ``names``, or of all topics if None. Missing topics are left
        out. Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.fetch import partition_counts

        return self._ask(partition_counts, None if names is None else set(names))

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        """Returns the start and end offset of each partition's log, or the error of the partition. The error of a
        missing partition is `UnknownTopicOrPartition`.

        If no broker has responded yet, raises the error of the connection (`Unreachable`, `TimedOut`,
        `AuthenticationFailed`, `ServerError`). Raises `UnsupportedOperation` if the brokers are too old. Later failures
        are errors of single partitions.
        """
        from offsetmgr.kafka.client.fetch import log_ranges

        return self._ask(log_ranges, list(partitions))

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        """Returns, for each partition, the offset of the first record with a timestamp at or after ``timestamp_ms``
        (milliseconds since 1970), None if there is no such record, or the error of the partition.

        If no broker has responded yet, raises the error of the connection (`Unreachable`, `TimedOut`,
        `AuthenticationFailed`, `ServerError`). Raises `UnsupportedOperation` if the brokers are too old. Later failures
        are errors of single partitions.
        """
        from offsetmgr.kafka.client.fetch import offsets_for_time

        return self._ask(offsets_for_time, list(partitions), timestamp_ms)

    def open_transactions(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OpenTransactions | OffsetMgrError]:
        """Returns whether a transaction is open in each partition, with the producers if the brokers name them (Kafka
        2.8 and later), or the error of the partition. Raises the errors of `log_ranges`."""
        from offsetmgr.kafka.client.producers import open_transactions

        return self._ask(open_transactions, list(partitions))

    def topic_ids(self, names: Iterable[str]) -> Mapping[str, str]:
        """Returns the ids of these topics; empty for brokers before 2.8. Missing topics are left out. Raises
        `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.topics import topic_ids

        return self._ask(topic_ids, set(names))

    def read_log(self, tp: TopicPartition, offset: int, max_bytes: int) -> bytes | OffsetMgrError:
        """Returns the bytes of a partition's log from an offset on, with at least one complete batch if the log has
        records from there on, or the error of the partition. Raises the errors of `log_ranges`."""
        from offsetmgr.kafka.client.fetch import FetchLimits
        from offsetmgr.kafka.client.log_reader import PartitionLogReader

        reader = self._reader = self._reader or PartitionLogReader(self._thread.client)
        limits = FetchLimits(max_bytes)
        found = self._thread.run(lambda deadline: reader.fetch({tp: offset}, limits, "raise", deadline))[tp]
        return found if isinstance(found, OffsetMgrError) else found.slice.data

    def _ask(self, ask: Callable[..., Awaitable[T]], *arguments: object) -> T:
        client = self._thread.client
        return self._thread.run(lambda deadline: ask(client, *arguments, deadline), on_slow=self.on_slow)


class KafkaCluster(Logs, Closeable):
    """Topics, log ranges, offsets by time, groups and settings of a Kafka cluster, for brokers from 0.8.2 on.

    ``bootstrap`` is ``host:port,...``. The constructor performs no I/O; the first call connects. Each call ends after
    ``ConnectionConfig.timeout_ms``.

    Example::

        from offsetmgr import KafkaCluster, TopicPartition

        with KafkaCluster("h1:9092") as cluster:
            print(cluster.topics(["orders"]))  # the number of partitions of each topic
            print(cluster.log_ranges([TopicPartition("orders", 0)]))
            print(cluster.offsets_for_time([TopicPartition("orders", 0)], 1_700_000_000_000))
    """

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        """Raises `UnsupportedOperation` for SASL mechanisms and key stores that offsetmgr's client does not support,
        and `ConfigError` for invalid settings."""
        from offsetmgr.kafka.client.client import Client, ClientThread
        from offsetmgr.kafka.client.connection import Security

        config = config or ConnectionConfig()
        client = Client(bootstrap, Security.of(config.kafka))
        super().__init__(ClientThread(client, config.timeout_ms / 1000))
        self._owns_thread = True

    @classmethod
    def with_thread(cls, thread: ClientThread) -> Self:
        """Returns a cluster that uses the connections of an existing client. ``close`` does not close them."""
        cluster = cls.__new__(cls)
        super(KafkaCluster, cluster).__init__(thread)
        cluster._owns_thread = False
        return cluster

    def describe_brokers(self) -> list[ClusterBroker]:
        """Returns every broker with its release and its capabilities. Raises `Unreachable` or `TimedOut` if no broker
        responds."""
        from offsetmgr.kafka.client.topics import describe_brokers

        return self._thread.run(lambda deadline: describe_brokers(self._thread.client, deadline))

    def describe_groups(
        self, groups: Iterable[str], *, every_kind: bool = False
    ) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """Returns the state and the members of each group from its coordinator, or the error of the group. An unknown
        group has the state DEAD. Without ``every_kind``, the error of a share group, of a group of the Streams
        protocol, and of a group that commits no offsets is `OtherGroupKind`.

        If no broker has responded yet, raises the error of the connection (`Unreachable`, `TimedOut`,
        `AuthenticationFailed`, `ServerError`). Raises `UnsupportedOperation` if the brokers are too old. Later failures
        are errors of single groups.
        """
        from offsetmgr.kafka.client.groups import describe

        client, names = self._thread.client, list(dict.fromkeys(groups))
        if not names:
            return {}
        return self._thread.run(lambda deadline: describe(client, names, deadline, every_kind=every_kind))

    def remove_static_members(self, group: str, instance_ids: Iterable[str]) -> Mapping[str, OffsetMgrError | None]:
        """Removes the members with these ``group.instance.id`` from a group, in one request. Returns one outcome for
        each instance id; None also if the group has no such member. A consumer that still runs may join again.

        Raises `UnsupportedOperation` for brokers before Kafka 2.4, or another error of the coordinator.
        """
        from offsetmgr.kafka.client.groups import remove_static_members

        requested = dict.fromkeys(instance_ids)
        return self._thread.run(lambda deadline: remove_static_members(self._thread.client, group, requested, deadline))

    def share_offsets(self, groups: Iterable[str]) -> Mapping[str, ShareOffsets | OffsetMgrError]:
        """Returns the start offsets of share groups, or the error of the group. Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.share_groups import fetch

        requested = dict.fromkeys(groups)
        return self._thread.run(lambda deadline: fetch(self._thread.client, requested, deadline))

    def group_kinds(self) -> Mapping[str, GroupKind]:
        """Returns the kind of each group: also of share groups, and of groups without committed offsets, such as those
        of Connect workers. Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.groups import list_kinds

        return self._thread.run(lambda deadline: list_kinds(self._thread.client, deadline))

    def offsets_retention_ms(self) -> int | None:
        """Returns the retention of the offsets of groups without members (``offsets.retention.minutes``), in
        milliseconds; None if the broker does not report it. Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.topics import offsets_retention_ms

        return self._thread.run(lambda deadline: offsets_retention_ms(self._thread.client, deadline))

    def clock_difference(self, clock: Clock) -> ClockDifference | None:
        """Returns the difference between the brokers' clock and ``clock``, the clock of this machine; None if no broker
        reports a time. Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.broker_checks import cluster_clock

        return self._thread.run(lambda deadline: cluster_clock(self._thread.client, clock, deadline))

    def broker_setting(self, broker: int, name: str) -> str | None:
        """Returns the effective value of one setting of a running broker; None if the broker does not report it.
        Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.client.topics import broker_setting

        return self._thread.run(lambda deadline: broker_setting(self._thread.client, broker, name, deadline))

    def close(self) -> None:
        """Closes the connections, unless they belong to another object. Calls in progress in other threads end."""
        if self._owns_thread:
            self._thread.close()


# Runs the checks of `offsetmgr.kafka.client.broker_checks` for synchronous callers.


def check_cluster(
    bootstrap: str, config: ConnectionConfig, groups: Sequence[str], clock: Clock, *, manager: bool
) -> list[CheckResult]:
    """Checks the brokers at ``bootstrap``, or offset managers. Raises `UnsupportedOperation` for logins that
    offsetmgr's client does not support."""
    from offsetmgr.kafka.client.broker_checks import check_brokers, check_managers
    from offsetmgr.kafka.client.connection import Security

    security = Security.of(config.kafka)
    protocol = config.kafka.get("security.protocol", "plaintext").upper()
    user = "" if security.sasl is None or not security.sasl[1] else f" as {security.sasl[1]}"
    login = f"{protocol} {security.sasl[0]}{user}" if security.sasl else f"{protocol} without SASL"
    with KafkaCluster(bootstrap, config) as cluster:
        thread = cluster._thread
        if manager:
            return thread.run(lambda deadline: check_managers(thread.client, bootstrap, login, deadline))
        return thread.run(lambda deadline: check_brokers(thread.client, bootstrap, login, groups, clock, deadline))
