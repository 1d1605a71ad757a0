"""Messages decoded from the bytes of a log: the three formats byte by byte, every codec, and damaged bytes."""

from __future__ import annotations

import gzip
import os
import random
import struct
import zlib
from collections.abc import Callable

import cramjam
import pytest
from crc32c import crc32c

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.segments.batch_reader import Record, batches, starts_with_complete_batch
from offsetmgr.segments.compression import decompress

TIME = 1_700_000_000_000
MUTATIONS = 100_000 if os.environ.get("OFFSETMGR_SOAK") else 5_000
SEED = int(os.environ.get("OFFSETMGR_SEED", "5"))


# --- the formats, written a second time, from the specification -----------------------------------


def octets(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(magic: int, offset: int, key: bytes | None, value: bytes | None, *, attributes: int = 0) -> bytes:
    """Format 0 (offset, size, CRC-32, magic, attributes, key, value), or 1, with a timestamp before the key."""
    time = struct.pack(">q", TIME + offset) if magic else b""
    body = struct.pack(">bB", magic, attributes) + time + octets(key) + octets(value)
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def zigzag(number: int) -> bytes:
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def record(delta: int, key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes | None]]) -> bytes:
    body = b"\0" + zigzag(delta * 10) + zigzag(delta) + field(key) + field(value) + zigzag(len(headers))
    body += b"".join(field(name) + field(content) for name, content in headers)
    return zigzag(len(body)) + body


def batch(
    base: int,
    records: list[bytes],
    *,
    attributes: int = 0,
    last_delta: int | None = None,
    compress: Callable[[bytes], bytes] = bytes,
    count: int | None = None,
) -> bytes:
    """Format 2. The CRC-32C covers the bytes after it."""
    delta = len(records) - 1 if last_delta is None else last_delta
    number = len(records) if count is None else count
    tail = struct.pack(">hiqqqhii", attributes, delta, TIME, TIME + 999, -1, -1, -1, number)
    tail += compress(b"".join(records))
    body = struct.pack(">ibI", 0, 2, crc32c(tail)) + tail
    return struct.pack(">qi", base, len(body)) + body


def lz4(data: bytes) -> bytes:
    """One frame of independent blocks, as Kafka writes it. The header's checksum is wrong, as in format 0."""
    blocks = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    out = struct.pack("<I", 0x184D2204) + bytes((0x60, 0x40, 0xEE))
    for block in blocks[:-1]:
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        out += struct.pack("<I", len(packed)) + packed
    out += struct.pack("<I", len(blocks[-1]) | 0x80000000) + blocks[-1]  # the last block is not compressed
    return out + struct.pack("<I", 0)


def java_snappy(data: bytes) -> bytes:
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), 1000):
        packed = bytes(cramjam.snappy.compress_raw(data[at : at + 1000]))
        out += struct.pack(">i", len(packed)) + packed
    return out


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy in Java's chunks": (2, java_snappy),
    "lz4": (3, lz4),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


def records_of(data: bytes) -> list[Record]:
    return [record for found in batches(data) for record in found.records]


# --- one test per rule ----------------------------------------------------------------------------


def test_format_0_has_no_time() -> None:
    data = message(0, 7, b"k", b"v") + message(0, 8, None, b"w") + message(0, 9, b"gone", None)

    assert records_of(data) == [
        Record(7, None, b"k", b"v"),
        Record(8, None, None, b"w"),
        Record(9, None, b"gone", None),
    ]
    assert [(b.base_offset, b.last_offset, b.magic) for b in batches(data)] == [(7, 7, 0), (8, 8, 0), (9, 9, 0)]


def test_format_1_has_a_time_and_its_type() -> None:
    data = message(1, 7, b"k", b"v") + message(1, 8, None, b"w", attributes=0x08)

    assert records_of(data) == [
        Record(7, TIME + 7, b"k", b"v"),
        Record(8, TIME + 8, None, b"w", log_append_time=True),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_messages_of_format_0_carry_their_own_offsets(codec: str) -> None:
    number, compress = CODECS[codec]
    inner = message(0, 5, b"a", b"1" * 3000) + message(0, 9, b"b", b"2")

    (found,) = batches(message(0, 9, None, compress(inner), attributes=number))

    assert found.records == [Record(5, None, b"a", b"1" * 3000), Record(9, None, b"b", b"2")]
    assert (found.base_offset, found.last_offset, found.codec) == (5, 9, number)


def test_compressed_messages_of_format_1_are_counted_back_from_the_outer_offset() -> None:
    inner = message(1, 0, b"a", b"1") + message(1, 2, b"b", b"2")  # compaction removed the message between

    (found,) = batches(message(1, 12, None, gzip.compress(inner), attributes=1))

    assert found.records == [Record(10, TIME, b"a", b"1"), Record(12, TIME + 2, b"b", b"2")]


def test_the_append_time_of_the_outer_message_applies_to_all_inner_ones() -> None:
    inner = message(1, 0, b"a", b"1") + message(1, 1, b"b", b"2")

    (found,) = batches(message(1, 12, None, gzip.compress(inner), attributes=1 | 0x08))

    assert [(r.offset, r.timestamp, r.log_append_time) for r in found.records] == [
        (11, TIME + 12, True),
        (12, TIME + 12, True),
    ]


def test_format_2_has_headers_and_deltas() -> None:
    data = batch(100, [record(0, b"k", b"v", []), record(3, None, None, [(b"h", b"1"), (b"h", None)])], last_delta=5)

    (found,) = batches(data)

    assert found.records == [
        Record(100, TIME, b"k", b"v"),
        Record(103, TIME + 30, None, None, (("h", b"1"), ("h", None))),
    ]
    assert (found.base_offset, found.last_offset, found.control, found.transactional) == (100, 105, False, False)


@pytest.mark.parametrize("codec", CODECS)
def test_format_2_under_every_codec(codec: str) -> None:
    number, compress = CODECS[codec]
    written = [record(n, b"k%d" % n, b"value " * 50, []) for n in range(500)]

    (found,) = batches(batch(10, written, attributes=number, compress=compress))

    assert found.codec == number
    assert found.records == [Record(10 + n, TIME + 10 * n, b"k%d" % n, b"value " * 50) for n in range(500)]


def test_the_end_of_a_transaction_is_no_message() -> None:
    (found,) = batches(batch(4, [record(0, b"\0\0\0\1", b"\0\0\0\0\0\0", [])], attributes=0x30))

    assert (found.control, found.transactional, found.records, found.last_offset) == (True, True, [], 4)


def test_a_batch_with_append_time_has_the_brokers_time() -> None:
    (found,) = batches(batch(4, [record(0, b"a", b"1", []), record(1, b"b", b"2", [])], attributes=0x08))

    assert [(r.timestamp, r.log_append_time) for r in found.records] == [(TIME + 999, True)] * 2


def test_a_batch_emptied_by_compaction_keeps_its_last_offset() -> None:
    (found,) = batches(batch(4, [], last_delta=9))

    assert (found.records, found.base_offset, found.last_offset) == ([], 4, 13)


def test_records_from_an_offset_on() -> None:
    written = [record(n, b"k%d" % n, b"v", []) for n in range(5)]
    inner = b"".join(message(1, n, b"k%d" % n, b"v") for n in range(5))
    for data in (
        batch(10, written),
        batch(10, written, attributes=1, compress=gzip.compress),
        message(1, 14, None, gzip.compress(inner), attributes=1),
        b"".join(message(1, 10 + n, b"k%d" % n, b"v") for n in range(5)),
    ):
        for first in range(9, 17):
            found = list(batches(data, first))
            assert [r.offset for b in found for r in b.records] == [n for n in range(10, 15) if n >= first]
            assert (found[0].base_offset, found[-1].last_offset) == (10, 14)


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 40, 60])
def test_an_incomplete_batch_at_the_end_is_left_out(cut: int) -> None:
    first, second = message(1, 0, b"k", b"v"), batch(1, [record(0, b"k", b"v", [])])

    assert records_of(first + second[:cut]) == [Record(0, TIME, b"k", b"v")]
    assert not starts_with_complete_batch(second[:cut])
    assert starts_with_complete_batch(second)


@pytest.mark.parametrize("codec", [0, 1])
def test_a_flipped_bit_anywhere_under_the_checksum_is_found(codec: int) -> None:
    compress = gzip.compress if codec else bytes
    for data, start in (
        (message(1, 3, b"key", compress(message(1, 0, b"a", b"1")) if codec else b"1", attributes=codec), 12),
        (batch(3, [record(0, b"key", b"value", [])], attributes=codec, compress=compress), 21),
    ):
        for at in range(start, len(data)):
            for bit in range(8):
                damaged = bytearray(data)
                damaged[at] ^= 1 << bit
                with pytest.raises((CorruptData, UnknownVersion)):
                    records_of(bytes(damaged))


def test_batches_before_the_damage_are_read() -> None:
    good, bad = batch(0, [record(0, b"k", b"v", [])]), bytearray(batch(1, [record(0, b"k", b"v", [])]))
    bad[-1] ^= 1
    found = batches(good + bytes(bad))

    assert next(found).records == [Record(0, TIME, b"k", b"v")]
    with pytest.raises(CorruptData, match="batch at offset 1: its checksum does not match its content"):
        next(found)


def test_a_format_and_a_codec_of_the_future_are_named() -> None:
    data = bytearray(message(1, 3, b"k", b"v"))
    data[16] = 3
    with pytest.raises(UnknownVersion, match="message format 3 is not known"):
        records_of(bytes(data))
    with pytest.raises(UnknownVersion, match="compression codec 5 is not known"):
        records_of(batch(3, [record(0, b"k", b"v", [])], attributes=5))


def test_negative_offsets_are_an_error_and_not_left_out() -> None:
    inner = b"".join(message(1, n, b"k", b"v") for n in range(5))
    for data in (
        message(0, -1, b"k", b"v"),
        message(1, 3, None, gzip.compress(inner), attributes=1),  # the first offset would be -1
        batch(-(2**63), [record(0, b"k", b"v", [])]),
    ):
        with pytest.raises(CorruptData, match=r"negative|would have offset -1"):
            records_of(data)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_records_is_found(count: int) -> None:
    written = [record(0, b"a", b"1", []), record(1, b"b", b"2", [])]

    with pytest.raises(CorruptData):
        records_of(batch(3, written, count=count))


def test_lz4_blocks_that_depend_on_each_other_are_rejected_as_by_kafka() -> None:
    linked = bytes(cramjam.lz4.compress(b"x" * 200_000))

    with pytest.raises(CorruptData, match="depend on each other"):
        decompress(3, linked, "batch at offset 0")


def test_mutated_bytes_give_records_or_typed_errors() -> None:
    """The test corrects the checksum after each mutation, so that the decoder reads the mutated fields."""
    chance = random.Random(SEED)
    inner = message(1, 0, b"a", b"1" * 50) + message(1, 1, b"b", b"2")
    seeds = [
        message(0, 3, b"key", b"value"),
        message(1, 3, None, gzip.compress(inner), attributes=1),
        *(message(1, 3, None, compress(inner), attributes=number) for number, compress in CODECS.values()),
        *(
            batch(3, [record(n, b"k", b"v" * 30, [(b"h", b"1")]) for n in range(3)], attributes=n, compress=compress)
            for n, compress in [(0, bytes), *CODECS.values()]
        ),
    ]
    outcomes = {"records": 0, "refused": 0}
    for _ in range(MUTATIONS):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(12, len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        if data[16] == 2:
            data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
        else:
            data[12:16] = struct.pack(">I", zlib.crc32(bytes(data[16:])))
        try:
            records_of(bytes(data))
            outcomes["records"] += 1
        except OffsetMgrError as error:
            assert isinstance(error, CorruptData | UnknownVersion), f"seed {SEED}: {data.hex()}"
            outcomes["refused"] += 1
    assert min(outcomes.values()) > MUTATIONS // 20
