"""Collects the newest value of each key from batches, for the load of a compacted topic.

Decoding one record at a time in Python would take most of a load. Records that follow one another mostly have the same
*layout*: keys of the same length, values of the same length, and numbers of the same size. Such a run of records is
decoded with two calls of C functions: a regular expression finds the end of the run, and `struct` splits the run into
keys and values. Records whose layout is rare are decoded one at a time.

Source: org.apache.kafka.common.record.DefaultRecord.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, MutableMapping
from itertools import repeat
from typing import Any, Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.varint import decode_varint
from offsetmgr.segments.batch_reader import bytes_field, signed_varint
from offsetmgr.segments.compression import decompress
from offsetmgr.segments.raw_batches import RECORDS_FROM, DamagedBatch, RawBatch, records_of

NO_KEY: Final = b""
"""Replaces a missing key."""

_MAX_VARINT_BYTES: Final = 10
_MAX_RUN: Final = 1000
"""The maximum number of records that one call of a C function decodes. Other threads wait during such a call."""
_MIN_OCCURRENCES: Final = 8
"""The number of times that a layout must occur before a regular expression is compiled for it, which takes as long as
decoding a few hundred records one at a time."""
_MAX_LAYOUTS: Final = 4096

NewestValues = MutableMapping[bytes, bytes | None]


class _Layout(NamedTuple):
    """Decodes records of one layout."""

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    """Matches as many records of the layout as follow one another."""
    unpack: Callable[[memoryview], Iterator[tuple[Any, ...]]]
    """Yields the key and the value of each record; only the key if the layout has no values (tombstones)."""
    size: int
    has_value: bool


_LayoutKey = tuple[bytes, int, int, int, int]
"""The encoded size of the record, the sizes of its two numbers, the size of its key, and the first byte of the encoded
size of its value. These fields determine the position of every field."""

_layouts: dict[_LayoutKey, _Layout | int] = {}
"""The decoder of each common layout; for other layouts the number of times that they occurred. Only a cache: threads
may overwrite each other's entries."""


def collect_newest(newest: NewestValues, data: bytes, batch: RawBatch, first: int = 0) -> None:
    """Stores the value of each record of a batch from offset ``first`` on in ``newest``, in log order; None for a
    tombstone. A record without a key is stored under `NO_KEY`.

    Raises `DamagedBatch` if the records are invalid; ``newest`` may then contain some of them.
    """
    if batch.magic < 2 or batch.base_offset < first:
        newest.update((record.key or NO_KEY, record.value) for record in records_of(data, batch, first))
        return
    try:
        if batch.codec:
            packed = data[batch.start + RECORDS_FROM : batch.end]
            body = decompress(batch.codec, packed, f"batch at offset {batch.base_offset}")
            found = _collect(newest, body, 0, len(body))
        else:
            found = _collect(newest, data, batch.start + RECORDS_FROM, batch.end)
    except (IndexError, ValueError) as error:
        raise DamagedBatch(batch.base_offset, f"it breaks Kafka's format: {error}") from error
    except CorruptData as error:
        raise DamagedBatch(batch.base_offset, error.why) from error
    if found != batch.record_count:
        raise DamagedBatch(batch.base_offset, f"it has {found} records, and its header counts {batch.record_count}")


def _collect(newest: NewestValues, body: bytes, at: int, end: int) -> int:
    """Decodes the records between two positions. Returns their number. Raises IndexError and ValueError."""
    view = memoryview(body)
    update, layouts = newest.update, _layouts
    count = 0
    while at < end:
        size_end = at + 1 if body[at] < 0x80 else at + 2
        time_end = size_end + 2  # one byte of attributes
        while body[time_end - 1] >= 0x80:
            time_end += 1
        key_size_at = time_end + 1
        while body[key_size_at - 1] >= 0x80:
            key_size_at += 1
        byte = body[key_size_at]
        if byte < 0x80:
            key_size, key_at = byte >> 1, key_size_at + 1
        else:
            encoded, key_at = decode_varint(body, key_size_at, _MAX_VARINT_BYTES)
            key_size = encoded >> 1
        value_size_at = key_at + key_size
        layout_key = (
            body[at:size_end],
            time_end - size_end,
            key_size_at - time_end,
            key_size,
            body[value_size_at] if value_size_at < end else 0,
        )
        layout = layouts.get(layout_key, 0)
        if type(layout) is _Layout:
            matched = layout.match(body, at, end)
            if matched is not None:
                run_end = matched.end()
                values = layout.unpack(view[at:run_end])
                update(values if layout.has_value else zip((key for (key,) in values), repeat(None), strict=False))
                count += (run_end - at) // layout.size
                at = run_end
                continue
        else:
            _count_layout(layout_key, layout, body, at, end)
        key, value, at = _record(body, at, end)
        newest[key] = value
        count += 1
    return count


def _count_layout(layout_key: _LayoutKey, seen: int | _Layout, body: bytes, at: int, end: int) -> None:
    """Counts a layout without a decoder, and creates the decoder once the layout is common."""
    if not isinstance(seen, int):
        return
    if seen >= _MIN_OCCURRENCES and (layout := _layout_of(body, at, end)) is not None:
        _layouts[layout_key] = layout
        return
    if len(_layouts) >= _MAX_LAYOUTS:
        _layouts.clear()
    _layouts[layout_key] = seen + 1


def _layout_of(body: bytes, at: int, end: int) -> _Layout | None:
    """Returns the layout of the record at ``at``; None for a record that only `_record` can decode."""
    size, body_at = signed_varint(body, at)
    _, offset_at = signed_varint(body, body_at + 1)
    _, key_size_at = signed_varint(body, offset_at)
    key_size, key_at = signed_varint(body, key_size_at)
    value_size, value_at = signed_varint(body, key_at + key_size)
    value_end = value_at + max(value_size, 0)
    record_end = body_at + size
    if key_size < 0 or value_size < -1 or record_end > end or value_end + 1 != record_end or body[value_end] != 0:
        return None
    number = rb"[\x80-\xff]{%d}[\x00-\x7f]"
    pattern = b"".join(
        (
            rb"(?s:",
            re.escape(body[at:body_at]),
            rb".",
            number % (offset_at - body_at - 2),
            number % (key_size_at - offset_at - 1),
            re.escape(body[key_size_at:key_at]),
            rb".{%d}" % key_size,
            re.escape(body[key_at + key_size : value_at]),
            rb".{%d}\x00){1,%d}" % (max(value_size, 0), _MAX_RUN),  # possessive (+) is wrong before Python 3.11.5
        )
    )
    before, between = key_at - at, value_at - key_at - key_size
    has_value = value_size >= 0
    fields = f"{before}x{key_size}s{between}x" + (f"{value_size}sx" if has_value else "x")
    unpack = struct.Struct(fields).iter_unpack
    return _Layout(re.compile(pattern).match, unpack, record_end - at, has_value)


def _record(body: bytes, at: int, end: int) -> tuple[bytes, bytes | None, int]:
    """Returns the key and the value of the record at ``at``, and the position after it. Skips the headers."""
    size, at = signed_varint(body, at)
    record_end = at + size
    if size < 0 or record_end > end:
        raise ValueError(f"a record of {size} bytes does not fit in it")
    _, at = signed_varint(body, at + 1)
    _, at = signed_varint(body, at)
    key, at = bytes_field(body, at)
    value, at = bytes_field(body, at)
    headers, at = signed_varint(body, at)
    if at > record_end or (not headers and at != record_end):
        raise ValueError("the size of a record in it does not match its content")
    return key if key is not None else NO_KEY, value, record_end
