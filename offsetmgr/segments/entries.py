"""Reads the entries of a log file in bounded memory.

The reader reads a file in chunks. If a chunk ends within an entry, the next chunk begins with that entry. If an entry
is larger than a chunk, the reader doubles the chunk until it contains the entry, up to a maximum.

The reader does not decode entries. On request, `LogEntry` decodes the header and the records and verifies the checksum.

Source: Kafka 0.10.1, Implementation, 5.5 "Log" (reads, guarantees); org.apache.kafka.common.record.FileLogInputStream.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, UnknownVersion, os_error_as
from offsetmgr.segments.batch_reader import (
    BATCH_HEADER,
    BATCH_MIN_BYTES,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    INT64,
    LEGACY_CRC_FROM,
    LEGACY_HEADER,
    LEGACY_MIN_BYTES,
    LOG_APPEND_TIME,
    LOG_HEADER,
    LOG_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL,
    RecordBatch,
    batches,
)
from offsetmgr.segments.compression import CODEC, CODEC_NAMES, MAX_DECOMPRESSED_BYTES

CHUNK: Final = 1024 * 1024
"""Default number of bytes that the reader reads at once."""
MAX_ENTRY_BYTES: Final = 256 * 1024 * 1024
"""Default maximum size of an entry. (By default brokers accept entries of up to 1 MiB.)"""


class EntryHeader(NamedTuple):
    """The fields of an entry without its records. They are not verified; `LogEntry.intact` verifies the checksum.

    ``base_offset`` is None for a compressed message of format 0 or 1, whose header has only the last offset. Times are
    in milliseconds since 1970. A field is None if the format does not have the field or the producer did not set it.
    """

    magic: int
    crc: int
    attributes: int
    base_offset: int | None
    last_offset: int
    codec: int
    base_timestamp: int | None
    """In format 2 the time of the first record, or, if ``delete_horizon`` is set, the time from which the batch's
    tombstones may be removed."""
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

    @property
    def codec_name(self) -> str:
        """The name of the compression."""
        return CODEC_NAMES[self.codec] if self.codec < len(CODEC_NAMES) else f"codec-{self.codec}"

    @property
    def timestamp_type(self) -> str | None:
        """ "create" or "append"; None if the entry has no timestamp."""
        return None if self.largest_timestamp is None else "append" if self.log_append_time else "create"


class LogEntry(NamedTuple):
    """One entry of a log file: a batch, or a message of an older format.

    ``offset`` is the offset field at the beginning of the entry. In a batch (magic 2) this field is the first offset.
    In an older message it is the message's own offset or, if the message is compressed, the offset of its last inner
    message.
    """

    position: int
    offset: int
    data: bytes

    @property
    def magic(self) -> int:
        """The message format: 0, 1 or 2."""
        return self.data[MAGIC_AT]

    @property
    def size(self) -> int:
        """The number of bytes of the entry."""
        return len(self.data)

    @property
    def end(self) -> int:
        """The position in the file after the entry."""
        return self.position + len(self.data)

    def header(self) -> EntryHeader:
        """Returns the header. Raises `UnknownVersion` for an unknown format, `CorruptData` for an entry shorter than
        its header."""
        return _header(self.data, self.offset)

    def intact(self) -> bool:
        """Returns whether the entry's checksum is right. Raises the errors of `header`.

        In formats 0 and 1 the checksum is a CRC-32 of the bytes from the magic byte to the end. In format 2 it is a
        CRC-32C of the bytes from the attributes to the end.
        """
        header = self.header()
        view = memoryview(self.data)
        if header.magic < 2:
            return zlib.crc32(view[LEGACY_CRC_FROM:]) == header.crc
        return bool(crc32c(view[CRC_FROM:]) == header.crc)

    def batch(self, first: int = 0, *, controls: bool = False, limit: int = MAX_DECOMPRESSED_BYTES) -> RecordBatch:
        """Verifies the checksum and returns the records. Raises the errors of `batches`."""
        return next(batches(self.data, first, controls=controls, limit=limit))


class LogSlice(NamedTuple):
    """Bytes of a log file from ``position`` on, which `batches` decodes. They contain at least one complete entry. The
    last entry may be incomplete, except in the result of `EntryReader.chunks`."""

    position: int
    data: bytes


def read_fully(source: BinaryIO | io.RawIOBase, position: int, size: int) -> bytes:
    """Reads ``size`` bytes from ``position`` on, or fewer if the file has become shorter. Reads repeatedly, because a
    raw file may return fewer bytes than requested. Raises `OSError`."""
    parts: list[bytes] = []
    source.seek(position)
    while size > 0 and (data := source.read(size)):
        parts.append(data)
        size -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class EntryReader:
    """Reads the entries of a file once, from a position to the end.

    ``source`` is read from ``position``, at which an entry must begin, to ``end`` (default: the file's size when the
    reader is created). ``what`` names the source in errors. The reader needs memory for a few times ``chunk`` bytes. It
    needs more memory for an entry that is larger than a chunk; ``max_entry_bytes`` limits the size of an entry.

    The attribute ``position`` is the position of the next entry. Even after an error, all bytes before this position
    belong to complete entries. ``incomplete_bytes`` is the number of bytes before ``end`` that do not form a complete
    entry; `None` until the reader has reached the end.
    """

    def __init__(
        self,
        source: BinaryIO | io.RawIOBase,
        what: str,
        *,
        position: int = 0,
        end: int | None = None,
        chunk: int = CHUNK,
        max_entry_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._source = source
        self._what = what
        self._chunk = max(chunk, LOG_OVERHEAD)
        self._max_entry_bytes = max_entry_bytes
        self.position = position
        self.end = source.seek(0, io.SEEK_END) if end is None else end
        self.incomplete_bytes: int | None = None

    def chunks(self) -> Iterator[LogSlice]:
        """Yields complete entries, many in each chunk. A caller that decodes all entries is faster with this method
        than with iteration over single entries.

        If an entry has an invalid size, yields the entries before this entry and then raises `CorruptData`. If the size
        of an entry is over the maximum, does the same with `LimitExceeded`. Raises `FileFailure` if the file cannot be
        read.
        """
        size = self._chunk
        while True:
            remaining = min(size, self.end - self.position)
            with os_error_as(FileFailure, f"cannot read {self._what}"):
                data = read_fully(self._source, self.position, remaining)
            whole, damage = _complete_prefix(data, self._what, self.position)
            if whole:
                start = self.position
                self.position += whole
                yield LogSlice(start, data if whole == len(data) else data[:whole])
                size = self._chunk
            if damage is not None:
                raise damage
            if whole:
                continue
            needed = LOG_OVERHEAD + LOG_HEADER.unpack_from(data)[1] if len(data) >= LOG_OVERHEAD else None
            if len(data) < remaining or needed is None or self.position + needed > self.end:
                self.incomplete_bytes = max(0, self.end - self.position)
                return
            if needed > self._max_entry_bytes:
                raise LimitExceeded(
                    f"{self._what}, position {self.position}",
                    f"the entry has {needed:,} bytes, more than the maximum of {self._max_entry_bytes:,}",
                )
            while size < needed:
                size *= 2

    def __iter__(self) -> Iterator[LogEntry]:
        """Yields one entry at a time. Before each entry it sets ``position`` to the end of that entry. Raises the
        errors of `chunks`."""
        for chunk in self.chunks():
            behind = self.position
            for entry in _entries(chunk.data, len(chunk.data), chunk.position):
                self.position = entry.end
                yield entry
            self.position = behind


def split(data: bytes, position: int = 0) -> Iterator[LogEntry]:
    """Yields the complete entries of ``data``, which is a part of a log. ``position`` is the position in the log at
    which ``data`` begins. Skips an incomplete entry at the end. Raises `CorruptData` for an entry with an invalid
    size."""
    whole, damage = _complete_prefix(data, "entry", position)
    yield from _entries(data, whole, position)
    if damage is not None:
        raise damage


def _entries(data: bytes, whole: int, position: int) -> Iterator[LogEntry]:
    """Yields the entries in the first ``whole`` bytes of ``data``."""
    at = 0
    while at < whole:
        offset, size = LOG_HEADER.unpack_from(data, at)
        end = at + LOG_OVERHEAD + size
        yield LogEntry(position + at, offset, data[at:end])
        at = end


def _complete_prefix(data: bytes, what: str, position: int) -> tuple[int, CorruptData | None]:
    """Returns the number of bytes of complete entries at the beginning of ``data``, and an error if the next entry has
    an invalid size."""
    at, length = 0, len(data)
    unpack = LOG_HEADER.unpack_from
    while at + LOG_OVERHEAD <= length:
        offset, size = unpack(data, at)
        if size < LEGACY_MIN_BYTES:
            where = f"{what}, position {position + at}"
            return at, CorruptData(where, f"the entry at offset {offset} has an invalid size: {size} bytes")
        end: int = at + LOG_OVERHEAD + size
        if end > length:
            break
        at = end
    return at, None


def _header(data: bytes, offset: int) -> EntryHeader:
    magic = data[MAGIC_AT]
    if magic < 2:
        return _legacy_header(data, offset)
    if magic > 2:
        raise UnknownVersion(f"batch at offset {offset}", f"message format {magic} is not known")
    if len(data) < LOG_OVERHEAD + BATCH_MIN_BYTES:
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
        if len(data) < LOG_OVERHEAD + LEGACY_MIN_BYTES + INT64.size:
            raise CorruptData(f"message at offset {offset}", "it is shorter than its header")
        timestamp = _known(INT64.unpack_from(data, LOG_OVERHEAD + LEGACY_HEADER.size)[0])
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
    """Returns `None` for -1, which Kafka writes if a value is unknown."""
    return None if number == -1 else number
