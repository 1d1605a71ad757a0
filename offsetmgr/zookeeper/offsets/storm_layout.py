"""The nodes in which Storm's Kafka spouts store their offsets. No I/O.

``zkRoot/ID/partition_N`` holds a JSON object; a spout that reads topics by a pattern adds the topic:
``zkRoot/ID/TOPIC/partition_N``. The spout's id serves as the group. A topology reads back ``topology.id`` (it ignores a
node without it) and ``offset``, the offset of the next message. Source: PartitionManager.commit and Partition.getId of
storm-kafka 0.9 to 1.2.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Final

from offsetmgr.core.errors import CorruptData, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import PartitionKinds
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import MAX_OFFSET, check_offset

_NODE: Final = re.compile("partition_(0|[1-9][0-9]{0,9})")
_NOBODY: Final = {"id": "offsetmgr", "name": "offsetmgr"}
"""The writer's identity in a node that no topology has written yet."""


class StormLayout:
    """See the module. If a topic's directory exists, its nodes lie there; otherwise they are loose."""

    name = "storm"
    partitions = PartitionKinds.NUMBERED
    loose = True
    registry = False

    def __init__(self, root: str) -> None:
        """``root`` is the spout's ``zkRoot``, with its leading slash. Raises `UsageError`."""
        if not root.startswith("/") or any(part in ("", ".", "..") for part in root.split("/")[1:]):
            raise UsageError(
                f"layout storm with root {root!r}",
                "needs the zkRoot of the spout, an absolute path",
                "as in zookeeper://h:2181?layout=storm&root=/kafkastorm",
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
        # A topic of this very name could not be distinguished from a partition's node.
        return None if _NODE.fullmatch(topic) else f"{self.group_root(group)}/{paths.check_topic(topic)}"

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        found = _NODE.fullmatch(node)
        return None if found is None else TopicPartition(topic, int(found[1]))

    def encode(self, partition: TopicPartition, offset: int, held: bytes | None) -> bytes:
        """The node with the new offset; all other fields that a topology wrote are kept."""
        check_offset(offset)
        node = _object("", held) if held is not None else {"topology": _NOBODY, "offset": 0}
        node["offset"] = offset
        if held is None:
            node |= {"partition": int(partition.partition), "broker": {"host": "", "port": 0}}
            node["topic"] = partition.topic
        return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, path: str, data: bytes, partition: TopicPartition) -> tuple[TopicPartition, int]:
        node = _object(path, data)
        offset, topic, number = node.get("offset"), node.get("topic"), node.get("partition")
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise _unreadable(path, f"its 'offset' is {_shown(offset)}, which is no committed offset")
        if not isinstance(topic, str) or not topic:
            raise _unreadable(path, f"its 'topic' is {_shown(topic)}, so the partition of its offset is unknown")
        if number is not None and (type(number) is not int or number != partition.partition):
            raise _unreadable(path, f"its 'partition' is {_shown(number)}, its name says {partition.partition}")
        return partition if topic == partition.topic else TopicPartition(topic, partition.partition), offset

    def topic(self, data: bytes) -> str:
        with contextlib.suppress(CorruptData):
            topic = _object("", data).get("topic")
            return topic if isinstance(topic, str) else ""
        return ""


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        node = json.loads(data)
    except (ValueError, RecursionError):
        raise _unreadable(path, "is not JSON" if data else "is empty instead of holding an offset") from None
    if not isinstance(node, dict):
        raise _unreadable(path, "is JSON, but not an object")
    return node


def _unreadable(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why, "a spout writes a JSON object with topic and offset")


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
