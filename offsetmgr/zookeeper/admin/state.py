"""The facts about a cluster that a controller request depends on. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import ControllerRequestRefused, OffsetMgrError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.nodes import paths

MOST_BYTES: Final = 900 * 1024
"""Maximum size of one request's node: the server's default ``jute.maxbuffer`` is 1 MiB."""


class AssignedPartition(NamedTuple):
    """One partition as stored under ``/brokers/topics``."""

    replicas: tuple[int, ...]
    """Assigned replicas, the preferred leader first; during a reassignment also those that it adds and removes."""
    leader: int | None = None
    """None if the partition has no leader, or if its state is unknown (no node yet)."""
    isr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def preferred(self) -> int:
        return self.replicas[0]

    @property
    def moving(self) -> bool:
        """Whether a reassignment is under way, requested here or through the brokers (KIP-455)."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class AdminTopicState:
    """One topic. ``version`` and ``czxid`` are those of its node: a recreated topic has another ``czxid``."""

    partitions: Mapping[int, AssignedPartition]
    version: int
    czxid: int


@dataclass(frozen=True, slots=True)
class AdminState:
    """A cluster at (about) one moment. ``topics`` holds the requested topics that exist, or their error."""

    controller: int | None
    """The broker id of the controller; None if there is none, so that a request would not be carried out."""
    kraft: bool
    """Whether the controller is a KRaft controller (a cluster migrating from ZooKeeper), which ignores these nodes."""
    brokers: Mapping[int, int]
    """Live brokers -> version of their node."""
    topics: Mapping[str, AdminTopicState | OffsetMgrError]
    deletions: frozenset[str] = frozenset()
    """Topics under ``/admin/delete_topics``."""
    reassignment: frozenset[TopicPartition] | None = None
    """The partitions still in ``/admin/reassign_partitions``; None if the node does not exist."""
    election: bool = False
    """Whether ``/admin/preferred_replica_election`` exists."""

    def partition(self, tp: TopicPartition) -> AssignedPartition:
        """Raises `UnknownTopicOrPartition`, and the topic's error if it could not be read."""
        found = self.topic(tp.topic).partitions.get(tp.partition)
        if found is None or not found.replicas:
            raise UnknownTopicOrPartition(f"partition {tp}", f"topic {tp.topic} has no partition {tp.partition}")
        return found

    def topic(self, name: str) -> AdminTopicState:
        """Raises as `partition`."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name}", f"there is no {paths.topic(name)}")
        if isinstance(topic, OffsetMgrError):
            raise topic
        return topic

    def refuse_without_controller(self, what: str) -> None:
        """Raises `ControllerRequestRefused` if no controller would see the request."""
        if self.controller is None:
            raise ControllerRequestRefused(
                what,
                f"there is no {paths.CONTROLLER}, so the request would not be carried out",
                "are the brokers running?",
            )
        if self.kraft:
            raise ControllerRequestRefused(
                what,
                "the controller is a KRaft one, which looks at none of these nodes",
                "ask the brokers: kafka-leader-election, kafka-reassign-partitions, kafka-topics",
            )


class RequestProgress(NamedTuple):
    """The controller's progress. ``open`` maps the name of each unfinished item to what it waits for, or why it cannot
    finish."""

    done: int
    total: int
    open: Mapping[str, str]
    ended: bool
    """Whether the controller has stopped working on the request; items that are still open have failed."""


def checked_size(what: str, data: bytes) -> bytes:
    """Returns ``data``, a request node's content. Raises `UsageError` if it is larger than a node can hold."""
    if len(data) > MOST_BYTES:
        raise UsageError(
            what, f"it takes {len(data):,} bytes, and a node holds {MOST_BYTES:,}", "name fewer partitions"
        )
    return data


def numbers(ids: Iterable[int]) -> str:
    """Formats broker ids: ``1,2,3``."""
    return ",".join(map(str, ids))
