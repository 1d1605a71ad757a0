"""Splits the bytes of a log into batches without decoding records.

A reader that needs the producer of each batch, but not each record, uses this module instead of `batch_reader`. The
reader passes a whole Fetch response, and the batches refer to positions in its bytes, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.segments.batch_reader import (
    BATCH_HEADER,
    BATCH_MIN_BYTES,
    CONTROL,
    CRC_FROM,
    LEGACY_MIN_BYTES,
    LOG_HEADER,
    LOG_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL,
    Record,
    batches,
)
from offsetmgr.segments.compression import CODEC

RECORDS_FROM: Final = LOG_OVERHEAD + BATCH_MIN_BYTES
"""The position of the first record in a batch of format 2."""
NO_PRODUCER: Final = -1
"""The producer id and the producer epoch of a batch whose producer is not idempotent."""


class DamagedBatch(CorruptData):
    """A batch whose checksum or structure is wrong. ``offset`` is its base offset."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"batch at offset {offset}", why)
        self.offset = offset


class RawBatch(NamedTuple):
    """The header of a batch, and the range of its bytes.

    A message of format 0 or 1 is a batch without a producer. Its ``record_count`` is -1, because its header does not
    contain the number of messages, and its ``base_offset`` equals its ``last_offset``.
    """

    base_offset: int
    last_offset: int
    magic: int
    attributes: int
    producer_id: int
    producer_epoch: int
    record_count: int
    start: int
    end: int

    @property
    def codec(self) -> int:
        """The compression codec of the records."""
        return self.attributes & CODEC

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction, or marks the end of one."""
        return self.magic == 2 and bool(self.attributes & (TRANSACTIONAL | CONTROL))


def raw_batches(data: bytes) -> Iterator[RawBatch]:
    """Yields the complete batches of ``data``, which must begin with a batch. Verifies the checksum of each batch of
    format 2.

    If a batch is invalid, yields all batches before it and then raises `DamagedBatch`, or `UnknownVersion` if the
    format of the batch is unknown.
    """
    at, size_of_data = 0, len(data)
    view = memoryview(data)
    while size_of_data - at >= LOG_OVERHEAD:
        offset, size = LOG_HEADER.unpack_from(data, at)
        end = at + LOG_OVERHEAD + size
        if size < LEGACY_MIN_BYTES or offset < 0:
            raise DamagedBatch(offset, f"its header is not valid: offset {offset}, size {size}")
        if end > size_of_data:
            return
        magic = data[at + MAGIC_AT]
        if magic < 2:
            yield RawBatch(offset, offset, magic, 0, NO_PRODUCER, NO_PRODUCER, -1, at, end)
        elif magic > 2:
            raise UnknownVersion(f"batch at offset {offset}", f"message format {magic} is not known")
        elif size < BATCH_MIN_BYTES:
            raise DamagedBatch(offset, "it is shorter than its header")
        else:
            _, _, crc, attributes, last, _, _, producer, epoch, _, count = BATCH_HEADER.unpack_from(
                data, at + LOG_OVERHEAD
            )
            if crc32c(view[at + CRC_FROM : end]) != crc:
                raise DamagedBatch(offset, "its checksum does not match its content (CORRUPT_MESSAGE)")
            yield RawBatch(offset, offset + last, magic, attributes, producer, epoch, count, at, end)
        at = end


def records_of(data: bytes, batch: RawBatch, first: int = 0) -> list[Record]:
    """Returns the records of a batch from offset ``first`` on. Raises `DamagedBatch`, and `LimitExceeded` if the batch
    decompresses to too many bytes."""
    try:
        (decoded,) = batches(data[batch.start : batch.end], first)
    except CorruptData as error:
        raise DamagedBatch(batch.base_offset, error.why) from error
    return decoded.records
