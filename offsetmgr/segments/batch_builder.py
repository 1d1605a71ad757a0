"""Encodes log entries (record batches and older messages) in message formats 0, 1 and 2.

Pure. If a format cannot hold a value, the encoder raises `UnsupportedOperation`; it never drops the value. Formats 0
and 1 have no headers and no producer ids, and format 0 has no timestamps.

Source: org.apache.kafka.common.record (DefaultRecordBatch, DefaultRecord, LegacyRecord, EndTransactionMarker).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.core.varint import encode_varint, zigzag
from offsetmgr.segments.batch_reader import (
    BATCH_HEADER,
    BATCH_MIN_BYTES,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    INT64,
    LEGACY_HEADER,
    LOG_APPEND_TIME,
    LOG_HEADER,
    TRANSACTIONAL,
    Record,
)
from offsetmgr.segments.compression import INT32, NONE, compress

_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = CRC_FROM - _CRC.size
_UNKNOWN: Final = -1


class Producer(NamedTuple):
    """The idempotent producer of a batch (KIP-98). ``sequence`` is the sequence number of the batch's first record."""

    id: int
    epoch: int
    sequence: int
    transactional: bool = False


def message(record: Record, magic: int) -> bytes:
    """Encodes one uncompressed message of format 0 or 1."""
    return LOG_HEADER.pack(record.offset, len(body := _message(record, magic, 0))) + body


def message_set(records: Sequence[Record], magic: int, codec: int = NONE) -> bytes:
    """Encodes messages of format 0 or 1.

    Without a codec the messages follow each other. With a codec the messages are compressed into the value of one outer
    message, whose offset is that of the last message. Inner offsets are absolute in format 0. In format 1 they are
    relative to the offset of the first message (KIP-31). Raises `UnsupportedOperation` for values that the format
    cannot hold, and `UnknownVersion` for a codec that the format does not have.
    """
    if codec == NONE:
        return b"".join(message(record, magic) for record in records)
    if not records:
        return b""
    append_time = _append_time(records)
    first, last = records[0].offset if magic else 0, records[-1].offset
    inner = b"".join(message(record._replace(offset=record.offset - first), magic) for record in records)
    newest = max((time for record in records if (time := record.timestamp) is not None), default=None)
    outer = Record(last, newest, None, compress(codec, inner, magic=magic), (), append_time is not None)
    return LOG_HEADER.pack(last, len(body := _message(outer, magic, codec))) + body


def batch(
    records: Sequence[Record],
    codec: int = NONE,
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int | None = None,
    producer: Producer | None = None,
    control: bool = False,
    delete_horizon: int | None = None,
) -> bytes:
    """Encodes a batch of format 2.

    ``base_offset`` and ``last_offset`` default to the offsets of the first and the last record. Pass both offsets for a
    compacted batch: compaction may remove any or all of its records, but the batch keeps its first and last offset.
    ``delete_horizon`` (milliseconds since 1970) is the time from which tombstones may be removed (KIP-534). Raises
    `UnsupportedOperation` if the format cannot hold a value, if the offsets do not ascend, or if only some of the
    records have the broker's append time. Raises `UnknownVersion` for an unknown codec.
    """
    base = records[0].offset if base_offset is None and records else base_offset
    last = records[-1].offset if last_offset is None and records else last_offset
    if base is None or last is None:
        raise UnsupportedOperation("batch", "it has no records; give base_offset and last_offset")
    what = f"batch at offset {base}"
    offsets = [base - 1, *(record.offset for record in records), last + 1]
    if any(b <= a for a, b in pairwise(offsets)):
        raise UnsupportedOperation(what, "the offsets of its records do not ascend")
    appended = _append_time(records)
    times = [_UNKNOWN if record.timestamp is None else record.timestamp for record in records]
    base_time = delete_horizon if delete_horizon is not None else (times[0] if times else _UNKNOWN)
    attributes = codec if records else NONE
    attributes |= LOG_APPEND_TIME if appended is not None else 0
    attributes |= CONTROL if control else 0
    attributes |= DELETE_HORIZON if delete_horizon is not None else 0
    attributes |= TRANSACTIONAL if producer is not None and producer.transactional else 0
    body = b"".join(
        _record(record, record.offset - base, time - base_time) for record, time in zip(records, times, strict=True)
    )
    body = compress(codec, body) if records else body
    identity = producer or Producer(_UNKNOWN, _UNKNOWN, _UNKNOWN)
    epoch = _UNKNOWN if leader_epoch is None else leader_epoch
    latest = max(times, default=_UNKNOWN)
    try:
        return sealed(
            base, (epoch, 2, 0, attributes, last - base, base_time, latest, *identity[:3], len(records)), body
        )
    except struct.error as error:
        raise UnsupportedOperation(what, f"a number in it is too large for its format: {error}") from error


def sealed(base: int, fields: Sequence[int], body: bytes) -> bytes:
    """Returns a batch with the checksum. ``fields`` are those of `BATCH_HEADER`. Raises `struct.error` for a number
    that is too large."""
    data = bytearray(LOG_HEADER.pack(base, BATCH_MIN_BYTES + len(body)))
    data += BATCH_HEADER.pack(*fields)
    data += body
    _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))
    return bytes(data)


def _append_time(records: Sequence[Record]) -> int | None:
    """Returns the broker's append time of the records; `None` if no record has one. Raises `UnsupportedOperation` if
    the append times differ or if only some of the records have an append time, because a batch or a compressed message
    stores one append time for all its records."""
    times = {record.timestamp if record.log_append_time else None for record in records}
    if times <= {None}:
        return None
    (time, *others) = times
    if others or time is None:
        raise UnsupportedOperation(
            f"records from offset {records[0].offset} on",
            "they have different append times, and a batch can hold only one",
        )
    return time


# --- magic 2 --------------------------------------------------------------------------------------


def _record(record: Record, offset_delta: int, time_delta: int) -> bytes:
    body = bytearray(b"\0")
    body += _varint(time_delta) + _varint(offset_delta) + _bytes_field(record.key) + _bytes_field(record.value)
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _bytes_field(name.encode()) + _bytes_field(value)
    return _varint(len(body)) + body


def _bytes_field(data: bytes | None) -> bytes:
    return b"\x01" if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    return encode_varint(zigzag(number))


# --- magic 0 and 1 --------------------------------------------------------------------------------


def _message(record: Record, magic: int, codec: int) -> bytes:
    """Encodes the part of a message after its size."""
    what = f"message at offset {record.offset}"
    if magic not in (0, 1):
        raise UnsupportedOperation(what, f"format {magic} has no such messages")
    if record.headers:
        raise UnsupportedOperation(what, f"format {magic} has no headers")
    if magic == 0 and record.timestamp is not None:
        raise UnsupportedOperation(what, "format 0 has no times")
    attributes = codec | (LOG_APPEND_TIME if record.log_append_time else 0)
    try:
        data = bytearray(LEGACY_HEADER.pack(0, magic, attributes))
        if magic == 1:
            data += INT64.pack(_UNKNOWN if record.timestamp is None else record.timestamp)
        for field in (record.key, record.value):
            data += INT32.pack(_UNKNOWN) if field is None else INT32.pack(len(field)) + field
    except struct.error as error:
        raise UnsupportedOperation(what, f"a number in it is too large for its format: {error}") from error
    _CRC.pack_into(data, 0, zlib.crc32(memoryview(data)[_CRC.size :]))
    return bytes(data)
