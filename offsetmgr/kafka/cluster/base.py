"""`Cluster`, the interface for information about a Kafka cluster other than committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from offsetmgr.core.clock import Clock, ClockDifference
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.model import GroupDescription, LogRange, TopicPartition


class Logs(Protocol):
    """The part of `Cluster` that a check of offsets against the logs needs."""

    def cluster_id(self) -> str | None:
        """Returns the cluster id; None for brokers before 0.10.1. Raises `Unreachable`, `TimedOut`."""
        ...

    def brokers(self) -> frozenset[str]:
        """Returns the addresses of the brokers as ``host:port`` in lower case. Raises `Unreachable`, `TimedOut`."""
        ...

    def topics(self, names: Iterable[str]) -> Mapping[str, int]:
        """Returns the partition counts of the topics in ``names``. Missing topics are left out."""
        ...

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        """Returns the start and end offsets of logs. The outcome of a missing partition is
        `UnknownTopicOrPartition`."""
        ...


@runtime_checkable
class Cluster(Logs, Protocol):
    """Read-only information about a Kafka cluster. The constructor performs no I/O.

    Bulk calls return one outcome for each key: its value, or its error (data rule "absent is not zero").
    """

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        """Returns the partition counts of the topics in ``names``, or of all topics if None. Missing topics are left
        out."""
        ...

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        """Returns, for each partition, the offset of the first record with a timestamp at or after ``timestamp_ms``;
        None if there is no such record. Callers use the end of the log instead of None, and report this to the user."""
        ...

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """Returns the state and the members of groups from their coordinators. An unknown group has the state DEAD."""
        ...

    def offsets_retention_ms(self) -> int | None:
        """Returns the retention of the offsets of groups without members (``offsets.retention.minutes``), in
        milliseconds; None if the broker does not report it."""
        ...

    def clock_difference(self, clock: Clock) -> ClockDifference | None:
        """Returns the difference between the brokers' clock and ``clock``, the clock of this machine; None if no broker
        reports a time. Raises `Unreachable`, `TimedOut`."""
        ...

    def broker_setting(self, broker: int, name: str) -> str | None:
        """Returns the effective value of one setting of a running broker; None if the broker does not report it.

        Raises `Unreachable`, `TimedOut`.
        """
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def all_partitions(cluster: Cluster, topics: Sequence[str]) -> list[TopicPartition]:
    """Returns all partitions of the topics. Raises `UnknownTopicOrPartition` if a topic does not exist."""
    counts = cluster.topics(topics)
    if missing := [topic for topic in topics if topic not in counts]:
        raise UnknownTopicOrPartition(f"topic {', '.join(missing)}", "the cluster has no such topic")
    return [TopicPartition(topic, n) for topic in topics for n in range(counts[topic])]
