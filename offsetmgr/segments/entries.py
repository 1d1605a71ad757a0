"""Walking the entries of a log file in bounded memory.

A file is read in chunks. A chunk may end within an entry: what is left over is read again with the next. Where an entry
is larger than a chunk the chunk doubles until the entry is whole, up to a largest size.

What an entry holds is not looked into here: its header is read when it is asked for, its checksum and its records too.

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
"""The largest entry that is read, unless told otherwise. Brokers take entries of 1 MiB by default."""
_INT64: Final = struct.Struct(">q")
_LEGACY_CRC_FROM: Final = 16


class EntryHeader(NamedTuple):
    """What an entry tells without its records being read. Nothing here is proved before `LogEntry.intact` is.

    ``base_offset`` is None for a compressed message of format 0 or 1, which knows only its last offset. Times are
    milliseconds since 1970. What the format does not have, or the producer did not give, is None.
    """

    magic: int
    crc: int
    attributes: int
    base_offset: int | None
    last_offset: int
    codec: int
    base_timestamp: int | None
    """In format 2 the first record's time, or (``delete_horizon``) when the batch's tombstones may go."""
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
    """One entry as it lies in a file: a batch, or a message of an older format.

    ``offset`` is the number before its size: of a batch (magic 2) the first offset, of an older message its own, and
    of a compressed one its last.
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
        """The position behind it."""
        return self.position + len(self.data)

    def header(self) -> EntryHeader:
        """Raises `UnknownVersion` for a format that we do not know, `CorruptData` for one shorter than its header."""
        return _header(self.data, self.offset)

    def intact(self) -> bool:
        """Whether its checksum is that of its bytes: from the magic byte to the end in formats 0 and 1 (CRC-32), from
        the attributes to the end in format 2 (CRC-32C). Raises as `header`."""
        header = self.header()
        view = memoryview(self.data)
        if header.magic < 2:
            return zlib.crc32(view[_LEGACY_CRC_FROM:]) == header.crc
        return bool(crc32c(view[CRC_FROM:]) == header.crc)

    def batch(self, first: int = 0, *, controls: bool = False, limit: int = LIMIT) -> RecordBatch:
        """Its records, its checksum proved before: see `batches`, for the errors too."""
        return next(batches(self.data, first, controls=controls, limit=limit))


class Chunk(NamedTuple):
    """Whole entries, one behind the other, as they lie in a file from ``position`` on. `batches` reads them."""

    position: int
    data: bytes


class EntryReader:
    """The entries of a file from a position to its end, once.

    ``position`` is where the next entry begins, also after an error: everything before it has the form of entries.
    ``left`` is how many bytes between there and ``end`` are the beginning of an entry that is not whole; it is known
    when the walk has come to its end.

    ``source`` is read from ``position``, where an entry has to begin, to ``end``: the file's size when the walk began,
    unless told otherwise. ``what`` names it in errors. Memory is a few times ``chunk`` bytes, or the size of an entry
    that is larger, up to ``largest``.
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
        """Whole entries, many at once: quicker than one by one for whoever reads all of them.

        Raises `CorruptData` where the size of an entry is none, `LimitExceeded` where it is over the largest (the
        entries before it have been yielded by then), `FileFailure`.
        """
        size = self._chunk
        while True:
            room = min(size, self.end - self.position)
            data = self._read(room)
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
            if len(data) < room or needed is None or self.position + needed > self.end:
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
        """``size`` bytes, or fewer where the file has become shorter; a raw file may give them in pieces."""
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
        """One by one. Raises as `chunks`; ``position`` is behind the last entry that was handed out."""
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
    """The whole entries of a piece of a log that is in memory and begins at ``position``; what is not whole at its end
    is left out. Raises `CorruptData` where the size of an entry is none."""
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
    """How many bytes at the beginning are whole entries, and what is wrong with the one behind them."""
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
    """The size of the entry that begins here, with what is before it; None where not even that is whole."""
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
    """What Kafka writes as -1 is unknown."""
    return None if number == -1 else number
