"""The record that Kafka's coordinator writes for a classic group: its members and state (schema GroupMetadataValue).

The key is a `GroupKey`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.records import version_prefix
from offsetmgr.records.kafka_fields import KafkaFieldReader

_EMPTY_GROUP: Final = struct.Struct(">h h8s i h h q i")
_WRITE_VERSION: Final = 3
_VERSIONS: Final = range(5)


class MemberMetadata(NamedTuple):
    """A member of a classic group. ``subscription`` and ``assignment`` are bytes of its assignment protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int | None
    """The rebalance timeout; None in version 0, which has only the session timeout."""
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A classic group. ``protocol`` and ``leader`` are None if it has no members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int | None
    """The time of the last state change in milliseconds since 1970. For an empty group this is the time at which the
    last member left. None if the time is unknown, for example in versions 0 and 1, which do not contain it."""
    members: tuple[MemberMetadata, ...]


def decode_group_metadata(value: bytes) -> GroupMetadata:
    """Decodes versions 0 to 4. Raises `UnknownVersion`, `CorruptData`."""
    version = version_prefix.value_version(value, "group value", _VERSIONS)
    reader = KafkaFieldReader(value, "group value", flexible=version >= 4)
    protocol_type = reader.string("protocolType")
    generation = reader.int32("generation")
    protocol = reader.nullable_string("protocol")
    leader = reader.nullable_string("leader")
    timestamp = reader.int64("currentStateTimestamp") if version >= 2 else -1
    members = tuple(_member(reader, version) for _ in range(reader.count("members")))
    reader.tagged()
    reader.end()
    return GroupMetadata(protocol_type, generation, protocol, leader, None if timestamp == -1 else timestamp, members)


def _member(reader: KafkaFieldReader, version: int) -> MemberMetadata:
    member_id = reader.string("memberId")
    instance_id = reader.nullable_string("groupInstanceId") if version >= 3 else None
    client_id = reader.string("clientId")
    client_host = reader.string("clientHost")
    rebalance_timeout = reader.int32("rebalanceTimeout") if version >= 1 else None
    session_timeout = reader.int32("sessionTimeout")
    subscription = reader.blob("subscription")
    assignment = reader.blob("assignment")
    reader.tagged()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout,
        session_timeout,
        subscription,
        assignment,
    )


def encode_empty_group(timestamp: int) -> bytes:
    """Encodes a consumer group that has been empty since ``timestamp`` (milliseconds since 1970), in the version that
    brokers from 2.3 to 4.x read. Raises `UnsupportedOperation` for more than 64 bits."""
    try:
        return _EMPTY_GROUP.pack(_WRITE_VERSION, len(b"consumer"), b"consumer", 0, -1, -1, timestamp, 0)
    except struct.error as error:
        raise UnsupportedOperation(f"time {timestamp}", "it does not fit into 64 bits") from error
