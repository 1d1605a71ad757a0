"""`RecordFormat`, the interface of record formats, and the decoded forms of keys and values.

A record is a key and a value, both bytes. The value None is a tombstone, which deletes the key. A shard keeps values as
bytes and decodes a value only when a client fetches it. For speed, `RecordFormat.encode_commit` encodes all partitions
of a topic in one call, and `RecordFormat.split` does not decode the group and the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion, UnsupportedOperation
from offsetmgr.core.varint import decode_varint

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""A key and its value; the value None deletes the key."""

PartitionCommit: TypeAlias = tuple[int, int, int, str]
"""The commit of one partition: partition, offset (the next to consume), leader epoch (-1 if unknown, as in Kafka's
protocol), metadata."""


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a record about a group as a whole (see `GroupValue`)."""

    group: str


class UnknownKey(NamedTuple):
    """A key of an unknown version. A reader skips the record and continues with the next record (data rule "versioned
    formats")."""

    version: int


Key: TypeAlias = OffsetKey | GroupKey | UnknownKey


class OffsetValue(NamedTuple):
    """A committed offset. Times are in milliseconds since 1970; ``expire_timestamp`` is set only if the client set
    one."""

    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp: int
    expire_timestamp: int | None = None
    topic_id: UUID | None = None
    """The topic id, which distinguishes the topic from another topic that is later created with the same name. Brokers
    from 4.1 on write the topic id if the client identified the topic by id. The Avro format does not contain the topic
    id."""


class GroupValue(NamedTuple):
    """The time at which the group last had members, in milliseconds since 1970. The retention of the group's offsets
    starts at this time (KIP-211)."""

    last_active: int


class FormatMismatch(OffsetMgrError):
    """The record format of a key differs from the format that the reader is configured for.

    `RecordFormat.split` and `RecordFormat.decode_key` raise this error for such a key. They do not treat the key as an
    unknown key, because a reader skips records with unknown keys and would miss offsets.
    """


class RecordFormat(Protocol):
    """A format of keys and values. Implementations have no state except caches, so threads may share them."""

    name: str
    """``avro`` or ``kafka``."""

    # --- hot paths ---------------------------------------------------------------------------------

    def encode_commit(
        self,
        group: str,
        topic: str,
        partitions: Sequence[PartitionCommit],
        commit_timestamp: int,
        expire_timestamp: int | None,
    ) -> list[EncodedRecord]:
        """Returns one record for each of ``partitions`` of a topic, in order. Times are in milliseconds since 1970."""

    def offset_prefix(self, group: str, topic: str) -> bytes:
        """Returns the prefix that all keys of a group and topic share. A key consists of this prefix and the
        `partition_suffix`."""

    def partition_suffix(self, partition: int) -> bytes: ...

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        """Splits the key of an offset into its prefix (see `offset_prefix`) and partition. Returns None for other kinds
        of keys.

        The method does not decode the group and the topic. To decode them, a loader calls `decode_key` once for each
        prefix. Raises `CorruptData` for an invalid key, and `FormatMismatch` for a key of another record format.
        """

    def read_offset(self, value: bytes) -> tuple[int, int, str]:
        """Decodes the fields of a value that a fetch returns: offset, leader epoch (-1 if unknown) and metadata.

        Raises `UnknownVersion`, `CorruptData`.
        """

    # --- other operations ----------------------------------------------------------------------------

    def decode_key(self, key: bytes) -> Key:
        """Decodes a key. Raises `CorruptData` for an invalid key, `FormatMismatch`."""

    def decode_value(self, value: bytes) -> OffsetValue:
        """Decodes the value of an `OffsetKey`. Raises `UnknownVersion`, `CorruptData`."""

    def encode_group_key(self, group: str) -> bytes: ...

    def encode_group(self, group: str, value: GroupValue) -> EncodedRecord:
        """Returns the record with the time at which the group was last active."""

    def decode_group(self, value: bytes) -> GroupValue:
        """Decodes the value of a `GroupKey`. Raises `UnknownVersion`, `CorruptData`."""


# The version of keys and values. Every key and every value begins with a version of two bytes, which also identifies
# the record format. Kafka numbers its kinds of keys from 0 on; the last number in 4.4 is 23. The versions of
# offsetmgr's keys start at 0x4F00. Kafka's readers skip keys with these versions. The two ranges of versions do not
# overlap, so a reader of one format never misinterprets a key of the other format. The two bytes are ``4F kr``, where
# k is the kind of the record (0 for a committed offset, 1 for a group) and r its revision. A key and its value have
# the same k, so that a reader detects a value that is stored under the wrong kind of key. The revision of keys never
# changes. If this revision changed, a manager that does not know the new revision would skip keys with the new
# revision, and would miss their offsets. A change of the format increases the revision of values. If a value has an
# unknown revision, the decoding of this value raises `UnknownVersion`.

AVRO: Final = "avro"
KAFKA: Final = "kafka"

AVRO_OFFSET: Final = 0x4F00
AVRO_GROUP: Final = 0x4F10
_AVRO_VERSIONS: Final = range(0x4F00, 0x5000)
_KAFKA_VERSIONS: Final = range(0x100)


def pack_version(version: int) -> bytes:
    """Encodes a version as two bytes, big-endian and signed as in Kafka."""
    return version.to_bytes(2, "big", signed=True)


def format_of(key: bytes) -> str | None:
    """Returns the name of the record format that a key belongs to; None if the key belongs to neither format."""
    version = version_of(key)
    if version in _AVRO_VERSIONS:
        return AVRO
    return KAFKA if version in _KAFKA_VERSIONS else None


def key_version(key: bytes, name: str) -> int:
    """Returns the version of a key in a topic of the format ``name``.

    Raises `CorruptData` if the key is too short, and `FormatMismatch` if the key belongs to the other format.
    """
    version = version_of(key)
    if version is None:
        raise CorruptData("key", f"{len(key)} bytes: too short to have a version")
    actual = format_of(key)
    if actual is not None and actual != name:
        raise FormatMismatch(
            f"a key of version {version}",
            f"it is written in the record format {actual!r}, and this topic is read as {name!r}",
            "specify the record format of this topic, or another topic",
        )
    return version


def value_version(value: bytes, what: str, known: range) -> int:
    """Returns the version of a value. Raises `CorruptData` if the value is too short, and `UnknownVersion` if the
    version is not in ``known``."""
    version = version_of(value)
    if version is None:
        raise CorruptData(what, f"{len(value)} bytes: too short to have a version")
    if version not in known:
        raise UnknownVersion(what, f"version {version}; known are {known[0]} to {known[-1]}")
    return version


def version_of(data: bytes) -> int | None:
    """Returns the version with which a key or a value begins; None if it is too short."""
    return int.from_bytes(data[:2], "big", signed=True) if len(data) >= 2 else None


# `RecordReader`: the part that the readers of both record formats share.


class RecordReader:
    """Reads the fields of a record one after the other. Every method raises `CorruptData` for invalid bytes."""

    def __init__(self, data: bytes, what: str, position: int = 2) -> None:
        self._data = data
        self._what = what
        self.position = position

    def end(self) -> None:
        left = len(self._data) - self.position
        if left:
            raise self.corrupt(f"{left} bytes too many")

    def corrupt(self, why: str) -> CorruptData:
        """Returns an error with the reason ``why`` and the first bytes of the data, for the caller to raise."""
        shown = self._data[:40].hex() + ("..." if len(self._data) > 40 else "")
        return CorruptData(f"{self._what} {shown}", why)

    def take(self, size: int, field: str) -> bytes:
        if size < 0:
            raise self.corrupt(f"the length of {field} is {size}")
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise self.corrupt(f"it ends within {field}")
        return self._data[start : self.position]

    def text(self, data: bytes, field: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{field} is not UTF-8: {error.reason}") from error

    def unsigned(self, field: str, bits: int, max_bytes: int) -> int:
        """Reads a varint."""
        try:
            number, self.position = decode_varint(self._data, self.position, max_bytes)
        except IndexError:
            raise self.corrupt(f"it ends within {field}") from None
        except ValueError:
            number = 1 << bits
        if number >= 1 << bits:
            raise self.corrupt(f"{field} does not fit into {bits} bits")
        return number


def utf8(text: str, what: str) -> bytes:
    """Encodes a text. Raises `UnsupportedOperation` for an unpaired surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedOperation(f"{what} {text!r}", error.reason) from error
