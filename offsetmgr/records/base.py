"""`RecordFormat`, the protocol of record formats, and the decoded forms of keys and values.

A record is a key and a value, both bytes; the value None is a tombstone, which deletes the key. A shard keeps values as
bytes of the log and decodes one when a fetch asks for it, so the bulk operations work on whole topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from offsetmgr.core.errors import OffsetMgrError

Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value; None deletes the key."""

PartitionCommit: TypeAlias = tuple[int, int, int, str]
"""Partition, offset (the next to consume), leader epoch (-1 if unknown, as in the protocol), metadata."""


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of the state of a group, besides its offsets."""

    group: str


class UnknownKey(NamedTuple):
    """A key of an unknown version. The reader skips it and reads the rest (data rule "versioned formats")."""

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
    """Distinguishes the topic from a later topic of the same name. Only in Kafka's format, from brokers of 4.1 on, and
    only if the client named the topic by its id."""


class GroupValue(NamedTuple):
    """The time at which the group last had members, in milliseconds since 1970; expiration counts from it (KIP-211)."""

    last_active: int


class FormatMismatch(OffsetMgrError):
    """A key of the other record format: the topic was written with another setting than the reader has.
    `RecordFormat.split` and `RecordFormat.decode_key` raise it, because a reader that went on would miss offsets."""


class RecordFormat(Protocol):
    """A format of keys and values. Stateless except for caches; threads may share it."""

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
    ) -> list[Record]:
        """Returns the records of the commit for one topic, in order; none is a tombstone."""
        ...

    def offset_prefix(self, group: str, topic: str) -> bytes:
        """Returns the common prefix of the keys of a group and a topic: a key is this prefix and `partition_suffix`."""
        ...

    def partition_suffix(self, partition: int) -> bytes: ...

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        """Splits the key of an offset into its prefix (see `offset_prefix`) and partition; returns None for every other
        kind of key.

        The method does not decode the group and the topic: a loader of many records does that once for each prefix,
        with `decode_key`. Raises `CorruptData` for an invalid key, `FormatMismatch`.
        """
        ...

    def read_offset(self, value: bytes) -> tuple[int, int, str]:
        """Returns the offset, leader epoch (-1 if unknown) and metadata of a value, as a fetch needs them.

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

    def encode_group(self, group: str, value: GroupValue) -> Record:
        """Returns the record with the time at which the group was last active."""
        ...

    def decode_group(self, value: bytes) -> GroupValue:
        """Decodes the value of a `GroupKey`. Raises `UnknownVersion`, `CorruptData`."""
        ...
