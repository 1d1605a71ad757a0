"""Records of Avro snapshots as bytes: the encoding that fastavro would give, in a third of its time.

A snapshot has a record for each group and some fields for each partition, so what a field costs decides what an export
and the before-images of an import cost.  fastavro looks at the schema for every field; here the one schema is spelled
out, and what partitions share is encoded once.  The file around the records is fastavro's.
Source: "Binary encoding" and "Object container files" of Avro's specification 1.11.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Final

from fastavro.write import Writer

from offsetmgr.errors import OffsetMgrError
from offsetmgr.model import Committed, TopicPartition

BLOCK_BYTES: Final = 64_000
"""Records are gathered into blocks of about this size before they are deflated; one block is decoded at a time."""

NO_END: Final = b"\0"
"""The field ``end`` of every record but the last."""

_KEPT: Final = 100_000


def long(number: int) -> bytes:
    """A long (or an int: they look the same). Raises `OverflowError` beyond 64 bits."""
    z = number << 1 if number >= 0 else ~(number << 1)
    if z < 0x80:
        return bytes((z,))
    if z < 0x4000:
        return bytes((z & 0x7F | 0x80, z >> 7))
    if z < 0x20_0000:
        return bytes((z & 0x7F | 0x80, z >> 7 & 0x7F | 0x80, z >> 14))
    if z < 0x1000_0000:
        return bytes((z & 0x7F | 0x80, z >> 7 & 0x7F | 0x80, z >> 14 & 0x7F | 0x80, z >> 21))
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} does not fit 64 bits")
    out = bytearray()
    while z > 0x7F:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


def string(text: str) -> bytes:
    """Raises `UnicodeEncodeError`."""
    raw = text.encode()
    return long(len(raw)) + raw


def end(groups: int, offsets: int, crc32: int) -> bytes:
    """The field ``end`` of the last record."""
    return b"\x02" + long(groups) + long(offsets) + long(crc32)


class RecordEncoder:
    """Encodes records of one file; remembers what comes again and again."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, bytes] = {}
        self._timestamps: dict[int | None, bytes] = {None: b"\0"}

    def group(self, group: str, offsets: Mapping[TopicPartition, Committed], errors: bytes = b"\0") -> bytes:
        """The fields ``group``, ``offsets`` and ``errors``. Raises `OverflowError`, `UnicodeEncodeError`."""
        parts = [string(group)]
        if offsets:
            parts.append(long(len(offsets)))
            partitions, timestamps = self._partitions, self._timestamps
            for tp, (offset, metadata, epoch, timestamp, _) in sorted(offsets.items()):
                parts += (
                    partitions.get(tp) or self._partition(tp),
                    long(offset),
                    string(metadata) if metadata else b"\0",
                    b"\0" if epoch is None else b"\x02" + _int(epoch),
                    timestamps.get(timestamp) or self._timestamp(timestamp),
                )
        parts += (b"\0", errors)
        return b"".join(parts)

    def left(self, left: Mapping[TopicPartition, int | None]) -> bytes:
        """The field ``left`` of before-images. Raises as `group`."""
        if not left:
            return b"\0"
        partitions = self._partitions
        parts = [long(len(left))]
        for tp, offset in left.items():
            parts += (
                partitions.get(tp) or self._partition(tp),
                b"\0" if offset is None else b"\x02" + long(offset),
            )
        parts.append(b"\0")
        return b"".join(parts)

    def _partition(self, tp: TopicPartition) -> bytes:
        if len(self._partitions) >= _KEPT:
            self._partitions.clear()
        encoded = self._partitions[tp] = string(tp.topic) + _int(tp.partition)
        return encoded

    def _timestamp(self, timestamp: int | None) -> bytes:
        if timestamp is None:
            return b"\0"
        if len(self._timestamps) >= _KEPT:
            self._timestamps.clear()
        encoded = self._timestamps[timestamp] = b"\x02" + long(timestamp)
        return encoded


def errors_field(errors: Iterable[tuple[TopicPartition | None, OffsetMgrError]]) -> bytes:
    """The field ``errors``; no partition stands for the whole group."""
    items = [
        (b"\0\0" if tp is None else b"\x02" + string(tp.topic) + b"\x02" + _int(tp.partition))
        + b"".join(map(string, (type(error).__name__, error.what, error.why, error.hint)))
        for tp, error in errors
    ]
    return long(len(items)) + b"".join(items) + b"\0" if items else b"\0"


class RecordBlocks:
    """Records on their way into a file, gathered into blocks."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._records: list[bytes] = []
        self._size = 0

    def add(self, record: bytes) -> None:
        self._records.append(record)
        self._size += len(record)
        if self._size >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._records:
            self._writer.write_block(_Block(self._records))
            self._records, self._size = [], 0
        self._writer.flush()


class _Block:
    """What `Writer.write_block` looks at in one of fastavro's blocks."""

    def __init__(self, records: list[bytes]) -> None:
        self.num_records = len(records)
        self.bytes_ = io.BytesIO(b"".join(records))


def _int(number: int) -> bytes:
    if not -(2**31) <= number < 2**31:
        raise OverflowError(f"{number} does not fit 32 bits")
    return long(number)
