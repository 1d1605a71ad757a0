"""`AvroRecordFormat`: offsetmgr's own record format, Avro data after a two-byte version (`base`).

The schemas are ``schemas/{offset,group}-{key,value}.avsc``. Each value has exactly one encoding. The reader rejects
numbers that are not in their shortest form, because otherwise two different keys in the log could belong to the same
offset. The encoder is written by hand, because encoding takes most of the time of a commit; tests compare its output
with fastavro.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offsetmgr.records import avro_fields as fields
from offsetmgr.records import base as version_prefix
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

_OFFSET: Final = version_prefix.pack_version(version_prefix.AVRO_OFFSET)
_GROUP: Final = version_prefix.pack_version(version_prefix.AVRO_GROUP)
_OFFSET_VALUE_VERSIONS: Final = range(version_prefix.AVRO_OFFSET, version_prefix.AVRO_OFFSET + 1)
_GROUP_VALUE_VERSIONS: Final = range(version_prefix.AVRO_GROUP, version_prefix.AVRO_GROUP + 1)
_PRESENT: Final = 2
"""The encoded branch index of a union whose value is not null."""
_LATER_BYTES: Final = tuple((n + 3, 7 * n, 0x80 << 7 * (n - 1)) for n in range(4, 7))
"""For each byte of a long, from the fifth byte on: the position after the byte, the shift of the byte's bits, and the
continuation bit of the previous byte, which the reader subtracts."""
_TIMES_MASK: Final = 0xFF808080808080
_USUAL_TIMES: Final = 0x8080808080
_TIMES_SIZE: Final = 7
"""The total size in bytes of a commit timestamp that takes six bytes (July 1970 to 2039) and an absent expiry
timestamp, which takes one byte. The fast path of `read_offset` handles only values with times of this form and
recognizes them with `_TIMES_MASK`."""
_WIDE: Final = 1 << 41


class AvroRecordFormat:
    """Implements `RecordFormat`.

    Encoding raises `UnsupportedOperation` for numbers that do not fit into the types of the schemas, and for text that
    is not valid Unicode.
    """

    name = version_prefix.AVRO

    def __init__(self) -> None:
        self._tables = fields.tables(_OFFSET)

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
        times = fields.long(commit_timestamp)
        times += fields.NULL if expire_timestamp is None else fields.present(fields.long(expire_timestamp))
        short, first, middle, last, suffixes, _ = self._tables
        tails: dict[tuple[int, str], bytes] = {}
        tail_epoch = tail_metadata = None
        tail = b""
        records: list[EncodedRecord] = []
        for partition, offset, epoch, metadata in partitions:
            if epoch != tail_epoch or metadata != tail_metadata:
                cached = tails.get((epoch, metadata))
                if cached is None:
                    cached = tails[epoch, metadata] = _epoch(epoch) + fields.string(metadata) + times
                tail_epoch, tail_metadata, tail = epoch, metadata, cached
            # The tables encode two groups of seven bits at a time. The lowest bit of the first group is the sign.
            if 0x2000 <= offset < 0x8000000:
                value = first[offset & 0x1FFF] + last[offset >> 13] + tail
            elif 0 <= offset < 0x2000:
                value = short[offset] + tail
            elif 0 <= offset < _WIDE:
                value = first[offset & 0x1FFF] + middle[offset >> 13 & 0x3FFF] + last[offset >> 27] + tail
            else:
                value = _OFFSET + fields.long(offset) + tail
            key = prefix + (
                suffixes[partition] if 0 <= partition < fields.CACHED_PARTITIONS else fields.int32(partition)
            )
            records.append((key, value))
        return records

    def offset_prefix(self, group: str, topic: str) -> bytes:
        return _OFFSET + fields.string(group) + fields.string(topic)

    def partition_suffix(self, partition: int) -> bytes:
        return fields.int32(partition)

    def encode_group_key(self, group: str) -> bytes:
        return _GROUP + fields.string(group)

    def encode_group(self, group: str, value: GroupValue) -> EncodedRecord:
        return self.encode_group_key(group), _GROUP + fields.long(value.last_active)

    # --- decoding ------------------------------------------------------------------------------------

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        try:
            if key[0] != _OFFSET[0] or key[1] != _OFFSET[1]:
                version_prefix.key_version(key, self.name)
                return None
            length, position = key[2], 3
            if length >= 0x80:
                length += (key[3] << 7) - 0x80
                position = 4
                if not 0x80 <= length < 0x4000:
                    return _split_slowly(key)
            topic = position + (length >> 1)
            size, position = key[topic], topic + 1
            if size >= 0x80:
                size += (key[position] << 7) - 0x80
                position += 1
                if not 0x80 <= size < 0x4000:
                    return _split_slowly(key)
            if not (length | size) & 1:
                end = position + (size >> 1)
                return key[:end], self._tables.partitions[key[end:]]
        except (IndexError, KeyError):
            pass
        return _split_slowly(key)

    def read_offset(self, value: bytes) -> tuple[int, int, str]:  # noqa: PLR0912  (calls cost more than branches)
        # This is a fast path for usual values. The general reader decodes all other values and reports errors.
        try:
            if value[0] == _OFFSET[0] and value[1] == _OFFSET[1]:
                number = value[2]
                position = 3
                if number >= 0x80:
                    # The highest bit of a byte indicates that another byte follows. The code subtracts this bit.
                    byte = value[3]
                    number += (byte << 7) - 0x80
                    position = 4
                    if byte >= 0x80:
                        byte = value[4]
                        number += (byte << 14) - 0x4000
                        position = 5
                        if byte >= 0x80:
                            byte = value[5]
                            number += (byte << 21) - 0x200000
                            position = 6
                            if byte >= 0x80:
                                for position, shift, flag in _LATER_BYTES:
                                    byte = value[position - 1]
                                    number += (byte << shift) - flag
                                    if byte < 0x80:
                                        break
                    if not 0 < byte < 0x80:
                        return self._read_offset_slowly(value)
                epoch = -1
                if value[position]:
                    epoch = value[position + 1]
                    if value[position] != _PRESENT or epoch & 0x81:
                        return self._read_offset_slowly(value)
                    epoch >>= 1
                    position += 1
                length = value[position + 1]
                position += 2
                metadata = ""
                if length:
                    if length >= 0x80:
                        byte = value[position]
                        length += (byte << 7) - 0x80
                        position += 1
                        if not 0 < byte < 0x80:
                            return self._read_offset_slowly(value)
                    if length & 1:
                        return self._read_offset_slowly(value)
                    start, position = position, position + (length >> 1)
                    metadata = value[start:position].decode()
                times = value[position:]
                shape = int.from_bytes(times, "little") & _TIMES_MASK
                if shape == _USUAL_TIMES and len(times) == _TIMES_SIZE and times[-2]:
                    return (number >> 1) ^ -(number & 1), epoch, metadata
        except (IndexError, UnicodeDecodeError):
            pass
        return self._read_offset_slowly(value)

    def _read_offset_slowly(self, value: bytes) -> tuple[int, int, str]:
        decoded = self.decode_value(value)
        return decoded.offset, -1 if decoded.leader_epoch is None else decoded.leader_epoch, decoded.metadata

    def decode_key(self, key: bytes) -> Key:
        reader = fields.AvroFieldReader(key, "key")
        if key[:2] == _OFFSET:
            decoded: Key = OffsetKey(reader.string("group"), reader.string("topic"), reader.int32("partition"))
        elif key[:2] == _GROUP:
            decoded = GroupKey(reader.string("group"))
        else:
            return UnknownKey(version_prefix.key_version(key, self.name))
        reader.end()
        return decoded

    def decode_value(self, value: bytes) -> OffsetValue:
        version_prefix.value_version(value, "offset value", _OFFSET_VALUE_VERSIONS)
        reader = fields.AvroFieldReader(value, "offset value")
        offset = reader.long("offset")
        epoch = reader.int32("leader_epoch") if reader.is_present("leader_epoch") else -1
        decoded = OffsetValue(
            offset,
            None if epoch == -1 else epoch,
            reader.string("metadata"),
            reader.long("commit_timestamp"),
            reader.long("expire_timestamp") if reader.is_present("expire_timestamp") else None,
        )
        reader.end()
        return decoded

    def decode_group(self, value: bytes) -> GroupValue:
        version_prefix.value_version(value, "group value", _GROUP_VALUE_VERSIONS)
        reader = fields.AvroFieldReader(value, "group value")
        decoded = GroupValue(reader.long("last_active"))
        reader.end()
        return decoded


def _epoch(epoch: int) -> bytes:
    return fields.NULL if epoch == -1 else fields.present(fields.int32(epoch))


def _split_slowly(key: bytes) -> tuple[bytes, int]:
    reader = fields.AvroFieldReader(key, "offset key")
    for field in ("group", "topic"):
        reader.take(reader.long(field), field)
    prefix = key[: reader.position]
    partition = reader.int32("partition")
    reader.end()
    return prefix, partition
