"""Compresses batches and messages as Kafka's Java producers and brokers do. `compression` is the opposite direction.

Source: org.apache.kafka.common.compress; KAFKA-3160 for LZ4 in format 0.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import cramjam

from offsetmgr.core.errors import UnknownVersion
from offsetmgr.segments.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

_GZIP_WINDOW: Final = 31
_SNAPPY_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_CHUNK: Final = 32 * 1024
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_UNCOMPRESSED: Final = 0x80000000
_LZ4_START: Final = b"\x04\x22\x4d\x18\x60\x40"
"""The magic number, then the flags (version 1, independent blocks, no checksums) and the block size (64 KiB)."""
_LZ4_CHECKSUM: Final = b"\x82"
"""The second byte of xxHash-32 of the two bytes before it."""
_LZ4_BROKEN_CHECKSUM: Final = b"\x1a"
"""The header checksum in format 0. Kafka computes it over the magic number as well, against the LZ4 specification, and
accepts no other checksum in that format (KAFKA-3160)."""
_ZSTD_LEVEL: Final = 3
_UINT32_LE: Final = struct.Struct("<I")
_INT32: Final = struct.Struct(">i")


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """Returns ``data`` compressed for a batch or message of format ``magic``. Raises `UnknownVersion` for an unknown
    codec, and for zstd before format 2 (KIP-110)."""
    if codec == NONE:
        return data
    if codec == GZIP:
        stream = zlib.compressobj(wbits=_GZIP_WINDOW)
        return stream.compress(data) + stream.flush()
    if codec == SNAPPY:
        return _snappy(data)
    if codec == LZ4:
        return _lz4(data, _LZ4_BROKEN_CHECKSUM if magic == 0 else _LZ4_CHECKSUM)
    if codec == ZSTD and magic >= 2:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
    raise UnknownVersion("compression", f"codec {codec} is not known in message format {magic}")


def _snappy(data: bytes) -> bytes:
    out = bytearray(_SNAPPY_HEADER)
    for at in range(0, len(data), _SNAPPY_CHUNK):
        packed = bytes(cramjam.snappy.compress_raw(data[at : at + _SNAPPY_CHUNK]))
        out += _INT32.pack(len(packed)) + packed
    return bytes(out)


def _lz4(data: bytes, checksum: bytes) -> bytes:
    out = bytearray(_LZ4_START + checksum)
    for at in range(0, len(data), _LZ4_BLOCK):
        block = data[at : at + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += _UINT32_LE.pack(len(packed)) + packed
        else:
            out += _UINT32_LE.pack(len(block) | _LZ4_UNCOMPRESSED) + block
    return bytes(out + _UINT32_LE.pack(0))
