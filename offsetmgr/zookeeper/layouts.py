"""How a group's committed offsets are laid out in nodes: where they are, and what a node's bytes mean.

No I/O here.  A layout says which nodes hold offsets; `offsetmgr.stores.zookeeper` reads and writes them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Protocol

from offsetmgr.errors import Unreadable, UnsupportedOperation, UsageError
from offsetmgr.model import TopicPartition
from offsetmgr.zookeeper import paths

MAX_OFFSET: Final = 2**63 - 1

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")


class Layout(Protocol):
    """Offsets as a tree: groups, under each its offsets' root, then topics, then one node a partition."""

    @property
    def name(self) -> str:
        """As in the store's URI: ``layout=NAME``."""
        ...

    @property
    def groups_root(self) -> str:
        """The node whose children are named after the groups."""
        ...

    def offsets_root(self, group: str) -> str:
        """The node whose children are named after the topics. Raises `UsageError` for an impossible group id."""
        ...

    def path(self, group: str, partition: TopicPartition) -> str:
        """The node that holds the partition's offset. Raises `UsageError` for impossible names."""
        ...

    def parents(self, group: str, topic: str) -> tuple[str, ...]:
        """Every node that must exist above a partition's node, outermost first."""
        ...

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        """The partition that a topic's child stands for; None where its name is no such thing in this layout."""
        ...

    def encode(self, offset: int) -> bytes:
        """A node's data for an offset. Raises `UsageError` for what is no offset."""
        ...

    def decode(self, path: str, data: bytes) -> int:
        """The offset that a node's data says. Raises `Unreadable` naming the node."""
        ...


class ConsumersLayout:
    """Kafka 0.8 and later: ``/consumers/GROUP/offsets/TOPIC/PARTITION`` holds the offset in ASCII decimal.

    Source: kafka.utils.ZKGroupTopicDirs and ZookeeperConsumerConnector.commitOffsetToZooKeeper of 0.8 to 1.1.
    """

    name = "0.8"
    groups_root = paths.CONSUMERS

    def offsets_root(self, group: str) -> str:
        return paths.offsets(group)

    def path(self, group: str, partition: TopicPartition) -> str:
        return paths.offset(group, partition.topic, partition.partition)

    def parents(self, group: str, topic: str) -> tuple[str, ...]:
        return _parents(group, topic)

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        return TopicPartition(topic, int(node)) if _NUMBER.fullmatch(node) else None

    def encode(self, offset: int) -> bytes:
        if not 0 <= offset <= MAX_OFFSET:
            raise UsageError(f"offset {offset}", "is no offset: they go from 0 to 9223372036854775807")
        return b"%d" % offset

    def decode(self, path: str, data: bytes) -> int:
        # Strictly the digits that Long.toString writes and String.toLong reads; int() alone would take "1_0" and " 7".
        if data.isdigit() and (offset := int(data)) <= MAX_OFFSET:
            return offset
        raise Unreadable(f"ZooKeeper node {path}", _not_an_offset(data))


@lru_cache(maxsize=4096)
def _parents(group: str, topic: str) -> tuple[str, ...]:
    # Remembered, because it is asked for every partition of a topic in turn.
    return paths.CONSUMERS, paths.group(group), paths.offsets(group), paths.offsets_of_topic(group, topic)


def layout_named(name: str) -> Layout:
    """The layout of that name. Raises `UnsupportedOperation` for one that is known but not built, else `UsageError`."""
    if name == ConsumersLayout.name:
        return ConsumersLayout()
    if name in ("0.7", "storm"):
        raise UnsupportedOperation(f"layout {name}", "offsets in this layout cannot be read by this version")
    raise UsageError(f"layout {name!r}", "is unknown", "layouts: 0.8, 0.7, storm")


def _not_an_offset(data: bytes) -> str:
    if not data:
        return "is empty instead of holding an offset"
    shown = data[:40].decode("ascii", "backslashreplace") + ("..." if len(data) > 40 else "")
    if re.fullmatch(rb"-[0-9]{1,19}", data):
        return f"holds {shown}: a negative number is no committed offset, and does not say that there is none"
    if data.isdigit():
        return f"holds {shown}, which is beyond the largest offset"
    return f"holds {shown!r}, which is not a decimal number"
