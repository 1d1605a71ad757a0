"""Decodes messages of all three formats (magic 0, 1 and 2) from the bytes of a log.

A log is a sequence of *batches*. Since Kafka 0.11 (KIP-98) a batch has one header and any number of records. In the
older formats, each entry is a single message, or a message whose value is a compressed sequence of messages. A slice of
a log, such as a Fetch response, may end within a batch: the reader skips the incomplete batch without an error.

Source: org.apache.kafka.common.record (DefaultRecordBatch, LegacyRecord, AbstractLegacyRecordBatch).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.core.varint import decode_varint, unzigzag
from offsetmgr.segments.compression import CODEC, INT32, MAX_DECOMPRESSED_BYTES, decompress

LOG_OVERHEAD: Final = 12
"""Number of bytes of the two fields at the beginning of every batch, in all formats: the offset (in format 2 the base
offset) and the size."""
LOG_HEADER: Final = struct.Struct(">qi")
MAGIC_AT: Final = 16
LEGACY_MIN_BYTES: Final = 14
"""Minimum number of bytes that follow the size field in a message of format 0: CRC, magic, attributes, lengths of key
and value."""
LEGACY_HEADER: Final = struct.Struct(">IbB")
LEGACY_CRC_FROM: Final = 16
BATCH_MIN_BYTES: Final = 49
BATCH_HEADER: Final = struct.Struct(">ibIhiqqqhii")
"""Leader epoch, magic, CRC, attributes, last offset's delta, base and largest timestamp, producer id, producer epoch,
base sequence, number of records."""
CRC_FROM: Final = 21
INT64: Final = struct.Struct(">q")

MARKER_KEY: Final = struct.Struct(">hh")
"""Version and type of a control record."""
MARKER_VALUE: Final = struct.Struct(">hi")
"""Version and coordinator epoch of a commit or abort marker."""

LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""If this attribute is set, the base timestamp is the time from which tombstones may be removed (KIP-534)."""

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One message.

    ``timestamp`` is in milliseconds since 1970, and None if the format has no timestamps or the producer set none.
    ``log_append_time`` is True if the broker set the timestamp. In compacted topics a null ``value`` is a tombstone.

    >>> Record(42, 1_700_000_000_000, b"key", b"value").headers
    ()
    """

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    log_append_time: bool = False


class RecordBatch(NamedTuple):
    """One entry of the log: a batch of records, or a message of an older format.

    ``last_offset`` may be larger than the offset of the last record, because compaction removes records. A ``control``
    batch marks the end of a transaction and contains no messages; its ``records`` are empty unless the caller asked for
    control records. ``producer_id`` is None if the producer is neither idempotent nor transactional, and
    ``leader_epoch`` if the format has none. ``end`` is the position after the batch in the decoded bytes.
    """

    base_offset: int
    last_offset: int
    magic: int
    codec: int
    transactional: bool
    control: bool
    records: list[Record]
    producer_id: int | None = None
    leader_epoch: int | None = None
    end: int = 0


def batches(
    data: bytes, first: int = 0, *, controls: bool = False, limit: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[RecordBatch]:
    """Yields the complete batches of ``data``, each with its records from offset ``first`` on. ``data`` must begin with
    a batch.

    ``controls`` adds the records of control batches. ``limit`` is the maximum number of decompressed bytes of a batch.
    If a batch is invalid, yields all batches before the invalid batch and then raises an error: `CorruptData` if the
    checksum or the structure of the invalid batch is wrong, `LimitExceeded` if the batch is over the limit, or
    `UnknownVersion` if the format of the batch is unknown.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from offsetmgr.segments import LogAppender, Partition
    >>> with TemporaryDirectory() as parent:
    ...     with LogAppender(Path(parent) / "orders-0") as log:
    ...         done = log.append([Record(0, None, None, b"first"), Record(0, None, None, b"second")])
    ...     piece = Partition(Path(parent) / "orders-0").read(0, size=1_000)
    >>> [record.value for batch in batches(piece.data) for record in batch.records] if piece else []
    [b'first', b'second']
    """
    at = 0
    while len(data) - at >= LOG_OVERHEAD:
        offset, size = LOG_HEADER.unpack_from(data, at)
        end = at + LOG_OVERHEAD + size
        if size < LEGACY_MIN_BYTES:
            raise CorruptData(f"batch at offset {offset}", f"it has an invalid size: {size} bytes")
        if end > len(data):
            return
        if offset < 0:  # no checksum covers the offset, and the records of the batch would be skipped silently
            raise CorruptData(f"batch at offset {offset}", "an offset cannot be negative")
        magic = data[at + MAGIC_AT]
        try:
            if magic < 2:
                yield _legacy_batch(data, at, end, first, limit)
            elif magic == 2:
                yield _batch(data, at, end, first, controls, limit)
            else:
                raise UnknownVersion(f"batch at offset {offset}", f"message format {magic} is not known")
        except (struct.error, IndexError, ValueError) as error:
            raise CorruptData(f"batch at offset {offset}", f"it breaks Kafka's format: {error}") from error
        at = end


def starts_with_complete_batch(data: bytes) -> bool:
    """Returns whether ``data`` begins with a complete batch, so that `batches` yields at least one."""
    return len(data) >= LOG_OVERHEAD and LOG_OVERHEAD + LOG_HEADER.unpack_from(data)[1] <= len(data)


# --- magic 2 --------------------------------------------------------------------------------------


def _batch(data: bytes, start: int, end: int, first: int, controls: bool, limit: int) -> RecordBatch:
    (base,) = INT64.unpack_from(data, start)
    what = f"batch at offset {base}"
    if end - start - LOG_OVERHEAD < BATCH_MIN_BYTES:
        raise CorruptData(what, "it is shorter than its header")
    header = BATCH_HEADER.unpack_from(data, start + LOG_OVERHEAD)
    epoch, magic, crc, attributes, last_delta, first_time, largest_time, producer, _pepoch, _sequence, count = header
    if crc32c(memoryview(data)[start + CRC_FROM : end]) != crc:
        raise _corrupt(what)
    codec = attributes & CODEC
    control = bool(attributes & CONTROL)
    records: list[Record] = []
    if (controls or not control) and base + last_delta >= first:
        body = decompress(codec, data[start + LOG_OVERHEAD + BATCH_MIN_BYTES : end], what, limit)
        appended = largest_time if attributes & LOG_APPEND_TIME else None
        records = _records(body, count, base, first, first_time, appended, what)
    transactional = bool(attributes & TRANSACTIONAL)
    producer_id, leader_epoch = (None if number < 0 else number for number in (producer, epoch))
    last = base + last_delta
    return RecordBatch(base, last, magic, codec, transactional, control, records, producer_id, leader_epoch, end)


def _records(
    body: bytes, count: int, base: int, first: int, first_time: int, appended: int | None, what: str
) -> list[Record]:
    """Decodes the records of a batch from offset ``first`` on.

    ``appended`` is the broker's append time if the topic uses the append time as the timestamp; otherwise it is `None`.
    Short keys and values are decoded inline, without a call of `bytes_field`, because a batch may have thousands of
    records.
    """
    records = []
    at = 0
    append_time = appended is not None
    for _ in range(count):
        size, at = signed_varint(body, at)
        end = at + size
        if size < 0 or end > len(body):
            raise CorruptData(what, f"a record of {size} bytes does not fit in it")
        time_delta, at = signed_varint(body, at + 1)
        offset_delta, at = signed_varint(body, at)
        if base + offset_delta < first:
            at = end
            continue
        if (byte := body[at]) < 0x80 and not byte & 1:
            at += 1
            key: bytes | None = body[at : at + (byte >> 1)]
            at += byte >> 1
        else:
            key, at = bytes_field(body, at)
        if (byte := body[at]) < 0x80 and not byte & 1:
            at += 1
            value: bytes | None = body[at : at + (byte >> 1)]
            at += byte >> 1
        else:
            value, at = bytes_field(body, at)
        headers: tuple[Header, ...] = ()
        if body[at]:
            number, at = signed_varint(body, at)
            headers, at = _headers(body, at, number)
        else:
            at += 1
        if at != end:
            raise CorruptData(what, "the size of a record in it does not match its content")
        time = first_time + time_delta if appended is None else appended
        records.append(Record(base + offset_delta, None if time < 0 else time, key, value, headers, append_time))
    if at != len(body):
        raise CorruptData(what, f"{len(body) - at} bytes follow its {count} records")
    return records


def _headers(body: bytes, at: int, number: int) -> tuple[tuple[Header, ...], int]:
    headers = []
    for _ in range(number):
        name, at = bytes_field(body, at)
        value, at = bytes_field(body, at)
        headers.append(((name or b"").decode("utf-8", "replace"), value))
    return tuple(headers), at


def bytes_field(body: bytes, at: int) -> tuple[bytes | None, int]:
    """Returns the field at a position, and the position after it. Raises `ValueError`, `IndexError`."""
    size, at = signed_varint(body, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(body):
        raise ValueError(f"a field of {size} bytes does not fit in it")
    return body[at:end], end


def signed_varint(body: bytes, at: int) -> tuple[int, int]:
    """Returns the value of a zigzag varint, and the position after it."""
    byte = body[at]
    if byte < 0x80:  # most numbers are short
        return (byte >> 1) ^ -(byte & 1), at + 1
    if (second := body[at + 1]) < 0x80:
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), at + 2
    value, at = decode_varint(body, at, 10)
    return unzigzag(value), at


# --- magic 0 and 1 --------------------------------------------------------------------------------


class _Message(NamedTuple):
    magic: int
    attributes: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None


def _legacy_batch(data: bytes, start: int, end: int, first: int, limit: int) -> RecordBatch:
    (offset,) = INT64.unpack_from(data, start)
    outer = _message(data, start + LOG_OVERHEAD, end, f"message at offset {offset}")
    codec = outer.attributes & CODEC
    appended = outer.magic == 1 and bool(outer.attributes & LOG_APPEND_TIME)
    if not codec:
        records = [Record(offset, outer.timestamp, outer.key, outer.value, (), appended)]
    else:
        records = _inner(outer, offset, codec, appended, limit)
    base = records[0].offset
    if base < 0:
        raise CorruptData(f"message at offset {offset}", f"the first message in it would have offset {base}")
    records = [record for record in records if record.offset >= first]
    return RecordBatch(base, offset, outer.magic, codec, transactional=False, control=False, records=records, end=end)


def _inner(outer: _Message, offset: int, codec: int, appended: bool, limit: int) -> list[Record]:
    """Returns the messages inside a compressed message. The offset of the compressed message is that of its last inner
    message. Inner offsets are absolute in format 0. In format 1 they are relative to the first inner message (KIP-31).
    If the broker set the outer timestamp, that timestamp applies to every inner message.
    """
    what = f"message at offset {offset}"
    body = decompress(codec, outer.value or b"", what, limit)
    inner: list[tuple[int, _Message]] = []
    at = 0
    while at < len(body):
        number, size = LOG_HEADER.unpack_from(body, at)
        at += LOG_OVERHEAD
        if size < LEGACY_MIN_BYTES or size > len(body) - at:
            raise CorruptData(what, f"a message of {size} bytes does not fit in it")
        message = _message(body, at, at + size, what)
        if message.magic != outer.magic or message.attributes & CODEC:
            raise CorruptData(what, "a message in it has another version or is itself compressed")
        inner.append((number, message))
        at += size
    if not inner:
        raise CorruptData(what, "it is compressed but contains no message")
    base = offset - inner[-1][0] if outer.magic else 0
    return [
        Record(base + number, outer.timestamp if appended else m.timestamp, m.key, m.value, (), appended)
        for number, m in inner
    ]


def _message(data: bytes, start: int, end: int, what: str) -> _Message:
    crc, magic, attributes = LEGACY_HEADER.unpack_from(data, start)
    if zlib.crc32(memoryview(data)[start + 4 : end]) != crc:
        raise _corrupt(what)
    at = start + LEGACY_HEADER.size
    timestamp = None
    if magic == 1:
        (timestamp,) = INT64.unpack_from(data, at)
        at += INT64.size
    key, at = _sized(data, at, end, what)
    value, at = _sized(data, at, end, what)
    if at != end:
        raise CorruptData(what, "it is longer than its key and value")
    return _Message(magic, attributes, None if timestamp == -1 else timestamp, key, value)


def _sized(data: bytes, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    (size,) = INT32.unpack_from(data, at)
    at += INT32.size
    if size < 0:
        return None, at
    if size > end - at:
        raise CorruptData(what, f"a field of {size} bytes does not fit in it")
    return data[at : at + size], at + size


def _corrupt(what: str) -> CorruptData:
    return CorruptData(what, "its checksum does not match its content (CORRUPT_MESSAGE)")
