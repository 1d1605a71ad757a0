"""Computes the newest value of every key of one partition of an offsets topic, with transactions. Pure.

The rule is that of compaction and of Kafka's coordinator: of the valid records of a key the one with the largest offset
counts, and a null value deletes. Records outside transactions are valid at once, those of a transaction after its
commit marker, those of an aborted one never (`GroupMetadataManager.doLoadGroupsAndOffsets`,
`OffsetMetadataManager.replay`). A transaction without a marker in the log stays *pending*.

A deletion during an open transaction outlives the transaction's commit, as in brokers of 4.x and in any broker that was
not restarted meanwhile; a broker of 3.x that loads such a log restores the older offset.

Keys and values stay bytes: of a hundred commits of a partition only the last is decoded (`committed`).
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from crc32c import crc32c

from offsetmgr.core.errors import CorruptData
from offsetmgr.segments.batch_reader import (
    BATCH_SMALLEST,
    CONTROL,
    CRC_FROM,
    LEGACY_SMALLEST,
    LOG_HEADER,
    LOG_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL,
    batches,
)
from offsetmgr.segments.compression import CODEC, decompress
from offsetmgr.segments.transactions import ABORT, COMMIT, marker_of

Newest: TypeAlias = dict[bytes, tuple[int, bytes | None]]
"""A key's newest record: its log offset, and its value; None deletes."""

_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, size, leader epoch, magic, CRC, attributes, last offset's delta, base and largest timestamp, producer
id, producer epoch, base sequence, number of records."""
_BODY: Final = LOG_OVERHEAD + BATCH_SMALLEST


class OffsetsFold:
    """Reads the log of one partition in order and keeps the newest records.

    ``end`` is the offset after the last entry (None before the first), ``leader_epoch`` that entry's (None in formats
    before 2), ``largest_timestamp`` the latest time of any entry in milliseconds since 1970. ``records`` counts the
    records, ``keyless`` those without a key.
    """

    def __init__(self) -> None:
        self.newest: Newest = {}
        self.pending: dict[int, Newest] = {}
        """By producer id: the records of transactions without a marker."""
        self.aborted = 0
        """Records of aborted transactions."""
        self.end: int | None = None
        self.leader_epoch: int | None = None
        self.largest_timestamp: int | None = None
        self.records = 0
        self.keyless = 0
        self.taken = 0
        """Bytes of the last data that were processed."""

    def take(self, data: bytes) -> None:
        """Processes complete entries, the next of the log (`entries.Chunk.data`).

        Raises `CorruptData` for an entry with a wrong checksum, an invalid structure, or a decreasing offset;
        `LimitExceeded`, `UnknownVersion`. Earlier entries have been processed by then: ``taken`` is where it begins.
        """
        at, length = 0, len(data)
        view = memoryview(data)
        unpack = _BATCH.unpack_from
        newest, expected = self.newest, self.end or 0
        latest = -1 if self.largest_timestamp is None else self.largest_timestamp
        try:
            while at + LOG_OVERHEAD + LEGACY_SMALLEST <= length:
                self.taken = at
                if data[at + MAGIC_AT] != 2 or at + _BODY > length:
                    at, time = self._legacy(data, at)
                    latest, expected = max(latest, time), self.end or 0
                    continue
                base, size, epoch, _, crc, attributes, last, _, time, producer, _, _, count = unpack(data, at)
                end = at + LOG_OVERHEAD + size
                if size < BATCH_SMALLEST or crc32c(view[at + CRC_FROM : end]) != crc:
                    raise CorruptData(f"batch at offset {base}", "its checksum is not that of its bytes")
                if base < expected or last < 0:
                    raise _backwards(base, expected)
                if attributes & CONTROL:
                    self._marker(data[at:end], producer)
                else:
                    if attributes & CODEC:
                        body, start = decompress(attributes & CODEC, data[at + _BODY : end], f"batch at {base}"), 0
                        stop = len(body)
                    else:
                        body, start, stop = data, at + _BODY, end
                    into = newest if not attributes & TRANSACTIONAL else self.pending.setdefault(producer, {})
                    if not _take_plain(body, start, stop, count, base, into):
                        self._by_the_book(data[at:end], into)
                    self.records += count
                latest = max(latest, time)
                self.end = expected = base + last + 1
                self.leader_epoch = None if epoch < 0 else epoch
                at = end
            self.taken = at
        finally:
            self.largest_timestamp = None if latest < 0 else latest

    def settle(self, producer: int, *, committed: bool) -> None:
        """Ends a producer's transaction, as its marker would."""
        found = self.pending.pop(producer, {})
        if not committed:
            self.aborted += len(found)
            return
        for key, record in found.items():
            known = self.newest.get(key)
            if known is None or known[0] < record[0]:
                self.newest[key] = record

    def _marker(self, data: bytes, producer: int) -> None:
        """Processes a control batch. Unknown kinds end no transaction."""
        for batch in batches(data, controls=True):
            for record in batch.records:
                if (kind := marker_of(record).kind) in (ABORT, COMMIT):
                    self.settle(producer, committed=kind == COMMIT)

    def _by_the_book(self, data: bytes, into: Newest) -> None:
        """Processes an unusual batch through `batches`, which reports errors."""
        for batch in batches(data):
            for record in batch.records:
                if record.key is None:
                    self.keyless += 1
                else:
                    into[record.key] = (record.offset, record.value)

    def _legacy(self, data: bytes, at: int) -> tuple[int, int]:
        """Processes a message of format 0 or 1 (or an invalid one, which `batches` reports); returns its end and its
        latest time."""
        end: int = at + LOG_OVERHEAD + LOG_HEADER.unpack_from(data, at)[1]
        latest = -1
        for batch in batches(data[at:end]):
            if batch.base_offset < (self.end or 0):
                raise _backwards(batch.base_offset, self.end or 0)
            self.records += len(batch.records)
            for record in batch.records:
                if record.key is None:
                    self.keyless += 1
                else:
                    self.newest[record.key] = (record.offset, record.value)
                latest = max(latest, -1 if record.timestamp is None else record.timestamp)
            self.end = batch.last_offset + 1
            self.leader_epoch = None
        return end, latest


def _backwards(offset: int, expected: int) -> CorruptData:
    return CorruptData(f"entry at offset {offset}", f"those before it go up to {expected - 1}: one of them was changed")


def _take_plain(body: bytes, at: int, stop: int, count: int, base: int, into: Newest) -> bool:  # noqa: PLR0912
    """Processes the records of a batch with fields of usual sizes (under 8 KiB; no headers). Returns False if one is
    not: the whole batch is then processed in another way, which does no harm.

    This loop takes most of the time, so numbers are decoded inline: each is one or two bytes.
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
            # No headers, and the record ends where it says: then every size within it was right as well.
            if body[at] or at + 1 != end or (size | delta | length) & 1 or length >= 0x4000 or filled >= 0x4000:
                return False
            at = end
            into[key] = (base + (delta >> 1), value)
    except IndexError:
        return False
    return at == stop
