"""`StormLayout`: the nodes in which Storm's Kafka spouts store their offsets. No I/O.

``zkRoot/ID/partition_N`` holds a JSON object. If a spout reads topics by a pattern, the path also contains the topic:
``zkRoot/ID/TOPIC/partition_N``. offsetmgr uses the spout's id as the group. When a topology starts, it reads two fields
of the JSON object: ``offset``, which is the offset of the next message, and ``topology.id``. The topology ignores a
node that does not contain ``topology.id``. Source: PartitionManager.commit and Partition.getId of storm-kafka 0.9 to
1.2.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Final

from offsetmgr.core.errors import CorruptData, UnsupportedOperation, UsageError
from offsetmgr.core.field_reader import parse_json
from offsetmgr.core.model import TopicPartition, is_valid_offset
from offsetmgr.core.offset_store import PartitionKinds
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import check_offset

_NODE: Final = re.compile("partition_(0|[1-9][0-9]{0,9})")
TRIDENT_NODES: Final = frozenset({"currtx", "currattempts"})
"""The nodes with the present transaction of a Trident topology: ``ROOT/TXID/coordinator/NAME``."""
TRIDENT: Final = "is of a Storm Trident topology, whose state offsetmgr neither reads nor edits"
TRIDENT_HINT: Final = "root= must be the zkRoot of a storm-kafka spout; Trident's start is set in the topology"
_OFFSETMGR_TOPOLOGY: Final = {"id": "offsetmgr", "name": "offsetmgr"}
"""The value of the field ``topology`` in a node that offsetmgr creates."""


class StormLayout:
    """The layout ``zkRoot/ID/[TOPIC/]partition_N``. If a topic's directory does not exist, the topic's nodes are loose
    nodes (see `Layout`)."""

    name = "storm"
    partitions = PartitionKinds.NUMBERED
    topic_in_data = True
    has_registry = False

    def __init__(self, root: str) -> None:
        """``root`` is the spout's ``zkRoot``, with its leading slash. Raises `UsageError`."""
        if not root.startswith("/") or any(part in ("", ".", "..") for part in root.split("/")[1:]):
            raise UsageError(
                f"layout storm with root {root!r}",
                "needs the spout's zkRoot, an absolute path",
                "for example: zookeeper://h:2181?layout=storm&root=/kafkastorm",
            )
        self.groups_root = root
        self.query = f"layout=storm&root={root}"

    def group_root(self, group: str) -> str:
        return f"{self.groups_root}/{paths.check_group(group)}"

    def offsets_root(self, group: str) -> str:
        return self.group_root(group)

    def path(self, group: str, partition: TopicPartition) -> str:
        paths.check_topic(partition.topic)
        return f"{self.group_root(group)}/partition_{paths.check_partition(partition.partition)}"

    def topic_directory(self, group: str, topic: str) -> str | None:
        # A topic directory with the name of a partition's node could not be distinguished from this node.
        return None if _NODE.fullmatch(topic) else f"{self.group_root(group)}/{paths.check_topic(topic)}"

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        found = _NODE.fullmatch(node)
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
    node = parse_json(data, lambda why: _unreadable(path, why))
    if not isinstance(node, dict):
        raise _unreadable(path, "is JSON, but not an object")
    return node


def _unreadable(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why, "a spout writes a JSON object with topic and offset")


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
