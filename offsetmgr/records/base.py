"""`RecordFormat`, the interface of record formats, and the decoded forms of keys and values.

A record is a key and a value, both bytes. The value None is a tombstone, which deletes the key. A shard keeps values as
bytes and decodes a value only when a client fetches it. For speed, `RecordFormat.encode_commit` encodes all partitions
of a topic in one call, and `RecordFormat.split` does not decode the group and the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from offsetmgr.core.errors import OffsetMgrError

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
        ...

    def offset_prefix(self, group: str, topic: str) -> bytes:
        """Returns the prefix that all keys of a group and topic share. A key consists of this prefix and the
        `partition_suffix`."""
        ...

    def partition_suffix(self, partition: int) -> bytes: ...

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        """Splits the key of an offset into its prefix (see `offset_prefix`) and partition. Returns None for other kinds
        of keys.

        The method does not decode the group and the topic. To decode them, a loader calls `decode_key` once for each
        prefix. Raises `CorruptData` for an invalid key, and `FormatMismatch` for a key of another record format.
        """
        ...

    def read_offset(self, value: bytes) -> tuple[int, int, str]:
        """Decodes the fields of a value that a fetch returns: offset, leader epoch (-1 if unknown) and metadata.

        Raises `UnknownVersion`, `CorruptData`.
        """
        ...

    # --- other operations ----------------------------------------------------------------------------

    def decode_key(self, key: bytes) -> Key:
        """Decodes a key. Raises `CorruptData` for an invalid key, `FormatMismatch`."""
        ...

    def decode_value(self, value: bytes) -> OffsetValue:
        """Decodes the value of an `OffsetKey`. Raises `UnknownVersion`, `CorruptData`."""
        ...

    def encode_group_key(self, group: str) -> bytes: ...

    def encode_group(self, group: str, value: GroupValue) -> EncodedRecord:
        """Returns the record with the time at which the group was last active."""
        ...

    def decode_group(self, value: bytes) -> GroupValue:
        """Decodes the value of a `GroupKey`. Raises `UnknownVersion`, `CorruptData`."""
        ...
