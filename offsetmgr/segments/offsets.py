"""Replays one partition of an offsets topic, with its transactions, and keeps the newest record of each key. Pure.

The rule is the same as in compaction and in Kafka's coordinator: among the valid records of a key, the record with the
largest offset counts, and a null value deletes the key. A record outside a transaction is valid at once. A record in a
transaction becomes valid when the commit marker is read, and never becomes valid if the transaction is aborted
(`GroupMetadataManager.doLoadGroupsAndOffsets`, `OffsetMetadataManager.replay`). A transaction without a marker in the
log stays *pending*.

A key may be deleted while a transaction that contains an older record of the key is still open. In this case the key
stays deleted after the transaction commits. Kafka 4.x brokers do the same, and so does a Kafka 3.x broker until it is
restarted. A Kafka 3.x broker that loads such a log after a restart restores the older offset instead.

This module does not decode keys and values. `committed_offsets` decodes the newest record of each key.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from crc32c import crc32c

from offsetmgr.core.errors import CorruptData
from offsetmgr.segments.batch_reader import (
    BATCH_MIN_BYTES,
    CONTROL,
    CRC_FROM,
    LEGACY_MIN_BYTES,
    LOG_HEADER,
    LOG_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL,
    RecordBatch,
    batches,
)
from offsetmgr.segments.compression import CODEC, decompress
from offsetmgr.segments.raw_batches import RECORDS_FROM
from offsetmgr.segments.transactions import ABORT, COMMIT, marker_of

Newest: TypeAlias = dict[bytes, tuple[int, bytes | None]]
"""Maps each key to the log offset and the value of its newest record. The value of a tombstone is `None`."""

_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, size, leader epoch, magic, CRC, attributes, last offset's delta, base and largest timestamp, producer
id, producer epoch, base sequence, number of records."""


class OffsetsReplay:
    """Replays the log of one partition in order and keeps the newest record of each key.

    ``end`` is the offset after the last replayed entry; None if no entry has been replayed. ``leader_epoch`` is the
    leader epoch of the last replayed entry; None if the entry has no leader epoch. ``keyless`` is the number of records
    without a key.
    """

    def __init__(self) -> None:
        self.newest: Newest = {}
        self.pending: dict[int, Newest] = {}
        """The newest records in transactions whose marker has not been read, by producer id."""
        self.end: int | None = None
        self.leader_epoch: int | None = None
        self.keyless = 0
        self.replayed_bytes = 0
        """Number of bytes that the last call of `replay` has processed."""

    def replay(self, data: bytes) -> None:
        """Replays the next complete entries of the log (`entries.LogSlice.data`).

        Raises `CorruptData` for an entry with a wrong checksum, an invalid structure, or a decreasing offset. Also
        raises `LimitExceeded` and `UnknownVersion`. After an error, all entries before the invalid entry have been
        replayed, and ``replayed_bytes`` is the position of the invalid entry in ``data``.
        """
        at, length = 0, len(data)
        view = memoryview(data)
        unpack = _BATCH.unpack_from
        newest, expected = self.newest, self.end or 0
        while at + LOG_OVERHEAD + LEGACY_MIN_BYTES <= length:
            self.replayed_bytes = at
            if data[at + MAGIC_AT] != 2 or at + RECORDS_FROM > length:
                at, expected = self._legacy(data, at), self.end or 0
                continue
            base, size, epoch, _, crc, attributes, last, _, _, producer, _, _, count = unpack(data, at)
            end = at + LOG_OVERHEAD + size
            if size < BATCH_MIN_BYTES or crc32c(view[at + CRC_FROM : end]) != crc:
                raise CorruptData(f"batch at offset {base}", "its checksum does not match its content")
            if base < expected or last < 0:
                raise _offset_not_ascending(base, expected)
            if attributes & CONTROL:
                self._marker(data[at:end], producer)
            else:
                if attributes & CODEC:
                    body, start = decompress(attributes & CODEC, data[at + RECORDS_FROM : end], f"batch at {base}"), 0
                    stop = len(body)
                else:
                    body, start, stop = data, at + RECORDS_FROM, end
                into = newest if not attributes & TRANSACTIONAL else self.pending.setdefault(producer, {})
                if not _replay_fast(body, start, stop, count, base, into):
                    for batch in batches(data[at:end]):  # decodes the batch, and raises the errors
                        self._store(batch, into)
            self.end = expected = base + last + 1
            self.leader_epoch = None if epoch < 0 else epoch
            at = end
        self.replayed_bytes = at

    def end_transaction(self, producer: int, *, committed: bool) -> None:
        """Commits or aborts the open transaction of a producer, like a marker in the log."""
        found = self.pending.pop(producer, {})
        for key, record in found.items() if committed else ():
            known = self.newest.get(key)
            if known is None or known[0] < record[0]:
                self.newest[key] = record

    def _marker(self, data: bytes, producer: int) -> None:
        """Replays a control batch. Only commit and abort markers end a transaction; other control records are
        ignored."""
        for batch in batches(data, controls=True):
            for record in batch.records:
                if (kind := marker_of(record).kind) in (ABORT, COMMIT):
                    self.end_transaction(producer, committed=kind == COMMIT)

    def _store(self, batch: RecordBatch, into: Newest) -> None:
        for record in batch.records:
            if record.key is None:
                self.keyless += 1
            else:
                into[record.key] = (record.offset, record.value)

    def _legacy(self, data: bytes, at: int) -> int:
        """Replays a message of format 0 or 1. Returns the position after the message. `batches` raises the error of an
        invalid message."""
        end: int = at + LOG_OVERHEAD + LOG_HEADER.unpack_from(data, at)[1]
        for batch in batches(data[at:end]):
            if batch.base_offset < (self.end or 0):
                raise _offset_not_ascending(batch.base_offset, self.end or 0)
            self._store(batch, self.newest)
            self.end = batch.last_offset + 1
            self.leader_epoch = None
        return end


def _offset_not_ascending(offset: int, expected: int) -> CorruptData:
    return CorruptData(
        f"entry at offset {offset}", f"entries before it go up to offset {expected - 1}, so one of them was altered"
    )


def _replay_fast(body: bytes, at: int, stop: int, count: int, base: int, into: Newest) -> bool:  # noqa: PLR0912
    """Replays a batch whose records have no headers and fields under 8 KiB. Returns False for any other batch.

    If this function returns False, the caller decodes the whole batch, and overwrites the records that this function
    has already stored. This loop takes most of the time of a replay, so it decodes varints
    of one or two bytes inline.
    """
    try:
        for _ in range(count):
            size = body[at]
            at += 1
            if size >= 0x80:
                size += (body[at] << 7) - 0x80
                at += 1
                if size >= 0x4000:
                    return False
            end = at + (size >> 1)
            at += 1  # the record's attributes are unused
            while body[at] >= 0x80:
                at += 1
            at += 1
            delta = body[at]
            at += 1
            if delta >= 0x80:
                delta += (body[at] << 7) - 0x80
                at += 1
                if delta >= 0x4000:
                    return False
            length = body[at]
            at += 1
            if length >= 0x80:
                length += (body[at] << 7) - 0x80
                at += 1
            start = at
            at += length >> 1
            key = body[start:at]
            filled = body[at]
            at += 1
            if filled >= 0x80:
                filled += (body[at] << 7) - 0x80
                at += 1
            if filled & 1:
                value = None
                if filled != 1:
                    return False
            else:
                start = at
                at += filled >> 1
                value = body[start:at]
            # If the record has no headers and ends at the position that follows from its size field, the other sizes in
            # the record are right as well.
            if body[at] or at + 1 != end or (size | delta | length) & 1 or length >= 0x4000 or filled >= 0x4000:
                return False
            at = end
            into[key] = (base + (delta >> 1), value)
    except IndexError:
        return False
    return at == stop
