"""Reads topics and their partitions from ``/brokers/topics`` in bulk, for all Kafka releases. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.model import BrokerPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.cluster_nodes import NodeEntry, parse_entry, read_entries
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.topics import (
    PartitionState,
    TopicAssignment,
    parse_partition_count,
    parse_partition_state,
    parse_topic,
)

TOPICS_AT_ONCE: Final = 500

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. In Kafka 0.8 and later, a topic has a replica assignment and partition states. In Kafka 0.7, a topic
    has a partition count for each broker.

    If the topic's node has no data, as in Kafka 0.7, ``assignment`` has neither a value nor an error. ``states``
    contains only the partitions whose state the controller has written. ``error`` is set if the children of the topic's
    node cannot be listed.
    """

    name: str
    assignment: NodeEntry[TopicAssignment]
    states: Mapping[int, NodeEntry[PartitionState]] = field(default_factory=dict)
    counts: Mapping[int, NodeEntry[int]] = field(default_factory=dict)
    """Broker -> number of the topic's partitions on this broker (only in Kafka 0.7)."""
    error: OffsetMgrError | None = None

    @property
    def partitions(self) -> list[int]:
        """The topic's partitions according to the topic's nodes. Partitions of Kafka 0.7 are of type
        `BrokerPartition`."""
        if self.assignment.value is not None:
            return sorted(self.assignment.value.replicas)
        return [
            BrokerPartition(broker, number)
            for broker, count in sorted(self.counts.items())
            for number in range(count.value or 0)
        ]


def topic_names(session: ZookeeperSession) -> list[str]:
    """The names of all topics, sorted. The list is empty if no broker has ever used this ZooKeeper."""
    return sorted(session.children(paths.BROKER_TOPICS) or [])


def topics(session: ZookeeperSession, names: Iterable[str], *, strict: bool = False) -> Iterator[Topic]:
    """Yields the topics with these names. Omits topics that do not exist. Raises if the session fails. With ``strict``,
    a node with an unknown version is an error."""
    for batch in batched(names, TOPICS_AT_ONCE):
        yield from _topics(session, batch, strict)


def _topics(session: ZookeeperSession, names: list[str], strict: bool) -> Iterator[Topic]:
    roots = [paths.topic(name) for name in names]
    held = session.get_many(roots)
    below = session.children_many(roots)
    assignments = [
        NodeEntry(root, node=node)
        if node is not None and not isinstance(node, OffsetMgrError) and not node.data
        else parse_entry(root, node, partial(parse_topic, root), strict=strict)
        for root, node in zip(roots, held, strict=True)
    ]
    states = _states(session, names, assignments, strict)
    counts = _counts(session, names, below)
    for name, assignment, children in zip(names, assignments, below, strict=True):
        if assignment.node is None and assignment.error is None:
            continue
        error = children if isinstance(children, OffsetMgrError) else None
        yield Topic(name, assignment, states.get(name, {}), counts.get(name, {}), error)


def _states(
    session: ZookeeperSession, names: list[str], assignments: list[NodeEntry[TopicAssignment]], strict: bool
) -> dict[str, dict[int, NodeEntry[PartitionState]]]:
    paths_to_read = [
        (name, partition)
        for name, assignment in zip(names, assignments, strict=True)
        if assignment.value is not None
        for partition in assignment.value.replicas
    ]
    places = [paths.partition_state(name, partition) for name, partition in paths_to_read]
    found = read_entries(session, [(path, partial(parse_partition_state, path)) for path in places], strict=strict)
    states: dict[str, dict[int, NodeEntry[PartitionState]]] = {}
    for (name, partition), state in zip(paths_to_read, found, strict=True):
        if state.node is not None or state.error is not None:
            states.setdefault(name, {})[partition] = state
    return states


def _counts(
    session: ZookeeperSession, names: list[str], below: list[list[str] | OffsetMgrError | None]
) -> dict[str, dict[int, NodeEntry[int]]]:
    topics_to_read = [
        (name, int(child))
        for name, children in zip(names, below, strict=True)
        if isinstance(children, list)
        for child in sorted(children)
        if _NUMBER.fullmatch(child)
    ]
    places = [f"{paths.topic(name)}/{broker}" for name, broker in topics_to_read]
    found = read_entries(session, [(path, partial(_count, path)) for path in places])
    counts: dict[str, dict[int, NodeEntry[int]]] = {}
    for (name, broker), count in zip(topics_to_read, found, strict=True):
        if count.node is not None or count.error is not None:
            counts.setdefault(name, {})[broker] = _bounded(count, broker)
    return counts


def _count(path: str, data: bytes, notes: Notes | None) -> int:  # noqa: ARG001 - a `Parse` takes notes
    return parse_partition_count(path, data)


def _bounded(count: NodeEntry[int], broker: int) -> NodeEntry[int]:
    """Returns the count, or an error if the broker id or the count exceeds the limits of Kafka 0.7."""
    value = count.value
    if value is None or (broker <= BrokerPartition.LARGEST_BROKER and value <= BrokerPartition.LARGEST_PARTITION + 1):
        return count
    why = f"contains {value} partitions of broker {broker}, but the limits of 0.7 are broker 65534 and partition 32767"
    return NodeEntry(count.path, error=CorruptData(f"ZooKeeper node {count.path}", why), node=count.node)
