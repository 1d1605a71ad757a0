"""`Layout`: the paths and the data format of a group's committed offsets. There is one layout for Kafka 0.7, and one
for Kafka 0.8 and later.

This module performs no I/O. `offsetmgr.stores.zookeeper` reads and writes the nodes. `storm_layout` defines the layout
of Storm's spouts.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.offset_store import PartitionKinds
from offsetmgr.core.outcome import value_of
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import check_offset, parse_decimal
from offsetmgr.zookeeper.offsets.storm_layout import StormLayout

OTHER_LAYOUT_HINTS: Final = {
    "0.8": "nodes named BROKER-PARTITION belong to layout 0.7; otherwise name the partitions in the call",
    "0.7": "partitions of this layout are BROKER-PARTITION (up to 65534-32767); nodes named N belong to layout 0.8",
    "storm": "nodes of this layout are partition_N; check that root= is the spouts' zkRoot, the parent of their ids",
}
"""Layout -> the hint for a node whose name is not a partition in this layout."""

LAYOUTS: Final = ("0.8", "0.7", "storm")

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")


class Layout(Protocol):
    """A layout of the nodes that contain offsets. Each group has an offsets' root. The children of this root are the
    topics, and the children of a topic are the partitions.

    In a layout with ``topic_in_data``, a partition's node may also be a direct child of the offsets' root. A direct
    child that is a partition's node is called a *loose node*. The data of a loose node contains the topic.
    """

    @property
    def name(self) -> str:
        """The layout's name in a store URI: ``layout=NAME``."""
        ...

    @property
    def query(self) -> str:
        """The layout's parameters in a store URI, without the ``?``."""
        ...

    @property
    def partitions(self) -> PartitionKinds:
        """The kind of partitions that this layout can store."""
        ...

    @property
    def topic_in_data(self) -> bool: ...

    @property
    def has_registry(self) -> bool:
        """Whether the groups' consumers register in ``/consumers/GROUP/ids``."""
        ...

    @property
    def groups_root(self) -> str:
        """The node whose children are the groups."""
        ...

    def group_root(self, group: str) -> str:
        """The node that contains all nodes of a group. Raises `UsageError` if ZooKeeper cannot contain the group id."""
        ...

    def offsets_root(self, group: str) -> str:
        """The node whose children are the topics of a group. Raises `UsageError` if ZooKeeper cannot contain the group
        id."""
        ...

    def path(self, group: str, partition: TopicPartition) -> str:
        """The path of the node with the partition's offset. Raises `UsageError` if ZooKeeper cannot contain a node with
        this path."""
        ...

    def topic_directory(self, group: str, topic: str) -> str | None:
        """The path of a topic's optional directory; None if the layout has no optional directories.

        If the directory exists in ZooKeeper, it contains the nodes of the topic's partitions. The name of each node is
        the last part of the path that `path` returns.
        """
        ...

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        """Returns the partition for a node's name, or None if the name is not a partition in this layout.

        For a loose node, ``topic`` and the topic of the result are empty.
        """
        ...

    def encode(self, partition: TopicPartition, offset: int, held: bytes | None) -> bytes:
        """Encodes an offset as a node's data. ``held`` is the node's present data, or None if the node does not exist.
        Raises `UsageError` for an invalid offset."""
        ...

    def decode(self, path: str, data: bytes, partition: TopicPartition) -> tuple[TopicPartition, int]:
        """Decodes a node's partition and offset. ``partition`` is the partition that is derived from the node's name.

        The topic of the result can differ from the topic of ``partition``, because the data of a loose node contains
        its topic. Raises `CorruptData`, which names the node.
        """
        ...

    def topic(self, data: bytes) -> str:
        """Returns the topic in the data of a loose node, or an empty string if the data cannot be decoded."""
        ...


class ConsumersLayout:
    """Kafka 0.8 and later: ``/consumers/GROUP/offsets/TOPIC/PARTITION`` holds the offset in ASCII decimal. Brokers of
    Kafka 1.1.0, and of no other release, store the commits of simple consumers in ``/consumers/GROUP/offset``.

    Source: kafka.utils.ZKGroupTopicDirs and ZookeeperConsumerConnector.commitOffsetToZooKeeper of Kafka 0.8 to 1.1;
    kafka.zk.ConsumerOffset of Kafka 1.1.0.
    """

    name = "0.8"
    query = "layout=0.8"
    partitions = PartitionKinds.NUMBERED
    topic_in_data = False
    has_registry = True
    groups_root = paths.CONSUMERS

    def __init__(self) -> None:
        self.directories: dict[str, str | OffsetMgrError] = {}
        """The directory of each group whose offsets are not in ``offsets``, or the error if they are in both. See
        `group_nodes.locate_directories`."""

    def group_root(self, group: str) -> str:
        return paths.group(group)

    def offsets_root(self, group: str) -> str:
        return f"{paths.group(group)}/{value_of(self.directories.get(group, 'offsets'))}"

    def path(self, group: str, partition: TopicPartition) -> str:
        return f"{self.offsets_root(group)}/{paths.check_topic(partition.topic)}/{self._node(partition)}"

    def _node(self, partition: TopicPartition) -> str:
        return str(paths.check_partition(partition.partition))

    def topic_directory(self, group: str, topic: str) -> str | None:  # noqa: ARG002
        return None

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        return TopicPartition(topic, int(node)) if _NUMBER.fullmatch(node) else None

    def encode(self, partition: TopicPartition, offset: int, held: bytes | None) -> bytes:  # noqa: ARG002
        return b"%d" % check_offset(offset)

    def decode(self, path: str, data: bytes, partition: TopicPartition) -> tuple[TopicPartition, int]:
        return partition, parse_decimal(path, data)

    def topic(self, data: bytes) -> str:  # noqa: ARG002
        return ""


class BrokersLayout(ConsumersLayout):
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


def layout_named(name: str, root: str = "") -> Layout:
    """Returns the layout with this name. ``root`` is the ``zkRoot`` of Storm's spouts; other layouts have no root.
    Raises `UsageError` for an invalid name or root."""
    if name == "storm":
        return StormLayout(root)
    if root:
        raise UsageError(f"layout {name!r}", "takes no root", "root= belongs to layout=storm")
    if name == BrokersLayout.name:
        return BrokersLayout()
    if name == ConsumersLayout.name:
        return ConsumersLayout()
    raise UsageError(f"layout {name!r}", "is unknown", f"layouts: {', '.join(LAYOUTS)}")
