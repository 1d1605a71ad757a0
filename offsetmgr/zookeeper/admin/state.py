"""`AdminState`: the facts about a cluster that determine whether a controller request is possible. Values only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from offsetmgr.core.errors import (
    ControllerRequestRefused,
    OffsetMgrError,
    UnknownTopicOrPartition,
    UsageError,
    value_of,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.selection import TopicSelection
from offsetmgr.zookeeper.nodes import paths

MAX_REQUEST_BYTES: Final = 900 * 1024
"""Maximum size of the data of a request's node. It is less than 1 MiB, the server's default ``jute.maxbuffer``."""


class AssignedPartition(NamedTuple):
    """One partition as stored under ``/brokers/topics``."""

    replicas: tuple[int, ...]
    """The assigned replicas, the preferred leader first. During a reassignment, they include the replicas that the
    reassignment adds and removes."""
    leader: int | None = None
    """The broker id of the leader; None if the partition has no leader or the partition's state node does not exist
    yet."""
    isr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def preferred(self) -> int:
        return self.replicas[0]

    @property
    def moving(self) -> bool:
        """Whether a reassignment of the partition is in progress. The reassignment was requested either in ZooKeeper or
        through the brokers (KIP-455)."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class AdminTopicState:
    """One topic. ``version`` and ``czxid`` are the fields of the topic's node; if the topic is recreated, its ``czxid``
    changes."""

    partitions: Mapping[int, AssignedPartition]
    version: int
    czxid: int


@dataclass(frozen=True, slots=True)
class AdminState:
    """The state of a cluster. It is read with several requests, so it is not a snapshot. ``topics`` maps the name of
    each requested topic that exists to the topic's state, or to the error from reading the topic."""

    controller: int | None
    """The broker id of the controller; None if there is no controller. Without a controller, a request has no
    effect."""
    kraft: bool
    """Whether the controller is a KRaft controller, as in a cluster that is being migrated from ZooKeeper. A KRaft
    controller ignores requests in ZooKeeper."""
    brokers: Mapping[int, int]
    """Id of each live broker -> version of the broker's node."""
    topics: Mapping[str, AdminTopicState | OffsetMgrError]
    deletions: frozenset[str] = frozenset()
    """Topics under ``/admin/delete_topics``."""
    reassignment: frozenset[TopicPartition] | None = None
    """The partitions in ``/admin/reassign_partitions``; None if this node does not exist."""
    election: bool = False
    """Whether ``/admin/preferred_replica_election`` exists."""

    def partition(self, tp: TopicPartition) -> AssignedPartition:
        """Returns a partition. Raises `UnknownTopicOrPartition` if the topic or the partition does not exist. If the
        topic could not be read, raises the error from reading the topic."""
        found = self.topic(tp.topic).partitions.get(tp.partition)
        if found is None or not found.replicas:
            raise UnknownTopicOrPartition(f"partition {tp}", f"topic {tp.topic} has no partition {tp.partition}")
        return found

    def partitions(self, selection: TopicSelection) -> list[TopicPartition]:
        """Returns the selected partitions of readable topics, sorted. Raises `UnknownTopicOrPartition` if a named topic
        or partition does not exist."""
        readable = {name: found for name, found in self.topics.items() if not isinstance(found, OffsetMgrError)}
        partitions = (TopicPartition(name, number) for name, found in readable.items() for number in found.partitions)
        counts = {name: len(found.partitions) for name, found in readable.items()}
        return selection.expand(counts, partitions, self.topics.keys() - counts)

    def topic(self, name: str) -> AdminTopicState:
        """Returns a topic. Raises as `partition`."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name}", f"there is no {paths.topic(name)}")
        return value_of(topic)

    def require_controller(self, what: str) -> None:
        """Raises `ControllerRequestRefused` if no controller would process the request ``what``."""
        if self.controller is None:
            raise ControllerRequestRefused(
                what,
                f"{paths.CONTROLLER} does not exist, so no controller would process the request",
                "check that the brokers are running",
            )
        if self.kraft:
            raise ControllerRequestRefused(
                what,
                "the controller is a KRaft controller, which ignores requests in ZooKeeper",
                "use the broker tools: kafka-leader-election, kafka-reassign-partitions, kafka-topics",
            )


def encode_partitions(what: str, partitions: Iterable[Mapping[str, Any]]) -> bytes:
    """Encodes the data of the request ``what``: version 1 of Kafka's JSON. Raises `UsageError` if the data exceeds
    `MAX_REQUEST_BYTES`."""
    data = json.dumps({"version": 1, "partitions": list(partitions)}, separators=(",", ":")).encode()
    if len(data) > MAX_REQUEST_BYTES:
        raise UsageError(
            what, f"has {len(data):,} bytes, but the maximum is {MAX_REQUEST_BYTES:,}", "name fewer partitions"
        )
    return data
