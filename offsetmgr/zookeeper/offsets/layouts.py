"""Layouts of a group's committed offsets: the nodes' paths, and the meaning of their bytes.

No I/O here. `offsetmgr.stores.zookeeper` reads and writes the nodes. The layout of Storm's spouts, which differs, is in
`storm_layout`.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from offsetmgr.core.errors import (
    UsageError,
)
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.offset_store import (
    PartitionKinds,
)
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import check_offset, parse_decimal
from offsetmgr.zookeeper.offsets.storm_layout import StormLayout

OTHER_LAYOUT_HINTS: Final = {
    "0.8": "offsets named BROKER-PARTITION are of layout 0.7; otherwise ask for the partitions by name",
    "0.7": "there it is BROKER-PARTITION (up to 65534-32767); offsets named by a number alone are of layout 0.8",
    "storm": "there it is partition_N; is root= the spouts' zkRoot, with their ids directly under it?",
}
"""The possible meaning of a name that is no partition, by layout."""

LAYOUTS: Final = ("0.8", "0.7", "storm")

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")


class Layout(Protocol):
    """Offsets as a tree: groups, under each its offsets' root, under that topics with one node per partition.

    If ``loose`` is true, partitions' nodes may also lie directly under the root, and name their topic themselves.
    """

    @property
    def name(self) -> str:
        """The name in the store's URI: ``layout=NAME``."""
        ...

    @property
    def query(self) -> str:
        """The layout as in a store's URI, after the ``?``."""
        ...

    @property
    def partitions(self) -> PartitionKinds:
        """The kind of partitions that this layout can hold."""
        ...

    @property
    def loose(self) -> bool: ...

    @property
    def registry(self) -> bool:
        """Whether the group's consumers register themselves in ZooKeeper, in ``/consumers/GROUP/ids``."""
        ...

    @property
    def groups_root(self) -> str:
        """The node whose children are named after the groups."""
        ...

    def group_root(self, group: str) -> str:
        """The node under which all of a group lies. Raises `UsageError` for an impossible group id."""
        ...

    def offsets_root(self, group: str) -> str:
        """The offsets' root; its children are named after the topics. Raises `UsageError` for an impossible group
        id."""
        ...

    def path(self, group: str, partition: TopicPartition) -> str:
        """The node that holds the partition's offset. Raises `UsageError` for impossible names."""
        ...

    def topic_directory(self, group: str, topic: str) -> str | None:
        """If this node exists, it overrides `path`: the topic's nodes lie under it, with the same names. None if the
        layout leaves no choice."""
        ...

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        """The partition of a topic's child; None if its name is not a partition in this layout.

        ``topic`` is empty for a loose node, and so is the topic of the result.
        """
        ...

    def encode(self, partition: TopicPartition, offset: int, held: bytes | None) -> bytes:
        """A node's data for an offset; ``held`` is its present data. Raises `UsageError` for an invalid offset."""
        ...

    def decode(self, path: str, data: bytes, partition: TopicPartition) -> tuple[TopicPartition, int]:
        """A node's partition and offset. The partition's topic may differ from that of ``partition``, or complete it if
        the node's name left it open. Raises `CorruptData` naming the node."""
        ...

    def topic(self, data: bytes) -> str:
        """The topic that a loose node names; empty if it cannot be determined."""
        ...


class ConsumersLayout:
    """Kafka 0.8 and later: ``/consumers/GROUP/offsets/TOPIC/PARTITION`` holds the offset in ASCII decimal.

    Source: kafka.utils.ZKGroupTopicDirs and ZookeeperConsumerConnector.commitOffsetToZooKeeper of 0.8 to 1.1.
    """

    name = "0.8"
    query = "layout=0.8"
    partitions = PartitionKinds.NUMBERED
    loose = False
    registry = True
    groups_root = paths.CONSUMERS

    def group_root(self, group: str) -> str:
        return paths.group(group)

    def offsets_root(self, group: str) -> str:
        return paths.offsets(group)

    def path(self, group: str, partition: TopicPartition) -> str:
        return paths.offset(group, partition.topic, partition.partition)

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

    Source: ZookeeperConsumerConnector.commitOffsets and kafka.cluster.Partition of 0.7.2, and
    "Consumer offset tracking" of Kafka 0.7's documentation.
    """

    name = "0.7"
    query = "layout=0.7"
    partitions = PartitionKinds.OF_BROKERS

    def path(self, group: str, partition: TopicPartition) -> str:
        return paths.offset_of_broker(group, partition.topic, partition.partition)

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        found = BrokerPartition.parse(node)
        return None if found is None else TopicPartition(topic, found)


def layout_named(name: str, root: str = "") -> Layout:
    """The layout of that name; ``root`` is Storm's ``zkRoot``. Raises `UsageError` for an unknown name, a bad root."""
    if name == "storm":
        return StormLayout(root)
    if root:
        raise UsageError(f"layout {name!r}", "has no root of its own", "root= belongs to layout=storm")
    if name == BrokersLayout.name:
        return BrokersLayout()
    if name == ConsumersLayout.name:
        return ConsumersLayout()
    raise UsageError(f"layout {name!r}", "is unknown", f"layouts: {', '.join(LAYOUTS)}")
