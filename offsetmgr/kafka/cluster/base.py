"""`Cluster`: facts about a Kafka cluster other than committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription, LogRange, TopicPartition


class Logs(Protocol):
    """The topics and logs of a `Cluster`, against which offsets are checked."""

    def cluster_id(self) -> str | None:
        """Returns the cluster id; None for brokers before 0.10.1. Raises `Unreachable`, `TimedOut`."""
        ...

    def brokers(self) -> frozenset[str]:
        """Returns the addresses of the brokers as ``host:port`` in lower case. Raises `Unreachable`, `TimedOut`."""
        ...

    def topics(self, names: Iterable[str]) -> Mapping[str, int]:
        """Returns the partition counts of those ``names`` that exist."""
        ...

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        """Returns the start and end offsets of logs. The outcome of a missing partition is
        `UnknownTopicOrPartition`."""
        ...


@runtime_checkable
class Cluster(Protocol):
    """Read-only facts about a Kafka cluster. The constructor performs no I/O.

    Bulk calls return one outcome for each key: the value, or the error of that key (data rule "absent is not zero").
    """

    def cluster_id(self) -> str | None:
        """Returns the cluster id; None for brokers before 0.10.1. Raises `Unreachable`, `TimedOut`."""
        ...

    def brokers(self) -> frozenset[str]:
        """Returns the addresses of the brokers as ``host:port`` in lower case. Raises `Unreachable`, `TimedOut`."""
        ...

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        """Returns the partition counts of existing topics (of ``names``, or all)."""
        ...

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        """Returns the start and end offsets of logs. The outcome of a missing partition is
        `UnknownTopicOrPartition`."""
        ...

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        """Returns the first offset whose record has a timestamp at or after ``timestamp_ms``; None if there is no such
        record (callers then use the log end and report that)."""
        ...

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """Returns the state and members of groups from their coordinators. An unknown group has the state DEAD."""
        ...

    def offsets_retention_ms(self) -> int | None:
        """Returns how long offsets of a group without members are kept after each commit
        (``offsets.retention.minutes``); None if the broker does not report it."""
        ...

    def broker_setting(self, broker: int, name: str) -> str | None:
        """Returns one setting of a running broker (``server.properties`` and defaults); None if the broker does not
        report it.

        Raises `Unreachable`, `TimedOut`.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...
