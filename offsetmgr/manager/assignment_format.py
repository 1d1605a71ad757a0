"""Encodes and decodes the bytes that managers exchange through the group protocol: a member's metadata and an
assignment.

Both are JSON with a version (data rule "versioned formats"). Readers ignore unknown fields. A change of a field needs a
new version and a new name of the group protocol, because the coordinator admits only members that share a protocol
name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from offsetmgr.core.errors import MalformedData, UnknownVersion
from offsetmgr.manager.assignment import Assignment, ManagerMetadata, NodeAddress, PendingRevocation, SharedConfig

T = TypeVar("T")

VERSION: Final = 2
_MAX_SHARD_GROUPS: Final = 1024
"""An upper limit for the number of shard groups in metadata; a larger number is invalid."""
_METADATA: Final = "metadata of a manager"
_ASSIGNMENT: Final = "assignment of the managers' group"


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
            "attempt": attempt,
        }
    )


def decode_metadata(data: bytes) -> ManagerMetadata:
    """Decodes metadata. Raises `UnknownVersion`, `MalformedData`."""
    found = _decode(data, _METADATA)
    settings = _object(found, "parameters", _METADATA)
    parameters = SharedConfig(
        _text(settings, "topic", _METADATA),
        _number(settings, "partitions", _METADATA),
        _number(settings, "shard_groups", _METADATA),
        _text(settings, "record_format", _METADATA),
        _number(settings, "protocol", _METADATA),
        _number(settings, "retention_ms", _METADATA),
        _boolean(settings, "relay", _METADATA),
    )
    if not 0 < parameters.shard_groups <= min(parameters.partitions, _MAX_SHARD_GROUPS):
        _malformed(_METADATA, f"{parameters.shard_groups} shard groups for {parameters.partitions} partitions")
    return ManagerMetadata(
        _text(found, "host", _METADATA),
        _number(found, "port", _METADATA),
        parameters,
        _by_shard_group(found, "owned", _METADATA, _as_number),
        _number(found, "seen", _METADATA),
        _by_shard_group(found, "seen_owners", _METADATA, _as_text),
        _object(found, "relay", _METADATA),
    )


def encode_assignment(assignment: Assignment) -> bytes:
    return _encode(
        {
            "generation": assignment.generation,
            "nodes": {member: node._asdict() for member, node in assignment.nodes.items()},
            "owners": assignment.owners,
            "waiting": {shard_group: waiting._asdict() for shard_group, waiting in assignment.waiting.items()},
            "rejected": assignment.rejected,
        }
    )


def decode_assignment(data: bytes) -> Assignment:
    """Decodes an assignment. Raises `UnknownVersion`, `MalformedData`."""
    found = _decode(data, _ASSIGNMENT)
    rejected = _object(found, "rejected", _ASSIGNMENT)
    nodes = _object(found, "nodes", _ASSIGNMENT)
    return Assignment(
        _number(found, "generation", _ASSIGNMENT),
        {member: _as_node(node, f"nodes.{member}", _ASSIGNMENT) for member, node in nodes.items()},
        _by_shard_group(found, "owners", _ASSIGNMENT, _as_text),
        _by_shard_group(found, "waiting", _ASSIGNMENT, _as_waiting),
        {member: _as_text(why, f"rejected.{member}", _ASSIGNMENT) for member, why in rejected.items()},
    )


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **content}, separators=(",", ":")).encode()


def _decode(data: bytes, what: str) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        _malformed(what, "it is not JSON")
    if not isinstance(found, dict):
        _malformed(what, "it is not a JSON object")
    version = _number(found, "version", what)
    if version != VERSION:
        raise UnknownVersion(
            what,
            f"its version is {version}; the supported version is {VERSION}",
            "upgrade this manager if another manager is newer",
        )
    return found


def _malformed(what: str, why: str) -> NoReturn:
    raise MalformedData(what, why)


def _object(found: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict):
        _malformed(what, f"{name} is not an object")
    return value


def _text(found: Mapping[str, Any], name: str, what: str) -> str:
    return _as_text(found.get(name), name, what)


def _number(found: Mapping[str, Any], name: str, what: str) -> int:
    return _as_number(found.get(name), name, what)


def _boolean(found: Mapping[str, Any], name: str, what: str) -> bool:
    value = found.get(name)
    if not isinstance(value, bool):
        _malformed(what, f"{name} is neither true nor false")
    return value


def _as_text(value: object, name: str, what: str) -> str:
    if not isinstance(value, str):
        _malformed(what, f"{name} is not a text")
    return value


def _as_number(value: object, name: str, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _malformed(what, f"{name} is not a whole number")
    return value


def _as_node(value: object, name: str, what: str) -> NodeAddress:
    if not isinstance(value, dict):
        _malformed(what, f"{name} is not an object")
    return NodeAddress(
        _number(value, "node_id", what),
        _text(value, "host", what),
        _number(value, "port", what),
        _object(value, "relay", what),
    )


def _as_waiting(value: object, name: str, what: str) -> PendingRevocation:
    if not isinstance(value, dict):
        _malformed(what, f"{name} is not an object")
    successor = value.get("successor")
    return PendingRevocation(
        _text(value, "owner", what), None if successor is None else _as_text(successor, "successor", what)
    )


def _by_shard_group(
    found: Mapping[str, Any], name: str, what: str, read: Callable[[object, str, str], T]
) -> dict[int, T]:
    """Returns the JSON object ``name`` as a dict. The keys, which are strings in JSON, become shard group numbers.
    ``read`` converts the values."""
    values: dict[int, T] = {}
    for shard_group, value in _object(found, name, what).items():
        if not (shard_group.isascii() and shard_group.isdigit() and len(shard_group) < 10):
            _malformed(what, f"{name} has {shard_group!r} where a shard group's number should be")
        values[int(shard_group)] = read(value, f"{name}.{shard_group}", what)
    return values
