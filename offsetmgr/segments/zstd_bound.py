"""Computes an upper bound of the decompressed size of zstd data from its block headers, without decompressing it.

Source: RFC 8878, section 3.
"""

from __future__ import annotations

import struct
from typing import Final

_FRAME: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A50
"""The first of the sixteen magic numbers of skippable frames."""
_MAX_BLOCK_BYTES: Final = 128 * 1024
_RAW, _REPEATED, _COMPRESSED = range(3)
_UINT32: Final = struct.Struct("<I")
_DICTIONARY_ID: Final = (0, 1, 2, 4)
_CONTENT_SIZE: Final = (0, 2, 4, 8)


def max_decompressed_size(data: bytes) -> int:
    """Returns an upper bound of the decompressed size of zstd frames in bytes.

    Raw and repeated blocks count with their exact size, and compressed blocks with the maximum size of a block. Raises
    `ValueError` for data that is not a sequence of complete zstd frames.
    """
    total = at = 0
    try:
        while at < len(data):
            (magic,) = _UINT32.unpack_from(data, at)
            at += _UINT32.size
            if magic & 0xFFFFFFF0 == _SKIPPABLE:
                at += _UINT32.size + _UINT32.unpack_from(data, at)[0]
            elif magic == _FRAME:
                size, at = _frame(data, at)
                total += size
            else:
                raise ValueError("it contains data that is not a zstd frame")
    except (struct.error, IndexError) as error:
        raise ValueError("a zstd frame is incomplete") from error
    if at > len(data):
        raise ValueError("a zstd frame is incomplete")
    return total


def _frame(data: bytes, at: int) -> tuple[int, int]:
    """Returns the upper bound for one frame, and the position after the frame. ``at`` is the position after the frame's
    magic number."""
    descriptor = data[at]
    single_segment = descriptor >> 5 & 1
    content_size = _CONTENT_SIZE[descriptor >> 6] or single_segment
    at += 1 + (1 - single_segment) + _DICTIONARY_ID[descriptor & 3] + content_size
    total = 0
    last = False
    while not last:
        header = int.from_bytes(data[at : at + 3], "little") if at + 3 <= len(data) else data[len(data)]
        at += 3
        last = bool(header & 1)
        kind, size = header >> 1 & 3, header >> 3
        if kind > _COMPRESSED:
            raise ValueError("a zstd block has an unknown type")
        total += _MAX_BLOCK_BYTES if kind == _COMPRESSED else size
        at += 1 if kind == _REPEATED else size
    return total, at + (_UINT32.size if descriptor & 4 else 0)
