"""Encodes a group snapshot as a JSON file. Decodes a snapshot file, or the output of ``zk members --format json``.
Pure.

Version 1: ``{"format": "offsetmgr-group", "version": 1, "group", "taken_at_ms", "brokers": [id] | null, "members": {id:
{"pattern", "subscription"} | null}, "topics": {topic: {partition: [broker]}}, "owners": {topic: {partition:
"member-thread" | null}} | null}``. Partitions are strings; a partition of Kafka 0.7 has the form ``BROKER-PARTITION``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from offsetmgr.core.errors import CorruptData, MalformedData, UnknownVersion, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes.consumers import STATIC, parse_owner
from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot

FORMAT: Final = "offsetmgr-group"
VERSION: Final = 1
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
V = TypeVar("V")


def encode(snapshot: GroupSnapshot, taken_at_ms: int) -> bytes:
    """Encodes a snapshot file; ``taken_at_ms`` is the time of the snapshot (ms since 1970)."""
    owners: dict[str, dict[str, str | None]] | None = None
    if snapshot.owners is not None:
        owners = {}
        for (topic, partition), thread in sorted(snapshot.owners.items()):
            owners.setdefault(topic, {})[str(partition)] = None if thread is None else str(thread)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "group": snapshot.group,
        "taken_at_ms": taken_at_ms,
        "brokers": None if snapshot.brokers is None else sorted(snapshot.brokers),
        "members": {
            member: None if held is None else {"pattern": held.kind, "subscription": dict(held.streams)}
            for member, held in sorted(snapshot.members.items())
        },
        "topics": {
            topic: {str(partition): list(brokers) for partition, brokers in sorted(held.items())}
            for topic, held in sorted(snapshot.topics.items())
        },
        "owners": owners,
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def decode(name: str, data: bytes, group: str | None = None) -> GroupSnapshot:
    """Decodes a snapshot file, or the output of ``zk members --format json``, which contains only members.

    ``name`` identifies the file in errors. ``group`` selects a group if the file contains several. Raises
    `MalformedData` and `UnknownVersion`. Raises `UsageError` if the file does not contain ``group``, or if ``group`` is
    None and the file contains several groups.
    """
    return _SnapshotFile(name).snapshot(data, group)


class _SnapshotFile:
    def __init__(self, name: str) -> None:
        self._name = name

    def snapshot(self, data: bytes, group: str | None) -> GroupSnapshot:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as broken:
            raise MalformedData(f"file {self._name}", f"is not JSON: {broken}") from broken
        if isinstance(document, list):
            return self._listed_members(document, group)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            self._malformed("is neither a group saved by zk rebalance nor the output of zk members --format json")
        if document.get("version") != VERSION:
            raise UnknownVersion(f"file {self._name}", f"is of version {document.get('version')!r}; known: {VERSION}")
        found = document.get("group")
        if not isinstance(found, str):
            self._malformed("its 'group' is not a string")
        if group is not None and found != group:
            raise UsageError(f"group {group}", f"is not in {self._name}, which contains group {found}")
        return GroupSnapshot(
            found,
            self._mapped(document, "members", self._member),
            self._mapped(document, "topics", self._partitions),
            self._owners(document),
            self._brokers(document.get("brokers")),
        )

    def _listed_members(self, rows: list[Any], group: str | None) -> GroupSnapshot:
        if not all(isinstance(row, dict) and {"group", "member_id", "subscription"} <= row.keys() for row in rows):
            self._malformed("is a list, but not the output of zk members --format json")
        groups = sorted({str(row["group"]) for row in rows})
        if group is None and len(groups) != 1:
            raise UsageError(f"file {self._name}", f"has {len(groups)} groups", "name one: --group NAME")
        chosen = groups[0] if group is None else group
        if chosen not in groups:
            raise UsageError(f"group {chosen}", f"is not in {self._name}", f"there are: {', '.join(groups)}")
        members = {str(row["member_id"]): self._row(row) for row in rows if row["group"] == chosen}
        return GroupSnapshot(chosen, members, {}, None, None)

    def _row(self, row: Mapping[str, Any]) -> Subscription | None:
        text = row["subscription"]
        if text is None:
            return None
        streams: dict[str, int] = {}
        for part in str(text).split(" "):
            topic, _, count = part.rpartition("=")
            if not topic or not _NUMBER.fullmatch(count):
                self._malformed(f"{part!r} is not TOPIC=STREAMS, in the subscription of {row['member_id']}")
            streams[topic] = int(count)
        return Subscription(str(row.get("pattern") or STATIC), streams)

    def _member(self, what: str, held: Any) -> Subscription | None:
        if held is None:
            return None
        streams = held.get("subscription") if isinstance(held, dict) else None
        if not isinstance(streams, dict) or not all(type(n) is int and n >= 0 for n in streams.values()):
            self._malformed(f"{what} has no 'subscription' of topics and numbers")
        kind = held.get("pattern", STATIC)
        if not isinstance(kind, str):
            self._malformed(f"{what} has a 'pattern' that is not a string")
        return Subscription(kind, streams)

    def _partitions(self, what: str, held: Any) -> dict[int, tuple[int, ...]]:
        if not isinstance(held, dict):
            self._malformed(f"{what} is not a map from partitions to brokers")
        found = {}
        for partition, brokers in held.items():
            if not isinstance(brokers, list) or not all(type(one) is int for one in brokers):
                self._malformed(f"{what} has a partition {partition} whose brokers are not a list of numbers")
            found[self._partition(what, partition)] = tuple(brokers)
        return found

    def _owners(self, document: Mapping[str, Any]) -> dict[TopicPartition, ThreadId | None] | None:
        if document.get("owners") is None:
            return None
        owners: dict[TopicPartition, ThreadId | None] = {}
        for topic, held in self._mapped(document, "owners", lambda _, held: held).items():
            if not isinstance(held, dict) or not all(one is None or isinstance(one, str) for one in held.values()):
                self._malformed(f"the owners of topic {topic} are not a map from partitions to threads")
            for partition, text in held.items():
                thread = None if text is None else self._thread(topic, text)
                owners[TopicPartition(topic, self._partition(f"topic {topic}", partition))] = thread
        return owners

    def _thread(self, topic: str, text: str) -> ThreadId:
        try:
            return ThreadId(*parse_owner(topic, text.encode()))
        except CorruptData:
            self._malformed(f"an owner of topic {topic}, {text!r}, is not CONSUMER-THREAD")

    def _partition(self, what: str, text: str) -> int:
        found = BrokerPartition.parse(text)
        if found is None and not _NUMBER.fullmatch(text):
            self._malformed(f"{what} has a partition {text!r}")
        return int(text) if found is None else found

    def _brokers(self, found: Any) -> frozenset[int] | None:
        if found is None:
            return None
        if not isinstance(found, list) or not all(type(one) is int for one in found):
            self._malformed("its 'brokers' are not a list of numbers")
        return frozenset(found)

    def _mapped(self, document: Mapping[str, Any], name: str, read: Callable[[str, Any], V]) -> dict[str, V]:
        held = document.get(name)
        if not isinstance(held, dict):
            self._malformed(f"its {name!r} is not an object")
        return {key: read(f"{name.removesuffix('s')} {key}", value) for key, value in held.items()}

    def _malformed(self, why: str) -> NoReturn:
        raise MalformedData(f"file {self._name}", why)
