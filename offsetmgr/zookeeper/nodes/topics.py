"""Parses the nodes of topics and partitions in ``/brokers/topics``, and the brokers' notifications about in-sync
replicas and log directories.

The nodes of topics and partitions in Kafka 0.8 and later are persistent. Sources: kafka.utils.ZkUtils of Kafka 0.8 to
1.1, kafka.zk.ZkData of later releases, and kafka.server.KafkaZooKeeper of Kafka 0.7.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.plurals import count_of
from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, format_ids, parse_number

LEADER_DURING_DELETE: Final = -2
"""The value of ``leader`` in a partition's state while the partition's topic is being deleted
(kafka.api.LeaderAndIsr)."""


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """``/brokers/topics/TOPIC``: the assigned replicas of each partition, the preferred leader first.

    The in-sync replicas are in the partition's state.
    """

    replicas: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Replicas that a running reassignment adds (version 2 and later, KIP-455)."""
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    topic_id: str | None = None
    """None before version 3 (KIP-516)."""

    def __str__(self) -> str:
        parts = [f"{count_of(len(self.replicas), 'partition')}:"]
        parts += [f"{partition}={format_ids(brokers)}" for partition, brokers in self.replicas.items()]
        for what, changes in (("adding", self.adding), ("removing", self.removing)):
            if changes:
                parts += [f"{what}:", *(f"{partition}={format_ids(brokers)}" for partition, brokers in changes.items())]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """``/brokers/topics/TOPIC/partitions/N/state``: the leader of a partition, and its in-sync replicas."""

    leader: int | None
    """None if the partition has no leader."""
    leader_epoch: int
    """Increases with each leader election."""
    isr: tuple[int, ...]
    controller_epoch: int
    """The epoch of the controller that wrote the state."""
    being_deleted: bool = False
    recovering: bool = False
    """Whether the leader was elected by an unclean election and has not completed its recovery yet (KIP-704)."""

    def __str__(self) -> str:
        leader = "no leader" if self.leader is None else f"leader {self.leader}"
        more = ", being deleted" * self.being_deleted + ", recovering" * self.recovering
        return f"{leader} (epoch {self.leader_epoch}), in sync {format_ids(self.isr) or 'none'}{more}"

    def irregularities(self, replicas: tuple[int, ...]) -> tuple[str, ...]:
        """Returns the conditions that need an administrator's attention. ``replicas`` are the assigned ones."""
        found = []
        if self.being_deleted:
            found.append("being deleted")
        elif self.leader is None:
            found.append("no leader")
        elif replicas and self.leader != replicas[0]:
            found.append(f"preferred leader is {replicas[0]}")
        if self.recovering:
            found.append("recovering from an unclean election")
        if behind := format_ids(broker for broker in replicas if broker not in self.isr):
            found.append(f"not in sync: {behind}")
        return tuple(found)


def parse_topic(path: str, data: bytes, notes: Notes | None = None) -> TopicAssignment:
    """Parses a topic's node. Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1, 2, 3) as node:
        if "partitions" not in node:
            raise corrupt(path, "has no 'partitions'")
        return TopicAssignment(
            node.ids_by_partition("partitions"),
            _present(node.ids_by_partition("adding_replicas")),
            _present(node.ids_by_partition("removing_replicas")),
            node.optional_text("topic_id"),
        )


def parse_partition_state(path: str, data: bytes, notes: Notes | None = None) -> PartitionState:
    """Parses a partition's state. Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1) as node:
        leader = node.integer("leader", LEADER_DURING_DELETE)
        return PartitionState(
            leader if leader >= 0 else None,
            node.integer("leader_epoch"),
            node.ids("isr"),
            node.integer("controller_epoch"),
            leader == LEADER_DURING_DELETE,
            node.optional_integer("leader_recovery_state", 0, 1) == 1,
        )


def parse_partition_count(path: str, data: bytes, notes: Notes | None = None) -> int:  # noqa: ARG001
    """Parses ``/brokers/topics/TOPIC/BROKER`` of Kafka 0.7: the number of the topic's partitions on this broker.

    Raises `CorruptData`, which names ``path``.
    """
    return parse_number(path, data, "a number of partitions")


def parse_log_dir_event(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/log_dir_event_notification/log_dir_event_N``: a broker lost a log directory (KIP-112). Raises
    `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1) as node:
        return f"broker {node.integer('broker')}: event {node.integer('event')}"


def _present(lists: Mapping[int, tuple[int, ...]]) -> Mapping[int, tuple[int, ...]]:
    return {partition: brokers for partition, brokers in lists.items() if brokers}
