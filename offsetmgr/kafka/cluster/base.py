"""`Cluster`: what must be known of a Kafka cluster besides committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription, LogRange, TopicPartition


class Logs(Protocol):
    """The part of a `Cluster` that tells of topics and logs: all that an offset is checked against."""

    def cluster_id(self) -> str | None:
        """The cluster's id; None for brokers before 0.10.1. Raises `Unreachable`, `TimedOut`."""
        ...

    def brokers(self) -> frozenset[str]:
        """Where the brokers listen, each as ``host:port`` in lower case. Raises `Unreachable`, `TimedOut`."""
        ...

    def topics(self, names: Iterable[str]) -> Mapping[str, int]:
        """Partition counts of those of ``names`` that exist. Missing topics are simply not there."""
        ...

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        """Log start and end offsets. A missing partition's outcome is `UnknownTopicOrPartition`."""
        ...


@runtime_checkable
class Cluster(Protocol):
    """Read-only knowledge about a Kafka cluster. Construction does no I/O.

    Bulk answers carry one outcome a key: the value, or the error of that key alone (data rule "absent is not zero").
    """

    def cluster_id(self) -> str | None:
        """The cluster's id; None for brokers before 0.10.1. Raises `Unreachable`, `TimedOut`."""
        ...

    def brokers(self) -> frozenset[str]:
        """Where the brokers listen, each as ``host:port`` in lower case. Raises `Unreachable`, `TimedOut`."""
        ...

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        """Partition counts of the topics that exist (of ``names``, or all). Missing topics are simply not there."""
        ...

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        """Log start and end offsets. A missing partition's outcome is `UnknownTopicOrPartition`."""
        ...

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        """The first offset whose record's timestamp is at or after ``timestamp_ms``; None where there is no such
        record (callers take the log end then, and say so)."""
        ...

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """State and members of groups, as their coordinators see them. An unknown group is in state DEAD."""
        ...

    def offsets_retention_ms(self) -> int | None:
        """How long the offsets of a group without members are kept after each commit
        (``offsets.retention.minutes``); None where the broker does not tell."""
        ...

    def broker_setting(self, broker: int, name: str) -> str | None:
        """One setting of a live broker (its ``server.properties`` with its defaults); None where it does not tell.

        Raises `Unreachable`, `TimedOut`.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...
