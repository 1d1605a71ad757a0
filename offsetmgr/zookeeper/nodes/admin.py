"""Parses the nodes below ``/admin``, through which administrators send requests to the controller.

Sources: kafka.utils.ZkUtils of Kafka 0.8 to 1.1, and kafka.zk.ZkData of later releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, format_ids


@dataclass(frozen=True, slots=True)
class Reassignments:
    """``/admin/reassign_partitions``: the requested replicas of each partition."""

    replicas: Mapping[TopicPartition, tuple[int, ...]]

    def __str__(self) -> str:
        moves = (f"{partition}={format_ids(to)}" for partition, to in self.replicas.items())
        return " ".join(moves) or "no partitions"


def parse_reassignments(path: str, data: bytes, notes: Notes | None = None) -> Reassignments:
    """Parses ``/admin/reassign_partitions``.

    Raises `CorruptData` (also if the node lists a partition twice) and, without ``notes``, `UnknownVersion`.
    """
    found: dict[TopicPartition, tuple[int, ...]] = {}
    with Fields.versioned(path, data, notes, 1) as node:
        for one in node.objects("partitions"):
            with one:
                partition = _partition(one)
                if partition in found:
                    raise corrupt(path, f"names {str(partition)!a} twice")
                found[partition] = one.ids("replicas")
                one.get("log_dirs")  # only the reassignment tool writes this field (KIP-113)
    return Reassignments(found)


def parse_partitions(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/admin/preferred_replica_election``, which lists the partitions whose preferred replica is to become the
    leader, or ``/isr_change_notification/isr_change_N``, which lists those whose in-sync replicas changed.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    found = []
    with Fields.versioned(path, data, notes, 1) as node:
        for one in node.objects("partitions"):
            with one:
                found.append(str(_partition(one)))
    return " ".join(found) or "no partitions"


def parse_topic_deletions(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses the list of topics in ``/admin/delete_topics``.

    Brokers ignore this list. Since Kafka 0.8.1 the node has no data. To request the deletion of a topic, a client
    creates an empty child of the node, with the topic's name. Raises `CorruptData` and, without ``notes``,
    `UnknownVersion`; both name ``path``.
    """
    with Fields.versioned(path, data, notes, 1) as node:
        topics = node.get("topics")
        if not isinstance(topics, list) or not all(isinstance(topic, str) and topic for topic in topics):
            raise node.invalid("topics", "a list of topics")
        return " ".join(topics) or "no topics"


def _partition(one: Fields) -> TopicPartition:
    return TopicPartition(one.text("topic"), one.integer("partition"))
