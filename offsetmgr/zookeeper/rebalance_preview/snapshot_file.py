"""Encodes a group snapshot as a JSON file. Decodes a snapshot file, or the output of ``zk members --format json``.
Pure.

Version 1: ``{"format": "offsetmgr-group", "version": 1, "group", "taken_at_ms", "brokers": [id] | null, "members": {id:
{"pattern", "subscription"} | null}, "topics": {topic: {partition: [broker]}}, "owners": {topic: {partition:
"member-thread" | null}} | null}``. Partitions are strings; a partition of Kafka 0.7 has the form ``BROKER-PARTITION``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.core.errors import CorruptData, MalformedData, UsageError
from offsetmgr.core.field_reader import FieldReader, parse_json
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes.consumers import STATIC, parse_owner
from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot

FORMAT: Final = "offsetmgr-group"
VERSION: Final = 1
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)


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
    what = f"file {name}"
    document = parse_json(data, lambda why: MalformedData(what, why))
    if isinstance(document, list):
        return _listed_members(what, document, group)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise MalformedData(what, "is neither a group saved by zk rebalance nor the output of zk members --format json")
    found = FieldReader(document, what)
    found.version((VERSION,))
    saved = found.text("group")
    if group is not None and saved != group:
        raise UsageError(f"group {group}", f"is not in {name}, which contains group {saved}")
    members, topics = found.object("members"), found.object("topics")
    return GroupSnapshot(
        saved,
        {member: _member(members, member) for member in members.values},
        {topic: _partitions(topics.object(topic)) for topic in topics.values},
        None if found.get("owners") is None else _owners(found.object("owners")),
        None if found.get("brokers") is None else frozenset(_ids(found, "brokers")),
    )


def _listed_members(what: str, rows: list[Any], group: str | None) -> GroupSnapshot:
    if not all(isinstance(row, dict) and {"group", "member_id", "subscription"} <= row.keys() for row in rows):
        raise MalformedData(what, "is a list, but not the output of zk members --format json")
    groups = sorted({str(row["group"]) for row in rows})
    if group is None and len(groups) != 1:
        raise UsageError(what, f"has {len(groups)} groups", "name one: --group NAME")
    chosen = groups[0] if group is None else group
    if chosen not in groups:
        raise UsageError(
            f"group {chosen}", f"is not in {what.removeprefix('file ')}", f"there are: {', '.join(groups)}"
        )
    members = {str(row["member_id"]): _row(what, row) for row in rows if row["group"] == chosen}
    return GroupSnapshot(chosen, members, {}, None, None)


def _row(what: str, row: Mapping[str, Any]) -> Subscription | None:
    text = row["subscription"]
    if text is None:
        return None
    streams: dict[str, int] = {}
    for part in str(text).split(" "):
        topic, _, count = part.rpartition("=")
        if not topic or not _NUMBER.fullmatch(count):
            why = f"{part!r} is not TOPIC=STREAMS, in the subscription of {row['member_id']}"
            raise MalformedData(what, why)
        streams[topic] = int(count)
    return Subscription(str(row.get("pattern") or STATIC), streams)


def _member(members: FieldReader, name: str) -> Subscription | None:
    if members.get(name) is None:
        return None
    member = members.object(name)
    return Subscription(member.optional_text("pattern") or STATIC, member.integers("subscription"))


def _partitions(topic: FieldReader) -> dict[int, tuple[int, ...]]:
    return {_partition(topic, name): _ids(topic, name) for name in topic.values}


def _owners(topics: FieldReader) -> dict[TopicPartition, ThreadId | None]:
    owners: dict[TopicPartition, ThreadId | None] = {}
    for topic in topics.values:
        held = topics.object(topic)
        for name in held.values:
            owners[TopicPartition(topic, _partition(held, name))] = _thread(held, topic, name)
    return owners


def _thread(held: FieldReader, topic: str, name: str) -> ThreadId | None:
    text = held.optional_text(name)
    try:
        return None if text is None else ThreadId(*parse_owner(topic, text.encode()))
    except CorruptData:
        raise held.invalid(name, "CONSUMER-THREAD") from None


def _partition(topic: FieldReader, name: str) -> int:
    found = BrokerPartition.parse(name)
    if found is None and not _NUMBER.fullmatch(name):
        raise topic.error("is not named after a partition", name)
    return int(name) if found is None else found


def _ids(fields: FieldReader, name: str) -> tuple[int, ...]:
    found = fields.get(name)
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        raise fields.invalid(name, "a list of numbers")
    return tuple(found)
