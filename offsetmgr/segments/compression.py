"""What Kafka's producers compress batches with, undone.

Source: org.apache.kafka.common.compress; the codec is the lowest three bits of a batch's attributes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Final

import cramjam

from offsetmgr.errors import OffsetMgrError, UnknownVersion, Unreadable

CODEC: Final = 0x07
"""The bits of the attributes that name the codec."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_XERIAL: Final = b"\x82SNAPPY\x00"
"""Java's producers cut snappy into chunks, each under its length, behind this and two versions of four bytes."""
_XERIAL_HEADER: Final = 16
_INT32: Final = struct.Struct(">i")

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_AS_IT_IS: Final = 0x80000000
_UINT32_LE: Final = struct.Struct("<I")


def decompress(codec: int, data: bytes, what: str) -> bytes:
    """The bytes that ``data`` was before compression; ``what`` names the batch in errors.

    Raises `Unreadable` where it is not what the codec writes, `UnknownVersion` for a codec that we do not know.
    """
    try:
        if codec == NONE:
            return data
        if codec == GZIP:
            return gzip.decompress(data)
        if codec == SNAPPY:
            return _snappy(data)
        if codec == LZ4:
            return _lz4(data, what)
        if codec == ZSTD:
            return bytes(cramjam.zstd.decompress(data))
    except OffsetMgrError:
        raise
    except (cramjam.DecompressionError, OSError, EOFError, zlib.error, struct.error, IndexError, ValueError) as error:
        raise Unreadable(what, f"it cannot be decompressed: {error}") from error
    raise UnknownVersion(what, f"compression codec {codec} is not known")


def _snappy(data: bytes) -> bytes:
    """In Java's chunks, or in one piece, as librdkafka writes it."""
    if not data.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(data))
    out = bytearray()
    at = _XERIAL_HEADER
    while at < len(data):
        (size,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a chunk of {size} bytes does not fit in it")
        out += cramjam.snappy.decompress_raw(data[at : at + size])
        at += size
    return bytes(out)


def _lz4(data: bytes, what: str) -> bytes:
    """Frames of LZ4, taken apart here: the checksum in the header is wrong in messages of version 0 (KAFKA-3160), and
    what it would protect is under the batch's own."""
    out = bytearray()
    at = 0
    while at < len(data):
        (magic,) = _UINT32_LE.unpack_from(data, at)
        if magic != _LZ4_MAGIC:
            raise ValueError("no LZ4 frame begins here")
        at = _lz4_frame(data, at + _UINT32_LE.size, out, what)
    return bytes(out)


def _lz4_frame(data: bytes, at: int, out: bytearray, what: str) -> int:
    """Appends one frame's content to ``out``; where the frame ends."""
    flags, descriptor = data[at], data[at + 1]
    if not flags & _LZ4_INDEPENDENT:
        raise Unreadable(what, "its LZ4 blocks depend on each other, which Kafka does not allow")
    block_room = bytearray(1 << (8 + 2 * (descriptor >> 4 & 0x07)))
    at += 3 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while True:
        (size,) = _UINT32_LE.unpack_from(data, at)
        at += _UINT32_LE.size
        if size == 0:
            return at + (_UINT32_LE.size if flags & 0x04 else 0)
        stored = bool(size & _LZ4_AS_IT_IS)
        size &= ~_LZ4_AS_IT_IS
        if size > len(data) - at:
            raise ValueError(f"a block of {size} bytes does not fit in it")
        block = data[at : at + size]
        if stored:
            out += block
        else:
            written = cramjam.lz4.decompress_block_into(block, block_room, output_len=len(block_room))
            out += memoryview(block_room)[:written]
        at += size + (_UINT32_LE.size if flags & _LZ4_BLOCK_CHECKSUMS else 0)
