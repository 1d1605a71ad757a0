"""Encodes and decodes the bytes that managers exchange through the group protocol: a member's metadata and an
assignment.

Both are JSON with a version (data rule "versioned formats"). Readers ignore unknown fields. A change of a field needs a
new version and a new name of the group protocol, because the coordinator admits only members that share a protocol
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.manager.assignment import (
    Assignment,
    ManagerMetadata,
    NodeAddress,
    PendingRevocation,
    SharedConfig,
    assign,
)

T = TypeVar("T")

VERSION: Final = 3
_MAX_SHARD_GROUPS: Final = 1024
"""An upper limit for the number of shard groups in metadata; a larger number is invalid."""
_MIN_LONG: Final = -(2**63)
"""The minimum of all numbers, because the modules that use a number check its range."""


def encode_metadata(metadata: ManagerMetadata, attempt: int) -> bytes:
    """Encodes metadata. ``attempt`` differs in each JoinGroup of a process, because the coordinator answers a JoinGroup
    that is identical to the previous one from its memory, without a rebalance."""
    return _encode(
        {
            "host": metadata.host,
            "port": metadata.port,
            "parameters": metadata.parameters._asdict(),
            "owned": metadata.owned,
            "seen": metadata.seen,
            "seen_owners": metadata.seen_owners,
            "relay": metadata.relay,
            "waiting_for": [str(shard_group) for shard_group in sorted(metadata.waiting_for)],
            "leaving": metadata.leaving,
            "attempt": attempt,
        }
    )


def decode_metadata(data: bytes) -> ManagerMetadata:
    """Decodes metadata. Raises `UnknownVersion`, `MalformedData`."""
    found = _decode(data, "metadata of a manager")
    settings = found.object("parameters")
    parameters = SharedConfig(
        settings.text("topic"),
        settings.integer("partitions", _MIN_LONG),
        settings.integer("shard_groups", _MIN_LONG),
        settings.text("record_format"),
        settings.integer("protocol", _MIN_LONG),
        settings.integer("retention_ms", _MIN_LONG),
        settings.boolean("relay"),
    )
    if not 0 < parameters.shard_groups <= min(parameters.partitions, _MAX_SHARD_GROUPS):
        raise found.error(f"has {parameters.shard_groups} shard groups for {parameters.partitions} partitions")
    return ManagerMetadata(
        found.text("host"),
        found.integer("port", _MIN_LONG),
        parameters,
        _by_shard_group(found, "owned", found.integers("owned", _MIN_LONG)),
        found.integer("seen", _MIN_LONG),
        _by_shard_group(found, "seen_owners", found.texts("seen_owners")),
        found.mapping("relay"),
        _shard_groups(found, "waiting_for"),
        found.boolean("leaving"),
    )


def encode_assignment(assignment: Assignment) -> bytes:
    return _encode(
        {
            "generation": assignment.generation,
            "nodes": {member: node._asdict() for member, node in assignment.nodes.items()},
            "owners": assignment.owners,
            "waiting": {shard_group: waiting._asdict() for shard_group, waiting in assignment.waiting.items()},
            "rejected": assignment.rejected,
            "unreleased": [str(shard_group) for shard_group in sorted(assignment.unreleased)],
        }
    )


def decode_assignment(data: bytes) -> Assignment:
    """Decodes an assignment. Raises `UnknownVersion`, `MalformedData`."""
    found = _decode(data, "assignment of the managers' group")
    nodes, waiting = found.object("nodes"), found.object("waiting")
    return Assignment(
        found.integer("generation", _MIN_LONG),
        {member: _node(nodes.object(member)) for member in nodes.values},
        _by_shard_group(found, "owners", found.texts("owners")),
        _by_shard_group(found, "waiting", {name: _waiting(waiting.object(name)) for name in waiting.values}),
        found.texts("rejected"),
        _shard_groups(found, "unreleased"),
    )


def assign_members(generation: int, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    """Returns the encoded assignment of ``generation`` for each member. ``members`` are member ids with encoded
    metadata. The leader of the group calls this function."""
    readable, unreadable = [], {}
    for member, metadata in members:
        try:
            readable.append((member, decode_metadata(metadata)))
        except OffsetMgrError as error:
            unreadable[member] = str(error)
    assignment = encode_assignment(assign(generation, readable, unreadable))
    return {member: assignment for member, _ in members}


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **content}, separators=(",", ":")).encode()


def _decode(data: bytes, what: str) -> FieldReader:
    found = FieldReader.parse(data, what)
    found.version((VERSION,), "upgrade this manager if another manager is newer")
    return found


def _node(node: FieldReader) -> NodeAddress:
    node_id, port = node.integer("node_id", _MIN_LONG), node.integer("port", _MIN_LONG)
    return NodeAddress(node_id, node.text("host"), port, node.mapping("relay"))


def _waiting(waiting: FieldReader) -> PendingRevocation:
    return PendingRevocation(waiting.text("owner"), waiting.optional_text("successor"))


def _shard_groups(found: FieldReader, name: str) -> frozenset[int]:
    return frozenset(_by_shard_group(found, name, dict.fromkeys(found.text_list(name), None)))


def _by_shard_group(found: FieldReader, name: str, values: Mapping[str, T]) -> dict[int, T]:
    """Converts the keys of a field, which are strings in JSON, to numbers of shard groups."""
    for number in values:
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise found.error(f"has {number!a} where a shard group's number should be", name)
    return {int(number): value for number, value in values.items()}
