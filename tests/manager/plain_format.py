"""A record format in plain text, in which a test of the shard can write any record by hand, also corrupt ones.

Keys are text: ``o|group|topic|partition``, ``g|group``, ``v<number>|...`` for unknown versions, ``other|...`` for
another format. Values are text as well: ``offset,epoch,commit,expire or -,metadata``.
"""

from __future__ import annotations

from collections.abc import Sequence

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.records.base import (
    EncodedRecord,
    FormatMismatch,
    GroupKey,
    GroupValue,
    Key,
    OffsetKey,
    OffsetValue,
    PartitionCommit,
    UnknownKey,
)


class PlainFormat:
    name = "plain"

    def encode_commit(
        self,
        group: str,
        topic: str,
        partitions: Sequence[PartitionCommit],
        commit_timestamp: int,
        expire_timestamp: int | None,
    ) -> list[EncodedRecord]:
        prefix = self.offset_prefix(group, topic)
        expire = "-" if expire_timestamp is None else str(expire_timestamp)
        return [
            (prefix + b"%d" % p, f"{offset},{epoch},{commit_timestamp},{expire},{metadata}".encode())
            for p, offset, epoch, metadata in partitions
        ]

    def offset_prefix(self, group: str, topic: str) -> bytes:
        return f"o|{group}|{topic}|".encode()

    def partition_suffix(self, partition: int) -> bytes:
        return b"%d" % partition

    def split(self, key: bytes) -> tuple[bytes, int] | None:
        if key.startswith(b"other|"):
            raise FormatMismatch("key", "of the other format")
        if not key.startswith((b"o|", b"O|")):
            return None
        prefix, _, partition = key.rpartition(b"|")
        if not partition.isdigit():
            raise CorruptData("key", f"partition {partition!r}")
        return prefix + b"|", int(partition)

    def read_offset(self, value: bytes) -> tuple[int, int, str]:
        decoded = self.decode_value(value)
        return decoded.offset, -1 if decoded.leader_epoch is None else decoded.leader_epoch, decoded.metadata

    def decode_key(self, key: bytes) -> Key:
        if key.startswith(b"other|"):
            raise FormatMismatch("key", "of the other format")
        kind, *rest = key.decode().split("|")
        if kind in ("o", "O"):  # two encodings of one key, like versions 0 and 1 of Kafka's keys
            if len(rest) != 3:
                raise CorruptData("key", f"{len(rest)} parts")
            return OffsetKey(rest[0], rest[1], int(rest[2]))
        if kind == "g":
            return GroupKey(rest[0])
        if kind.startswith("v"):
            return UnknownKey(int(kind[1:]))
        raise CorruptData("key", f"kind {kind!r}")

    def decode_value(self, value: bytes) -> OffsetValue:
        if value.startswith(b"version"):
            raise UnknownVersion("value", "version 99")
        try:
            offset, epoch, commit, expire, metadata = value.decode().split(",", 4)
            known_epoch = None if epoch == "-1" else int(epoch)
            return OffsetValue(int(offset), known_epoch, metadata, int(commit), None if expire == "-" else int(expire))
        except ValueError:
            raise CorruptData("value", repr(value)) from None

    def encode_group_key(self, group: str) -> bytes:
        return f"g|{group}".encode()

    def encode_group(self, group: str, value: GroupValue) -> EncodedRecord:
        return self.encode_group_key(group), b"%d" % value.last_active

    def decode_group(self, value: bytes) -> GroupValue:
        if not value.isdigit():
            raise CorruptData("group", repr(value))
        return GroupValue(int(value))
