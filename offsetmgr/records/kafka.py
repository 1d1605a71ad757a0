"""`KafkaRecordFormat`: the record format in which Kafka's group coordinator writes to ``__consumer_offsets``.

Source: Kafka's message schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue. The reader
accepts all versions of these schemas; the writer uses versions that brokers from 2.1 to 4.x read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from uuid import UUID

from offsetmgr.core.errors import CorruptData, UnsupportedOperation
from offsetmgr.records import version_prefix
from offsetmgr.records.base import (
    EncodedRecord,
    GroupKey,
    GroupValue,
    Key,
    OffsetKey,
    OffsetValue,
    PartitionCommit,
    UnknownKey,
)
from offsetmgr.records.kafka_fields import INT32, INT64, KafkaFieldReader, string
from offsetmgr.records.kafka_group import decode_group_metadata, encode_empty_group

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
        `GroupValue.last_active`."""
        return self.encode_group_key(group), encode_empty_group(value.last_active)

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
