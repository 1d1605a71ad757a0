"""What every record format offers: `RecordFormat`, and the decoded forms of keys and values.

A record is a key and a value, both bytes; a value of None is a tombstone, which deletes its key.  A shard keeps values
as the bytes that they are in the log and decodes one when somebody asks for it, so the bulk operations below take and
give whole topics at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from offsetmgr.core.errors import OffsetMgrError

Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value; None deletes the key."""

PartitionCommit: TypeAlias = tuple[int, int, int, str]
"""Partition, offset (the next to consume), leader epoch (-1 where unknown, as on the wire), metadata."""


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of what is known of a group besides its offsets."""

    group: str


class UnknownKey(NamedTuple):
    """A key of a version that we do not know: it is named and skipped, and the rest is still read (data rule "versioned
    formats")."""

    version: int


Key: TypeAlias = OffsetKey | GroupKey | UnknownKey


class OffsetValue(NamedTuple):
    """A committed offset. Times are milliseconds since 1970; ``expire_timestamp`` only where the client set one."""

    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp: int
    expire_timestamp: int | None = None
    topic_id: UUID | None = None
    """Tells the topic from a later one of its name. Only in Kafka's format, from brokers of 4.1 on and only if the
    client named the topic by its id."""


class GroupValue(NamedTuple):
    """When the group was last seen with members, milliseconds since 1970: expiry counts from there (KIP-211)."""

    last_active: int


class FormatMismatch(OffsetMgrError):
    """A key of the other record format: the topic was written with other settings than it is being read with, and going
    on would lose sight of what it holds. Raised by `RecordFormat.split` and `RecordFormat.decode_key`."""


class RecordFormat(Protocol):
    """One way of writing keys and values. Stateless apart from memos; safe to share between threads."""

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
        """The records of one topic's part of a commit, in order; none is a tombstone."""
        ...

    def offset_prefix(self, group: str, topic: str) -> bytes:
        """What the keys of a group's topic have in common: a key is this and `partition_suffix`."""
        ...

    def partition_suffix(self, partition: int) -> bytes: ...

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        """An offset's key as its prefix (see `offset_prefix`) and partition; None for every other kind of key.

        Does not decode the group and the topic: one who loads many records does that once a prefix, with `decode_key`.
        Raises `CorruptData` for an offset's key that breaks its format, `FormatMismatch`.
        """
        ...

    def read_offset(self, value: bytes) -> tuple[int, int, str]:
        """Offset, leader epoch (-1 where unknown) and metadata of a value: what a fetch answers.

        Raises `UnknownVersion`, `CorruptData`.
        """
        ...

    # --- the rest ----------------------------------------------------------------------------------

    def decode_key(self, key: bytes) -> Key:
        """Raises `CorruptData` for what breaks its format, `FormatMismatch`."""
        ...

    def decode_value(self, value: bytes) -> OffsetValue:
        """The value of an `OffsetKey`. Raises `UnknownVersion`, `CorruptData`."""
        ...

    def encode_group_key(self, group: str) -> bytes: ...

    def encode_group(self, group: str, value: GroupValue) -> Record:
        """The record that says when a group was last active."""
        ...

    def decode_group(self, value: bytes) -> GroupValue:
        """The value of a `GroupKey`. Raises `UnknownVersion`, `CorruptData`."""
        ...
