"""`Layout`: the paths and the data format of a group's committed offsets. There is one layout for Kafka 0.7, one for
Kafka 0.8 and later, and one for the spouts of Storm.

This module performs no I/O. `offsetmgr.stores.zookeeper` reads and writes the nodes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container, Iterable
from typing import Any, Final

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnsupportedOperation, UsageError, value_of
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import BrokerPartition, TopicPartition, is_valid_offset
from offsetmgr.core.offset_store import PartitionKinds
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import check_offset, parse_decimal

OTHER_LAYOUT_HINTS: Final = {
    "0.8": "nodes named BROKER-PARTITION belong to layout 0.7; otherwise name the partitions in the call",
    "0.7": "partitions of this layout are BROKER-PARTITION (up to 65534-32767); nodes named N belong to layout 0.8",
    "storm": "nodes of this layout are partition_N; check that root= is the spouts' zkRoot, the parent of their ids",
}
"""Layout -> the hint for a node whose name is not a partition in this layout."""

_SPOUT_HINT: Final = "a spout writes a JSON object with topic and offset"
_STORM_NODE: Final = re.compile("partition_(0|[1-9][0-9]{0,9})")
TRIDENT_NODES: Final = frozenset({"currtx", "currattempts"})
"""The nodes with the present transaction of a Trident topology: ``ROOT/TXID/coordinator/NAME``."""
TRIDENT: Final = "is of a Storm Trident topology, whose state offsetmgr neither reads nor edits"
TRIDENT_HINT: Final = "root= must be the zkRoot of a storm-kafka spout; Trident's start is set in the topology"
_OFFSETMGR_TOPOLOGY: Final = {"id": "offsetmgr", "name": "offsetmgr"}
"""The value of the field ``topology`` in a node that offsetmgr creates."""


class Layout:
    """A layout of the nodes that contain offsets. Each group has an offsets' root. The children of this root are the
    topics, and the children of a topic are the partitions. Other layouts derive from this one, the layout of Kafka 0.8
    and later.

    ``/consumers/GROUP/offsets/TOPIC/PARTITION`` holds the offset in ASCII decimal. Brokers of Kafka 1.1.0, and of no
    other release, store the commits of simple consumers in ``/consumers/GROUP/offset``. Source:
    kafka.utils.ZKGroupTopicDirs and ZookeeperConsumerConnector.commitOffsetToZooKeeper of Kafka 0.8 to 1.1;
    kafka.zk.ConsumerOffset of Kafka 1.1.0.

    In a layout with ``topic_in_data``, a partition's node may also be a direct child of the offsets' root. A direct
    child that is a partition's node is called a *loose node*. The data of a loose node contains the topic.
    """

    name = "0.8"
    """The layout's name in a store URI: ``layout=NAME``."""
    query = "layout=0.8"
    """The layout's parameters in a store URI, without the ``?``."""
    partitions = PartitionKinds.NUMBERED
    """The kind of partitions that this layout can store."""
    topic_in_data = False
    has_registry = True
    """Whether the groups' consumers register in ``/consumers/GROUP/ids``."""
    groups_root: str = paths.CONSUMERS
    """The node whose children are the groups."""

    def __init__(self) -> None:
        self.directories: dict[str, str | OffsetMgrError] = {}
        """The directory of each group whose offsets are not in ``offsets``, or the error if they are in both. See
        `group_nodes.locate_directories`."""

    def group_root(self, group: str) -> str:
        """The node that contains all nodes of a group. Raises `UsageError` if ZooKeeper cannot contain the group id."""
        return f"{self.groups_root}/{paths.check_group(group)}"

    def offsets_root(self, group: str) -> str:
        """The node whose children are the topics of a group. Raises as `group_root`."""
        return f"{self.group_root(group)}/{value_of(self.directories.get(group, 'offsets'))}"

    def path(self, group: str, partition: TopicPartition, directories: Container[str] = ()) -> str:  # noqa: ARG002
        """The path of the node with the partition's offset. ``directories`` are the existing ones of
        `topic_directory`. Raises `UsageError` if ZooKeeper cannot contain a node with this path."""
        return f"{self.offsets_root(group)}/{paths.check_topic(partition.topic)}/{self._node(partition)}"

    def _node(self, partition: TopicPartition) -> str:
        return str(paths.check_partition(partition.partition))

    def topic_directory(self, group: str, topic: str) -> str | None:
        """The path of a topic's optional directory; None if the layout has no optional directories. If the directory
        exists in ZooKeeper, it contains the nodes of the topic's partitions."""

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        """Returns the partition for a node's name, or None if the name is not a partition in this layout.

        For a loose node, ``topic`` and the topic of the result are empty.
        """
        return None if (number := paths.partition_number(node)) is None else TopicPartition(topic, number)

    def encode(self, partition: TopicPartition, offset: int, held: bytes | None) -> bytes:  # noqa: ARG002
        """Encodes an offset as a node's data. ``held`` is the node's present data, or None if the node does not exist.
        Raises `UsageError` for an invalid offset."""
        return b"%d" % check_offset(offset)

    def decode(self, path: str, data: bytes, partition: TopicPartition) -> tuple[TopicPartition, int]:
        """Decodes a node's partition and offset. ``partition`` is the partition that is derived from the node's name.

        The topic of the result can differ from the topic of ``partition``, because the data of a loose node contains
        its topic. Raises `CorruptData`, which names the node.
        """
        return partition, parse_decimal(path, data)

    def topic(self, data: bytes) -> str:  # noqa: ARG002
        """Returns the topic in the data of a loose node, or an empty string if the data cannot be decoded."""
        return ""


class BrokersLayout(Layout):
    """Kafka 0.7: ``/consumers/GROUP/offsets/TOPIC/BROKER-PARTITION`` holds a byte position in ASCII decimal.

    Source: ZookeeperConsumerConnector.commitOffsets and kafka.cluster.Partition of Kafka 0.7.2, and "Consumer offset
    tracking" of Kafka 0.7's documentation.
    """

    name = "0.7"
    query = "layout=0.7"
    partitions = PartitionKinds.OF_BROKERS

    def _node(self, partition: TopicPartition) -> str:
        return paths.check_broker_partition(partition.partition)

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        found = BrokerPartition.parse(node)
        return None if found is None else TopicPartition(topic, found)


class StormLayout(Layout):
    """The nodes of Storm's Kafka spouts: ``zkRoot/ID/[TOPIC/]partition_N`` holds a JSON object.

    The path contains the topic if a spout reads topics by a pattern. If a topic's directory does not exist, the topic's
    nodes are loose nodes (see `Layout`). offsetmgr uses the spout's id as the group. When a topology starts, it reads
    two fields of the JSON object: ``offset``, which is the offset of the next message, and ``topology.id``. The
    topology ignores a node that does not contain ``topology.id``. Source: PartitionManager.commit and Partition.getId
    of storm-kafka 0.9 to 1.2.
    """

    name = "storm"
    topic_in_data = True
    has_registry = False

    def __init__(self, root: str) -> None:
        """``root`` is the spout's ``zkRoot``, with its leading slash."""
        self.groups_root = root
        self.query = f"layout=storm&root={root}"

    def offsets_root(self, group: str) -> str:
        return self.group_root(group)

    def path(self, group: str, partition: TopicPartition, directories: Container[str] = ()) -> str:
        paths.check_topic(partition.topic)
        name = f"partition_{paths.check_partition(partition.partition)}"
        directory = self.topic_directory(group, partition.topic) if directories else None
        return f"{directory if directory in directories else self.group_root(group)}/{name}"

    def topic_directory(self, group: str, topic: str) -> str | None:
        # A topic directory with the name of a partition's node could not be distinguished from this node.
        return None if _STORM_NODE.fullmatch(topic) else f"{self.group_root(group)}/{paths.check_topic(topic)}"

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        found = _STORM_NODE.fullmatch(node)
        return None if found is None else TopicPartition(topic, int(found[1]))

    def encode(self, partition: TopicPartition, offset: int, held: bytes | None) -> bytes:
        """Replaces the offset in the node's data and keeps all other fields, or creates the data of a new node."""
        check_offset(offset)
        node = _object("", held) if held is not None else {"topology": _OFFSETMGR_TOPOLOGY, "offset": 0}
        node["offset"] = offset
        if held is None:
            node |= {"partition": int(partition.partition), "broker": {"host": "", "port": 0}}
            node["topic"] = partition.topic
        return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, path: str, data: bytes, partition: TopicPartition) -> tuple[TopicPartition, int]:
        node = _object(path, data)
        if "nextOffset" in node:
            raise UnsupportedOperation(f"ZooKeeper node {path}", TRIDENT, TRIDENT_HINT)
        offset, topic, number = node.get("offset"), node.get("topic"), node.get("partition")
        if type(offset) is not int or not is_valid_offset(offset):
            raise _unreadable(path, f"its 'offset' is {_shown(offset)}, which is not a committed offset")
        if not isinstance(topic, str) or not topic:
            raise _unreadable(path, f"its 'topic' is {_shown(topic)}, so the partition of its offset is unknown")
        if number is not None and (type(number) is not int or number != partition.partition):
            raise _unreadable(path, f"its 'partition' is {_shown(number)}, but its name contains {partition.partition}")
        return partition if topic == partition.topic else TopicPartition(topic, partition.partition), offset

    def topic(self, data: bytes) -> str:
        with contextlib.suppress(CorruptData):
            topic = _object("", data).get("topic")
            return topic if isinstance(topic, str) else ""
        return ""


def _object(path: str, data: bytes) -> dict[str, Any]:
    return dict(FieldReader.parse(data, f"ZooKeeper node {path}", CorruptData, _SPOUT_HINT).values)


def _unreadable(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why, _SPOUT_HINT)


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def layout_named(name: str, root: str = "") -> Layout:
    """Returns the layout with this name. ``root`` is the ``zkRoot`` of Storm's spouts; other layouts have no root. The
    parser of store URIs has checked both."""
    return StormLayout(root) if name == StormLayout.name else {"0.8": Layout, "0.7": BrokersLayout}[name]()


# Finds existing topic directories in a layout in which topic directories are optional (see `Layout.topic_directory`).
# If a topic's directory exists, it contains the nodes of the topic's partitions.


def existing_topic_directories(
    session: ZookeeperSession, layout: Layout, topics: Iterable[tuple[str, str]]
) -> set[str]:
    """Returns the topic directories that exist; ``topics`` are pairs of a group and a topic.

    Sends no request if the layout has no optional directories. Omits topics whose directory cannot exist in ZooKeeper.
    If a directory cannot be read, raises the error.
    """
    if not layout.topic_in_data:
        return set()
    directories: dict[str, None] = {}
    for group, topic in topics:
        with contextlib.suppress(UsageError):  # `Layout.path` reports the error for the partition
            if (directory := layout.topic_directory(group, topic)) is not None:
                directories[directory] = None
    nodes = session.get_many(list(directories))
    return {directory for directory, node in zip(directories, nodes, strict=True) if value_of(node) is not None}
