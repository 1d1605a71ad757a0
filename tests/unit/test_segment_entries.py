"""The entries of a log file, read in chunks of any size, with any bytes at the end of the file."""

from __future__ import annotations

import gzip
import io
import struct
import zlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, LimitExceeded, UnknownVersion
from offsetmgr.segments.entries import EntryReader, LogEntry, split

TIME = 1_700_000_000_000


def old_message(magic: int, offset: int, value: bytes, attributes: int = 0) -> bytes:
    time = struct.pack(">q", TIME) if magic else b""
    body = struct.pack(">bB", magic, attributes) + time + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def batch(base: int, size: int, attributes: int = 0) -> bytes:
    """A batch with one value of ``size`` bytes, encoded by the specification; below 58 bytes a varint has one byte."""
    value = b"x" * size
    record = bytes((2 * (6 + size), 0, 0, 0, 1, 2 * size)) + value + b"\0"
    tail = struct.pack(">hiqqqhii", attributes, 0, TIME, TIME + 5, 9, 3, 17, 1) + record
    body = struct.pack(">ibI", 4, 2, crc32c(tail)) + tail
    return struct.pack(">qi", base, len(body)) + body


MIXED = [
    old_message(0, 5, b"zero"),
    old_message(1, 6, b"one"),
    old_message(1, 9, gzip.compress(old_message(1, 0, b"a") + old_message(1, 2, b"b"), mtime=0), 1),
    batch(10, 3),
    batch(11, 50),
]


def walk(data: bytes, **options: int) -> EntryReader:
    return EntryReader(io.BytesIO(data), "a file", **options)


@given(
    st.lists(st.integers(0, 50), max_size=20),
    st.integers(1, 400),
    st.integers(0, 60),
)
def test_the_entries_do_not_depend_on_the_chunk_size(sizes: list[int], chunk: int, cut: int) -> None:
    whole = [batch(base, size) for base, size in enumerate(sizes)]
    tail = batch(99, 40)[:cut]
    data = b"".join(whole) + tail

    entries = walk(data, chunk=chunk)
    found = list(entries)

    assert [entry.data for entry in found] == whole
    assert [entry.offset for entry in found] == list(range(len(whole)))
    assert [entry.position for entry in found] == [sum(map(len, whole[:number])) for number in range(len(whole))]
    assert (entries.position, entries.incomplete_bytes) == (len(data) - cut, cut)
    assert b"".join(piece.data for piece in walk(data, chunk=chunk).chunks()) == b"".join(whole)
    assert list(split(data)) == found


def test_entries_of_all_formats_can_be_mixed() -> None:
    found = list(walk(b"".join(MIXED)))

    assert [(entry.offset, entry.magic, entry.intact()) for entry in found] == [
        (5, 0, True),
        (6, 1, True),
        (9, 1, True),
        (10, 2, True),
        (11, 2, True),
    ]
    assert [[(record.offset, record.value) for record in entry.batch().records] for entry in found] == [
        [(5, b"zero")],
        [(6, b"one")],
        [(7, b"a"), (9, b"b")],
        [(10, b"xxx")],
        [(11, b"x" * 50)],
    ]


def test_a_header_is_decoded_without_the_records() -> None:
    zero, one, packed, two, _ = (entry.header() for entry in walk(b"".join(MIXED)))

    assert (zero.base_offset, zero.last_offset, zero.largest_timestamp, zero.record_count) == (5, 5, None, 1)
    assert (one.base_offset, one.last_offset, one.largest_timestamp, one.producer_id) == (6, 6, TIME, None)
    assert (packed.base_offset, packed.last_offset, packed.codec, packed.record_count) == (None, 9, 1, None)
    assert (two.base_offset, two.last_offset, two.base_timestamp, two.largest_timestamp) == (10, 10, TIME, TIME + 5)
    assert (two.leader_epoch, two.producer_id, two.producer_epoch, two.base_sequence) == (4, 9, 3, 17)
    assert (two.transactional, two.control, two.delete_horizon, two.log_append_time) == (False, False, False, False)
    flags = next(iter(walk(batch(1, 1, 0x78)))).header()
    assert (flags.transactional, flags.control, flags.delete_horizon, flags.log_append_time) == (True, True, True, True)


@pytest.mark.parametrize("data", MIXED, ids=["zero", "one", "packed", "two", "last"])
def test_a_flipped_bit_that_the_checksum_covers_is_damage(data: bytes) -> None:
    """The checksum covers formats 0 and 1 from the magic byte on, and format 2 from the attributes on."""
    first = 21 if data[16] == 2 else 17  # another magic byte is another format, with a checksum elsewhere
    for at in range(first, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert not LogEntry(0, 0, bytes(damaged)).intact()
    for at in range(8):  # the broker sets the offset, and no checksum covers it
        moved = bytearray(data)
        moved[at] ^= 1
        assert LogEntry(0, 0, bytes(moved)).intact()


def test_an_entry_over_the_limit_is_rejected_before_it_is_read() -> None:
    data = batch(1, 10) + batch(2, 50)
    entries = walk(data, chunk=16, max_entry_bytes=100)
    found = []

    with pytest.raises(
        LimitExceeded, match=r"a file, position 78: the entry has 118 bytes, more than the maximum of 100"
    ):
        found.extend(entries)

    assert [entry.offset for entry in found] == [1]
    assert entries.position == 78


@pytest.mark.parametrize("size", [-1, 0, 13, -(2**31)])
def test_an_invalid_size_is_damage_and_names_its_position(size: int) -> None:
    good = batch(1, 10)
    entries = walk(good + struct.pack(">qi", 7, size) + bytes(100))
    found = []

    with pytest.raises(
        CorruptData, match=f"a file, position 78: the entry at offset 7 has an invalid size: {size} bytes"
    ):
        for entry in entries:
            found.append(entry.offset)

    assert (found, entries.position) == ([1], 78)


def test_a_file_can_be_read_from_the_beginning_of_any_entry_to_the_end_of_another() -> None:
    data = b"".join(MIXED)
    start, end = len(MIXED[0]), len(data) - len(MIXED[-1])

    assert [entry.offset for entry in walk(data, position=start, end=end, chunk=20)] == [6, 9, 10]
    assert [entry.offset for entry in walk(data, position=start, end=end + 5, chunk=20)] == [6, 9, 10]


def test_an_unknown_format_is_named() -> None:
    data = bytearray(batch(3, 4))
    data[16] = 3

    (entry,) = walk(bytes(data))

    with pytest.raises(UnknownVersion, match="batch at offset 3: message format 3 is not known"):
        entry.header()
