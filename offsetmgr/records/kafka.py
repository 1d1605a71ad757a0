"""`KafkaRecordFormat`: the record format in which Kafka's group coordinator writes to ``__consumer_offsets``.

Source: Kafka's message schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue. The reader
accepts all versions of these schemas; the writer uses versions that brokers from 2.1 to 4.x read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from offsetmgr.core.errors import CorruptData, UnsupportedOperation
from offsetmgr.records import base as version_prefix
from offsetmgr.records.base import (
    EncodedRecord,
    GroupKey,
    GroupValue,
    Key,
    OffsetKey,
    OffsetValue,
    PartitionCommit,
    RecordReader,
    UnknownKey,
    utf8,
)

# Reads and writes the primitive types of Kafka's records, in the classic and the flexible encoding (KIP-482). In
# flexible versions a length is an unsigned varint of the length plus one, and every structure ends with tagged
# fields. Readers skip unknown tagged fields.

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


def string(text: str, what: str) -> bytes:
    """Encodes a string with a 16-bit length. Raises `UnsupportedOperation` if the string is too long or is not valid
    Unicode."""
    data = utf8(text, what)
    try:
        return INT16.pack(len(data)) + data
    except struct.error as error:
        raise UnsupportedOperation(what, f"{len(data)} bytes; Kafka's records hold at most 32767") from error


class KafkaFieldReader(RecordReader):
    """Reads the fields of a record in Kafka's format."""

    def __init__(self, data: bytes, what: str, *, flexible: bool = False) -> None:
        super().__init__(data, what)
        self._flexible = flexible

    def int8(self, field: str) -> int:
        return self._fixed(1, field)

    def int16(self, field: str) -> int:
        return self._fixed(2, field)

    def int32(self, field: str) -> int:
        return self._fixed(4, field)

    def int64(self, field: str) -> int:
        return self._fixed(8, field)

    def string(self, field: str) -> str:
        text = self.nullable_string(field)
        if text is None:
            raise self.corrupt(f"{field} is null")
        return text

    def nullable_string(self, field: str) -> str | None:
        data = self._sized(2, field)
        if data is None:
            return None
        if len(data) > 0x7FFF:  # Kafka rejects longer strings, although a flexible version could encode them.
            raise self.corrupt(f"{field} has {len(data)} bytes")
        return self.text(data, field)

    def blob(self, field: str) -> bytes:
        data = self._sized(4, field)
        if data is None:
            raise self.corrupt(f"{field} is null")
        return data

    def count(self, field: str) -> int:
        """Reads the length of an array."""
        count = self._unsigned(field) - 1 if self._flexible else self.int32(field)
        if count < 0:
            raise self.corrupt(f"{field} is null")
        return count

    def tagged(self) -> Mapping[int, bytes]:
        """Reads the tagged fields at the end of a structure, by tag. The result is empty if the version is not
        flexible."""
        if not self._flexible:
            return {}
        return {
            self._unsigned("a tag"): self.take(self._unsigned("a tag's size"), "a tagged field")
            for _ in range(self._unsigned("the number of tags"))
        }

    def _sized(self, length_size: int, field: str) -> bytes | None:
        size = self._unsigned(field) - 1 if self._flexible else self._fixed(length_size, field)
        return None if size == -1 else self.take(size, field)

    def _fixed(self, size: int, field: str) -> int:
        return int.from_bytes(self.take(size, field), "big", signed=True)

    def _unsigned(self, field: str) -> int:
        return self.unsigned(field, 31, 5)


# The record that Kafka's coordinator writes for a classic group: its members and state (schema GroupMetadataValue).
# The key is a `GroupKey`.

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
    member = MemberMetadata(
        reader.string("memberId"),
        reader.nullable_string("groupInstanceId") if version >= 3 else None,
        reader.string("clientId"),
        reader.string("clientHost"),
        reader.int32("rebalanceTimeout") if version >= 1 else None,
        reader.int32("sessionTimeout"),
        reader.blob("subscription"),
        reader.blob("assignment"),
    )
    reader.tagged()
    return member


KEY_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "LegacyOffsetCommit",
        1: "OffsetCommit",
        2: "GroupMetadata",
        3: "ConsumerGroupMetadata",
        4: "ConsumerGroupPartitionMetadata",
        5: "ConsumerGroupMemberMetadata",
        6: "ConsumerGroupTargetAssignmentMetadata",
        7: "ConsumerGroupTargetAssignmentMember",
        8: "ConsumerGroupCurrentMemberAssignment",
        9: "ShareGroupPartitionMetadata",
        10: "ShareGroupMemberMetadata",
        11: "ShareGroupMetadata",
        12: "ShareGroupTargetAssignmentMetadata",
        13: "ShareGroupTargetAssignmentMember",
        14: "ShareGroupCurrentMemberAssignment",
        15: "ShareGroupStatePartitionMetadata",
        16: "ConsumerGroupRegularExpression",
        17: "StreamsGroupMetadata",
        18: "StreamsGroupPartitionMetadata",
        19: "StreamsGroupMemberMetadata",
        20: "StreamsGroupTargetAssignmentMetadata",
        21: "StreamsGroupTargetAssignmentMember",
        22: "StreamsGroupCurrentMemberAssignment",
        23: "StreamsGroupTopology",
    }
)
"""Kafka's names of the key versions. Versions 9 and 18 exist only in releases before 4.1. `KafkaRecordFormat` decodes
keys of version 3 and later as `UnknownKey`, because their records contain neither offsets nor classic groups."""

_GROUP_KEY_VERSION: Final = 2
_OFFSET_KEY_VERSION: Final = 1
_OFFSET_KEY_VERSIONS: Final = (1, 0)
_VERSION_WITH_EXPIRY: Final = 1
_VERSION_WITH_EPOCH: Final = 3
_VALUE_VERSIONS: Final = range(5)
_TOPIC_ID_TAG: Final = 0

_VERSION_AND_OFFSET: Final = struct.Struct(">hq")
"""Version and offset."""
_BEFORE_METADATA: Final = struct.Struct(">hqih")
"""The fields of a value of version 3 before the metadata: version, offset, leader epoch, length of the metadata."""
_TIMESTAMP_BYTES: Final = 8


class KafkaRecordFormat:
    """Implements `RecordFormat`.

    Encoding raises `UnsupportedOperation` for numbers and text beyond Kafka's limits. As in Kafka, a commit with an
    expiry timestamp is encoded as a value of version 1, which does not contain the leader epoch. The log can contain a
    key of version 0 and a key of version 1 for the same offset. These are different keys with different prefixes. New
    keys have version 1.
    """

    name = version_prefix.KAFKA

    # --- encoding ------------------------------------------------------------------------------------

    def encode_commit(
        self,
        group: str,
        topic: str,
        partitions: Sequence[PartitionCommit],
        commit_timestamp: int,
        expire_timestamp: int | None,
    ) -> list[EncodedRecord]:
        prefix = self.offset_prefix(group, topic)
        version = _VERSION_WITH_EPOCH if expire_timestamp is None else _VERSION_WITH_EXPIRY
        start, number = _VERSION_AND_OFFSET.pack, INT32.pack
        tails: dict[tuple[int, str], bytes] = {}
        tail_epoch = tail_metadata = None
        tail = b""
        records: list[EncodedRecord] = []
        try:
            for partition, offset, epoch, metadata in partitions:
                if epoch != tail_epoch or metadata != tail_metadata:
                    cached = tails.get((epoch, metadata))
                    if cached is None:
                        cached = _tail(epoch, metadata, commit_timestamp, expire_timestamp)
                        tails[epoch, metadata] = cached
                    tail_epoch, tail_metadata, tail = epoch, metadata, cached
                records.append((prefix + number(partition), start(version, offset) + tail))
        except struct.error as error:
            raise UnsupportedOperation(f"a commit of {topic}", str(error)) from error
        return records

    def offset_prefix(self, group: str, topic: str) -> bytes:
        return version_prefix.pack_version(_OFFSET_KEY_VERSION) + string(group, "group") + string(topic, "topic")

    def partition_suffix(self, partition: int) -> bytes:
        try:
            return INT32.pack(partition)
        except struct.error as error:
            raise UnsupportedOperation(f"partition {partition}", "it does not fit into 32 bits") from error

    def encode_group_key(self, group: str) -> bytes:
        return version_prefix.pack_version(_GROUP_KEY_VERSION) + string(group, "group")

    def encode_group(self, group: str, value: GroupValue) -> EncodedRecord:
        """Returns the record that Kafka writes for a consumer group that has been empty since
        `GroupValue.last_active`, in the version that brokers from 2.3 to 4.x read."""
        key, time = self.encode_group_key(group), value.last_active
        try:
            return key, _EMPTY_GROUP.pack(_WRITE_VERSION, len(b"consumer"), b"consumer", 0, -1, -1, time, 0)
        except struct.error as error:
            raise UnsupportedOperation(f"time {time}", "it does not fit into 64 bits") from error

    # --- decoding ------------------------------------------------------------------------------------

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        try:
            if key[0] or key[1] not in _OFFSET_KEY_VERSIONS:
                version_prefix.key_version(key, self.name)
                return None
            topic = 4 + (key[2] << 8 | key[3])
            end = topic + 2 + (key[topic] << 8 | key[topic + 1])
            if len(key) == end + INT32.size and key[2] < 0x80 and key[topic] < 0x80:
                return key[:end], INT32.unpack_from(key, end)[0]
        except IndexError:
            pass
        self.decode_key(key)
        raise AssertionError("decode_key accepted an offset key of the wrong length")

    def read_offset(self, value: bytes) -> tuple[int, int, str]:
        try:
            version, offset, epoch, length = _BEFORE_METADATA.unpack_from(value)
        except struct.error:
            version = length = -1
        end = _BEFORE_METADATA.size + length
        if version == _VERSION_WITH_EPOCH and length >= 0 and len(value) == end + _TIMESTAMP_BYTES:
            if not length:
                return offset, epoch, ""
            try:
                return offset, epoch, value[_BEFORE_METADATA.size : end].decode()
            except UnicodeDecodeError:
                pass  # decode_value reports the error
        decoded = self.decode_value(value)
        return decoded.offset, -1 if decoded.leader_epoch is None else decoded.leader_epoch, decoded.metadata

    def decode_key(self, key: bytes) -> Key:
        version = version_prefix.key_version(key, self.name)
        if version in _OFFSET_KEY_VERSIONS:
            reader = KafkaFieldReader(key, "offset key")
            decoded: Key = OffsetKey(reader.string("group"), reader.string("topic"), reader.int32("partition"))
        elif version == _GROUP_KEY_VERSION:
            reader = KafkaFieldReader(key, "group key")
            decoded = GroupKey(reader.string("group"))
        else:
            return UnknownKey(version)
        reader.end()
        return decoded

    def decode_value(self, value: bytes) -> OffsetValue:
        # This is a fast path for version 3. The general reader, which decodes all versions, takes eight times as long.
        try:
            version, offset, epoch, length = _BEFORE_METADATA.unpack_from(value)
            end = _BEFORE_METADATA.size + length
            if version == _VERSION_WITH_EPOCH and length >= 0 and len(value) == end + _TIMESTAMP_BYTES:
                metadata = value[_BEFORE_METADATA.size : end].decode() if length else ""
                commit_timestamp = INT64.unpack_from(value, end)[0]
                return OffsetValue(offset, None if epoch == -1 else epoch, metadata, commit_timestamp)
        except (struct.error, UnicodeDecodeError):
            pass  # the general reader reports the error
        return self._decode_value_slowly(value)

    def _decode_value_slowly(self, value: bytes) -> OffsetValue:
        version = version_prefix.value_version(value, "offset value", _VALUE_VERSIONS)
        reader = KafkaFieldReader(value, "offset value", flexible=version >= 4)
        offset = reader.int64("offset")
        epoch = reader.int32("leaderEpoch") if version >= 3 else -1
        metadata = reader.string("metadata")
        commit_timestamp = reader.int64("commitTimestamp")
        expire_timestamp = reader.int64("expireTimestamp") if version == 1 else -1
        topic_id = _topic_id(reader)
        reader.end()
        return OffsetValue(
            offset,
            None if epoch == -1 else epoch,
            metadata,
            commit_timestamp,
            None if expire_timestamp == -1 else expire_timestamp,
            topic_id,
        )

    def decode_group(self, value: bytes) -> GroupValue:
        last_active = decode_group_metadata(value).current_state_timestamp
        if last_active is None:
            raise CorruptData("group value", "the time of the group's last state change is unknown")
        return GroupValue(last_active)


def _tail(epoch: int, metadata: str, commit_timestamp: int, expire_timestamp: int | None) -> bytes:
    """Returns the part of an offset value that follows the offset."""
    text = string(metadata, "metadata")
    if expire_timestamp is not None:
        return text + INT64.pack(commit_timestamp) + INT64.pack(expire_timestamp)
    return INT32.pack(epoch) + text + INT64.pack(commit_timestamp)


def _topic_id(reader: KafkaFieldReader) -> UUID | None:
    """Returns the id of the topic at the time of the commit, as brokers from 4.1 on write it; None if unknown."""
    data = reader.tagged().get(_TOPIC_ID_TAG)
    if data is None:
        return None
    if len(data) != 16:
        raise reader.corrupt(f"the topic's id has {len(data)} bytes")
    return UUID(bytes=data) if any(data) else None
