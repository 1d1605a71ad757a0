"""Reads the entries of a log file in bounded memory.

A file is read in chunks. If a chunk ends within an entry, the rest is read again with the next. If an entry is larger
than a chunk, the chunk doubles until the entry is complete, up to a maximum.

This module does not decode entries: the header, the checksum and the records are read on request.

Source: Kafka 0.10.1, Implementation, 5.5 "Log" (reads, guarantees); org.apache.kafka.common.record.FileLogInputStream.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, UnknownVersion
from offsetmgr.segments.batch_reader import (
    BATCH_HEADER,
    BATCH_SMALLEST,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    LEGACY_HEADER,
    LEGACY_SMALLEST,
    LOG_APPEND_TIME,
    LOG_HEADER,
    LOG_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL,
    RecordBatch,
    batches,
)
from offsetmgr.segments.compression import CODEC, LIMIT

CHUNK: Final = 1024 * 1024
"""Bytes read at once."""
LARGEST: Final = 256 * 1024 * 1024
"""The default maximum size of an entry. Brokers accept entries of 1 MiB by default."""
_INT64: Final = struct.Struct(">q")
_LEGACY_CRC_FROM: Final = 16


class EntryHeader(NamedTuple):
    """The fields of an entry without its records. Nothing in it is verified before `LogEntry.intact`.

    ``base_offset`` is None for a compressed message of format 0 or 1, which has only its last offset. Times are in
    milliseconds since 1970. A field that the format or the producer does not have is None.
    """

    magic: int
    crc: int
    attributes: int
    base_offset: int | None
    last_offset: int
    codec: int
    base_timestamp: int | None
    """In format 2 the first record's time, or (``delete_horizon``) when the batch's tombstones may be removed."""
    largest_timestamp: int | None
    log_append_time: bool = False
    record_count: int | None = None
    leader_epoch: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    base_sequence: int | None = None
    transactional: bool = False
    control: bool = False
    delete_horizon: bool = False


class LogEntry(NamedTuple):
    """One entry of a file: a batch, or a message of an older format.

    ``offset`` is the number before its size: of a batch (magic 2) the first offset, of an older message its own, and of
    a compressed one its last.
    """

    position: int
    offset: int
    data: bytes

    @property
    def magic(self) -> int:
        """The version of its format."""
        return self.data[MAGIC_AT]

    @property
    def end(self) -> int:
        """The position after the entry."""
        return self.position + len(self.data)

    def header(self) -> EntryHeader:
        """Returns the header. Raises `UnknownVersion` for an unknown format, `CorruptData` for an entry shorter than
        its header."""
        return _header(self.data, self.offset)

    def intact(self) -> bool:
        """Returns whether its checksum is right: from the magic byte to the end in formats 0 and 1 (CRC-32), from the
        attributes to the end in format 2 (CRC-32C). Raises the errors of `header`."""
        header = self.header()
        view = memoryview(self.data)
        if header.magic < 2:
            return zlib.crc32(view[_LEGACY_CRC_FROM:]) == header.crc
        return bool(crc32c(view[CRC_FROM:]) == header.crc)

    def batch(self, first: int = 0, *, controls: bool = False, limit: int = LIMIT) -> RecordBatch:
        """Verifies the checksum and returns the records. Raises the errors of `batches`."""
        return next(batches(self.data, first, controls=controls, limit=limit))


class Chunk(NamedTuple):
    """Complete entries, one after the other, from ``position`` of a file on. `batches` decodes them."""

    position: int
    data: bytes


class EntryReader:
    """The entries of a file from a position to its end, once.

    ``position`` is where the next entry begins, also after an error: everything before it consists of entries. ``left``
    is the number of bytes of an incomplete entry between there and ``end``; it is known at the end.

    ``source`` is read from ``position``, where an entry has to begin, to ``end`` (by default the file's size at the
    start). ``what`` names it in errors. Memory is a few times ``chunk`` bytes, or the size of a larger entry, up to
    ``largest``.
    """

    def __init__(
        self,
        source: BinaryIO | io.RawIOBase,
        what: str,
        *,
        position: int = 0,
        end: int | None = None,
        chunk: int = CHUNK,
        largest: int = LARGEST,
    ) -> None:
        self._source = source
        self._what = what
        self._chunk = max(chunk, LOG_OVERHEAD)
        self._largest = largest
        self.position = position
        self.end = source.seek(0, io.SEEK_END) if end is None else end
        self.left: int | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Yields complete entries, many at once, which is faster for readers of all entries.

        Raises `CorruptData` for an invalid size of an entry, `LimitExceeded` for a size over the maximum (earlier
        entries have been yielded by then), `FileFailure`.
        """
        size = self._chunk
        while True:
            remaining = min(size, self.end - self.position)
            data = self._read(remaining)
            whole, damage = _whole(data, self._what, self.position)
            if whole:
                start = self.position
                self.position += whole
                yield Chunk(start, data if whole == len(data) else data[:whole])
                size = self._chunk
            if damage is not None:
                raise damage
            if whole:
                continue
            needed = _needed(data)
            if len(data) < remaining or needed is None or self.position + needed > self.end:
                self.left = max(0, self.end - self.position)
                return
            if needed > self._largest:
                raise LimitExceeded(
                    f"{self._what}, position {self.position}",
                    f"an entry of {needed:,} bytes begins there, more than the {self._largest:,} that may be read",
                )
            while size < needed:
                size *= 2

    def _read(self, size: int) -> bytes:
        """Reads ``size`` bytes, or fewer if the file has become shorter; a raw file may return them in pieces."""
        parts: list[bytes] = []
        try:
            self._source.seek(self.position)
            while size > 0 and (data := self._source.read(size)):
                parts.append(data)
                size -= len(data)
        except OSError as error:
            raise FileFailure(f"cannot read {self._what}", error.strerror or str(error)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __iter__(self) -> Iterator[LogEntry]:
        """Yields one entry at a time. Raises the errors of `chunks`; ``position`` is after the last yielded entry."""
        for chunk in self.chunks():
            at = 0
            behind = self.position
            while at < len(chunk.data):
                offset, size = LOG_HEADER.unpack_from(chunk.data, at)
                end = at + LOG_OVERHEAD + size
                self.position = chunk.position + end
                yield LogEntry(chunk.position + at, offset, chunk.data[at:end])
                at = end
            self.position = behind


def split(data: bytes, position: int = 0) -> Iterator[LogEntry]:
    """Yields the complete entries of a piece of a log in memory that begins at ``position``, without an incomplete one
    at its end. Raises `CorruptData` for an invalid size."""
    at = 0
    whole, damage = _whole(data, "entry", position)
    while at < whole:
        offset, size = LOG_HEADER.unpack_from(data, at)
        end = at + LOG_OVERHEAD + size
        yield LogEntry(position + at, offset, data[at:end])
        at = end
    if damage is not None:
        raise damage


def _whole(data: bytes, what: str, position: int) -> tuple[int, CorruptData | None]:
    """Returns the size of the complete entries at the beginning, and the error of the entry after them."""
    at, length = 0, len(data)
    unpack = LOG_HEADER.unpack_from
    while at + LOG_OVERHEAD <= length:
        offset, size = unpack(data, at)
        if size < LEGACY_SMALLEST:
            where = f"{what}, position {position + at}"
            return at, CorruptData(where, f"the entry at offset {offset} claims to have {size} bytes")
        end: int = at + LOG_OVERHEAD + size
        if end > length:
            break
        at = end
    return at, None


def _needed(data: bytes) -> int | None:
    """Returns the size of the entry that begins here, with the bytes before it; None if it is incomplete."""
    return LOG_OVERHEAD + LOG_HEADER.unpack_from(data)[1] if len(data) >= LOG_OVERHEAD else None


def _header(data: bytes, offset: int) -> EntryHeader:
    magic = data[MAGIC_AT]
    if magic < 2:
        return _legacy_header(data, offset)
    if magic > 2:
        raise UnknownVersion(f"batch at offset {offset}", f"message format {magic} is not known")
    if len(data) < LOG_OVERHEAD + BATCH_SMALLEST:
        raise CorruptData(f"batch at offset {offset}", "it is shorter than its header")
    epoch, _, crc, attributes, last, first_time, largest_time, producer, producer_epoch, sequence, count = (
        BATCH_HEADER.unpack_from(data, LOG_OVERHEAD)
    )
    return EntryHeader(
        magic,
        crc,
        attributes,
        offset,
        offset + last,
        attributes & CODEC,
        _known(first_time),
        _known(largest_time),
        bool(attributes & LOG_APPEND_TIME),
        count,
        _known(epoch),
        _known(producer),
        _known(producer_epoch),
        _known(sequence),
        bool(attributes & TRANSACTIONAL),
        bool(attributes & CONTROL),
        bool(attributes & DELETE_HORIZON),
    )


def _legacy_header(data: bytes, offset: int) -> EntryHeader:
    crc, magic, attributes = LEGACY_HEADER.unpack_from(data, LOG_OVERHEAD)
    timestamp = None
    if magic == 1:
        if len(data) < LOG_OVERHEAD + LEGACY_SMALLEST + _INT64.size:
            raise CorruptData(f"message at offset {offset}", "it is shorter than its header")
        timestamp = _known(_INT64.unpack_from(data, LOG_OVERHEAD + LEGACY_HEADER.size)[0])
    codec = attributes & CODEC
    return EntryHeader(
        magic,
        crc,
        attributes,
        None if codec else offset,
        offset,
        codec,
        None if codec else timestamp,
        timestamp,
        magic == 1 and bool(attributes & LOG_APPEND_TIME),
        None if codec else 1,
    )


def _known(number: int) -> int | None:
    """Returns None for -1, which Kafka writes for unknown."""
    return None if number == -1 else number
