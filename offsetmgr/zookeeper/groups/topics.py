"""Reads topics and their partitions from ``/brokers/topics`` in bulk, for all Kafka releases. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.selection import TopicSelection
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.cluster_nodes import NodeEntry, Parse, parse_entry, read_entries
from offsetmgr.zookeeper.nodes.fields import errors_of
from offsetmgr.zookeeper.nodes.topics import (
    PartitionState,
    TopicAssignment,
    parse_partition_count,
    parse_partition_state,
    parse_topic,
)

T = TypeVar("T")
TOPICS_AT_ONCE: Final = 500


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


class PartitionReplicas(NamedTuple):
    """A partition of a topic. ``partition`` is None in a result for the whole topic, which has no partitions or could
    not be read. Replicas are broker ids, the preferred leader first."""

    topic: str
    partition: int | None
    replicas: tuple[int, ...]
    notes: tuple[str, ...]
    errors: tuple[OffsetMgrError, ...] = ()
    state: PartitionState | None = None
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    topic_id: str | None = None

    @property
    def leader(self) -> int | None:
        if isinstance(self.partition, BrokerPartition):
            return self.partition.broker
        return self.state.leader if self.state else None


def partition_replicas(topic: Topic, selection: TopicSelection, notes: tuple[str, ...]) -> Iterator[PartitionReplicas]:
    """Yields the selected partitions of a topic. ``notes`` are those of the topic."""
    notes += topic.assignment.notes
    assignment = topic.assignment.value
    broken = errors_of(topic.assignment.error, topic.error, *(count.error for count in topic.counts.values()))
    for partition in topic.partitions:
        if not selection.matches(TopicPartition(topic.name, partition)):
            continue
        if isinstance(partition, BrokerPartition):
            yield PartitionReplicas(topic.name, partition, (partition.broker,), notes)
        elif assignment is not None:
            entry, replicas = topic.states.get(partition), assignment.replicas[partition]
            state = entry.value if entry is not None else None
            own = ("no state yet",) if entry is None else entry.notes
            own += state.irregularities(replicas) if state is not None else ()
            errors = errors_of(entry.error) if entry is not None else ()
            adding, removing = assignment.adding.get(partition, ()), assignment.removing.get(partition, ())
            more = (errors, state, adding, removing, assignment.topic_id)
            yield PartitionReplicas(topic.name, partition, replicas, notes + own, *more)
    if broken or not topic.partitions:
        notes += () if broken else ("no partitions",)
        yield PartitionReplicas(topic.name, None, (), notes, broken)


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
        else parse_entry(root, node, parse_topic, strict=strict)
        for root, node in zip(roots, held, strict=True)
    ]
    replicas = ((name, found.value.replicas) for name, found in zip(names, assignments, strict=True) if found.value)
    partitions = [(name, partition) for name, known in replicas for partition in known]
    children = ((name, children) for name, children in zip(names, below, strict=True) if isinstance(children, list))
    brokers = [
        (name, int(one)) for name, known in children for one in sorted(known) if paths.partition_number(one) is not None
    ]
    states = _entries(session, partitions, paths.partition_state, parse_partition_state, strict)
    counts = _entries(session, brokers, lambda name, broker: f"{paths.topic(name)}/{broker}", parse_partition_count)
    for name, assignment, listed in zip(names, assignments, below, strict=True):
        if assignment.node is None and assignment.error is None:
            continue
        error = listed if isinstance(listed, OffsetMgrError) else None
        bounded = {broker: _bounded(count, broker) for broker, count in counts.get(name, {}).items()}
        yield Topic(name, assignment, states.get(name, {}), bounded, error)


def _entries(
    session: ZookeeperSession,
    keys: list[tuple[str, int]],
    path_of: Callable[[str, int], str],
    parse: Parse[T],
    strict: bool = False,
) -> dict[str, dict[int, NodeEntry[T]]]:
    """Reads the nodes of topics. ``keys`` are the topics and numbers of the nodes. Omits nodes that do not exist."""
    found = read_entries(session, [path_of(*key) for key in keys], parse, strict=strict)
    entries: dict[str, dict[int, NodeEntry[T]]] = {}
    for (name, number), entry in zip(keys, found, strict=True):
        if entry.node is not None or entry.error is not None:
            entries.setdefault(name, {})[number] = entry
    return entries


def _bounded(count: NodeEntry[int], broker: int) -> NodeEntry[int]:
    """Returns the count, or an error if the broker id or the count exceeds the limits of Kafka 0.7."""
    value = count.value
    if value is None or (broker <= BrokerPartition.LARGEST_BROKER and value <= BrokerPartition.LARGEST_PARTITION + 1):
        return count
    why = f"contains {value} partitions of broker {broker}, but the limits of 0.7 are broker 65534 and partition 32767"
    return NodeEntry(count.path, error=CorruptData(f"ZooKeeper node {count.path}", why), node=count.node)
