"""Decompresses and compresses batches, for all of Kafka's codecs.

`decompress` limits the size of its result and does not rely on the sizes that the compressed data contain, because a
few kilobytes can expand to gigabytes. `compress` writes the same formats as Kafka's Java producers and brokers.

Source: org.apache.kafka.common.compress; the codec is the lowest three bits of a batch's attributes. KAFKA-3160 for LZ4
in format 0.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import cramjam

from offsetmgr.core.errors import CorruptData, LimitExceeded, UnknownVersion

CODEC: Final = 0x07
"""The mask for the codec in a batch's attributes."""

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024
"""Default maximum of the decompressed bytes of a batch. Brokers accept batches of 1 MiB by default."""

_GZIP_WINDOW: Final = 31
"""zlib's code for the largest window, with gzip's header and checksum."""
_GZIP_PIECE: Final = 16 * 1024
"""Number of compressed bytes that are passed to zlib at once."""
_SNAPPY_RATIO: Final = 32
"""Upper bound of snappy's compression ratio: three bytes can encode 64 bytes, which is a ratio of 21.3."""

_XERIAL: Final = b"\x82SNAPPY\x00"
"""The magic bytes of Java producers' snappy format. Two version numbers of four bytes follow, and then chunks. The
length of each chunk precedes the chunk."""
_XERIAL_HEADER_BYTES: Final = 16
INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct("<I")

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_UNCOMPRESSED: Final = 0x80000000

_SNAPPY_HEADER: Final = _XERIAL + struct.pack(">ii", 1, 1)
_SNAPPY_CHUNK: Final = 32 * 1024
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_START: Final = b"\x04\x22\x4d\x18\x60\x40"
"""The magic number, then the flags (version 1, independent blocks, no checksums) and the block size (64 KiB)."""
_LZ4_CHECKSUM: Final = b"\x82"
"""The header checksum in formats 1 and 2: the second byte of the xxHash-32 of the flags and the block size."""
_LZ4_BROKEN_CHECKSUM: Final = b"\x1a"
"""The header checksum in format 0. Contrary to the LZ4 specification, Kafka includes the magic number in this checksum,
and accepts no other checksum in format 0 (KAFKA-3160)."""
_ZSTD_LEVEL: Final = 3
_ZSTD_RATIO: Final = 8
"""The buffer for zstd data is this many times as large as the data. If it is too small, it grows by this factor."""
_ZSTD_MIN_BYTES: Final = 128 * 1024


def decompress(codec: int, data: bytes, what: str, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Returns the decompressed ``data``; ``what`` names the batch in errors.

    Raises `CorruptData` for invalid data, `LimitExceeded` if the result would exceed ``limit`` bytes, and
    `UnknownVersion` for an unknown codec.
    """
    if codec == NONE:
        return data
    if (decoder := _DECODERS.get(codec)) is None:
        raise UnknownVersion(what, f"compression codec {codec} is not known")
    try:
        return decoder(data, what, limit)
    except (cramjam.DecompressionError, zlib.error, struct.error, IndexError, ValueError) as error:
        raise CorruptData(what, f"it cannot be decompressed: {error}") from error


def _over(what: str, limit: int) -> LimitExceeded:
    return LimitExceeded(
        what,
        f"it decompresses to more than {limit:,} bytes",
        "raise the limit if the producer's batches are that large",
    )


def _gunzip(data: bytes, what: str, limit: int) -> bytes:
    """Decompresses all members of a gzip stream; zeros may follow each member.

    Passes the data to zlib in small pieces, because zlib copies the rest of its input at the end of each member, and a
    stream may have many members.
    """
    parts: list[bytes] = []
    remaining = limit
    at = 0
    if not data:
        raise ValueError("the gzip data is empty")
    while at < len(data):
        stream = zlib.decompressobj(_GZIP_WINDOW)
        while not stream.eof:
            piece = data[at : at + _GZIP_PIECE]
            if not piece:
                raise ValueError("the data ends within a gzip stream")
            at += len(piece)
            part = stream.decompress(piece, remaining + 1)
            if len(part) > remaining:
                raise _over(what, limit)
            if part:
                parts.append(part)
                remaining -= len(part)
        at -= len(stream.unused_data)
        while piece := data[at : at + _GZIP_PIECE]:
            zeros = len(piece) - len(piece.lstrip(b"\0"))
            at += zeros
            if zeros < len(piece):
                break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy(data: bytes, what: str, limit: int) -> bytes:
    """Decompresses the chunks of Java's producers, or one raw block as librdkafka writes it."""
    if not data.startswith(_XERIAL):
        return _snappy_piece(data, what, limit, limit)
    out = bytearray()
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = INT32.unpack_from(data, at)
        at += INT32.size
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a chunk of {size} bytes does not fit in it")
        out += _snappy_piece(data[at : at + size], what, limit - len(out), limit)
        at += size
    return bytes(out)


def _snappy_piece(data: bytes, what: str, remaining: int, limit: int) -> bytes:
    """Decompresses one raw snappy block. ``remaining`` is the unused part of ``limit`` in bytes."""
    size = cramjam.snappy.decompress_raw_len(data)
    if size > remaining:
        raise _over(what, limit)
    if size > _SNAPPY_RATIO * len(data):
        raise ValueError(f"{len(data)} bytes of snappy data cannot expand to {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _zstd(data: bytes, what: str, limit: int) -> bytes:
    size = min(limit, max(_ZSTD_RATIO * len(data), _ZSTD_MIN_BYTES))
    while True:
        out = bytearray(size)
        try:
            written = cramjam.zstd.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if size == limit:
                raise _over(what, limit) from error
            size = min(limit, size * _ZSTD_RATIO)
        else:
            return bytes(memoryview(out)[:written])


def _lz4(data: bytes, what: str, limit: int) -> bytes:
    """Decompresses LZ4 frames.

    Parses the frames and ignores the checksum in their headers: in messages of format 0 this header checksum is wrong
    (KAFKA-3160), and every batch has a checksum of its own.
    """
    out = bytearray()
    at = 0
    while at < len(data):
        (magic,) = _UINT32.unpack_from(data, at)
        if magic != _LZ4_MAGIC:
            raise ValueError("no LZ4 frame begins here")
        at = _lz4_frame(data, at + _UINT32.size, out, what, limit)
    return bytes(out)


def _lz4_frame(data: bytes, at: int, out: bytearray, what: str, limit: int) -> int:
    """Appends one frame's content to ``out`` and returns the frame's end."""
    flags, descriptor = data[at], data[at + 1]
    if not flags & _LZ4_INDEPENDENT:
        raise CorruptData(what, "its LZ4 blocks depend on each other, which Kafka does not allow")
    block_buffer = bytearray(1 << (8 + 2 * (descriptor >> 4 & 0x07)))
    at += 3 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while True:
        (size,) = _UINT32.unpack_from(data, at)
        at += _UINT32.size
        if size == 0:
            return at + (_UINT32.size if flags & 0x04 else 0)
        stored = bool(size & _LZ4_UNCOMPRESSED)
        size &= ~_LZ4_UNCOMPRESSED
        if size > len(data) - at:
            raise ValueError(f"a block has {size} bytes, but its frame ends earlier")
        block = data[at : at + size]
        if stored:
            out += block
        else:
            written = cramjam.lz4.decompress_block_into(block, block_buffer, output_len=len(block_buffer))
            out += memoryview(block_buffer)[:written]
        if len(out) > limit:  # by one block at most
            raise _over(what, limit)
        at += size + (_UINT32.size if flags & _LZ4_BLOCK_CHECKSUMS else 0)


# --- compression --------------------------------------------------------------------------------------


_DECODERS: Final = {GZIP: _gunzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """Returns ``data`` compressed for a batch or message of format ``magic``. Raises `UnknownVersion` for an unknown
    codec, and for zstd before format 2 (KIP-110)."""
    if codec == NONE:
        return data
    if codec == GZIP:
        stream = zlib.compressobj(wbits=_GZIP_WINDOW)
        return stream.compress(data) + stream.flush()
    if codec == SNAPPY:
        out = bytearray(_SNAPPY_HEADER)
        for at in range(0, len(data), _SNAPPY_CHUNK):
            packed = bytes(cramjam.snappy.compress_raw(data[at : at + _SNAPPY_CHUNK]))
            out += INT32.pack(len(packed)) + packed
        return bytes(out)
    if codec == LZ4:
        return _compress_lz4(data, _LZ4_BROKEN_CHECKSUM if magic == 0 else _LZ4_CHECKSUM)
    if codec == ZSTD and magic >= 2:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
    raise UnknownVersion("compression", f"codec {codec} is not known in message format {magic}")


def _compress_lz4(data: bytes, checksum: bytes) -> bytes:
    out = bytearray(_LZ4_START + checksum)
    for at in range(0, len(data), _LZ4_BLOCK):
        block = data[at : at + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += _UINT32.pack(len(packed)) + packed
        else:
            out += _UINT32.pack(len(block) | _LZ4_UNCOMPRESSED) + block
    return bytes(out + _UINT32.pack(0))
