"""`collect_newest` finds the same values as `batch_reader`, which decodes one record at a time."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.core.errors import UnknownVersion
from offsetmgr.segments.batch_builder import Producer, batch, message, message_set
from offsetmgr.segments.batch_reader import Record, batches
from offsetmgr.segments.compression import GZIP
from offsetmgr.segments.newest_values import NO_KEY, NewestValues, collect_newest
from offsetmgr.segments.raw_batches import DamagedBatch, raw_batches

NOW = 1_700_000_000_000
PRODUCER = Producer(7, 3, 0)

_SIZES = st.sampled_from([0, 1, 5, 24, 30, 62, 63, 64, 65, 130, 8200])
_BYTES = st.builds(lambda size, fill: bytes([fill]) * size, _SIZES, st.integers(0, 255))
_VALUES = st.none() | _BYTES
_KEYS = _BYTES | st.none()
_HEADERS = st.sampled_from([(), (("name", b"value"),), (("name", None), ("other", b""))])
_DELTAS = st.sampled_from([1, 1, 1, 2, 70, 9000])
_TIMES = st.sampled_from([0, 0, 0, 1, -1, 64, 100_000, 86_400_000_000])
_RUNS = st.lists(st.tuples(_KEYS, _VALUES, _HEADERS, _DELTAS, _TIMES, st.sampled_from([1, 1, 3, 20])), max_size=8)


def collected(data: bytes, first: int = 0) -> dict[bytes, bytes | None]:
    newest: dict[bytes, bytes | None] = {}
    for raw in raw_batches(data):
        collect_newest(newest, data, raw, first)
    return newest


def expected(data: bytes, first: int = 0) -> dict[bytes, bytes | None]:
    return {record.key or NO_KEY: record.value for one in batches(data, first) for record in one.records}


@given(_RUNS, st.sampled_from([0, GZIP]), st.integers(0, 40))
@example([(b"k" * 30, b"v" * 24, (), 1, 0, 20)], 0, 0)
def test_the_values_are_those_of_the_other_decoder(
    runs: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int, int, int]],
    codec: int,
    first: int,
) -> None:
    records, offset = [], 0
    for key, value, headers, delta, time, times in runs:
        for number in range(times):
            suffix = struct.pack(">i", number)
            records.append(Record(offset, NOW + time, None if key is None else key + suffix, value, headers))
            offset += delta
    data = batch(records, codec, base_offset=0, last_offset=offset, producer=PRODUCER)

    for _ in range(3):  # the first times a layout is decoded one record at a time
        assert collected(data, first) == expected(data, first)


def test_a_long_run_is_decoded_completely_and_the_newest_value_stays() -> None:
    records = [Record(n, NOW, b"key %04d" % (n % 1500), b"value %06d" % n, (), True) for n in range(10_000)]
    data = batch(records, producer=PRODUCER)

    newest = collected(data)

    assert newest == {b"key %04d" % (n % 1500): b"value %06d" % n for n in range(8_500, 10_000)}


def test_tombstones_and_empty_values_differ() -> None:
    records = [Record(n, NOW, b"%03d" % n, None if n % 2 else b"") for n in range(100)]

    newest = collected(batch(records))

    assert newest == {b"%03d" % n: None if n % 2 else b"" for n in range(100)}


def test_messages_of_older_formats_are_collected() -> None:
    old = message(Record(0, None, b"a", b"1"), 0) + message_set([Record(1, NOW, b"a", b"2")], 1, GZIP)

    assert collected(old) == {b"a": b"2"}
    assert [(raw.producer_id, raw.producer_epoch, raw.record_count) for raw in raw_batches(old)] == [(-1, -1, -1)] * 2


def reseal(data: bytearray) -> bytes:
    from crc32c import crc32c

    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


@pytest.mark.parametrize("at", range(57, 61 + 2 * 11))
def test_a_changed_byte_with_a_right_checksum_never_yields_other_values_than_the_other_decoder(at: int) -> None:
    original = batch([Record(n, NOW, b"key%d" % n, b"val") for n in range(2)])
    for change in (1, 2, 0x80):
        data = bytearray(original)
        data[at] ^= change
        changed = reseal(data)
        try:
            right: NewestValues | None = expected(changed, -(1 << 40))  # a changed offset may be negative
        except Exception:
            right = None
        try:
            found: NewestValues | None = collected(changed)
        except DamagedBatch:
            found = None
        if right is not None:
            assert found == right


def test_a_damaged_batch_is_named_and_those_before_it_are_read() -> None:
    first, second = batch([Record(5, NOW, b"a", b"1")]), batch([Record(6, NOW, b"a", b"2")])
    newest: dict[bytes, bytes | None] = {}

    with pytest.raises(DamagedBatch, match="batch at offset 6: its checksum") as raised:
        for raw in raw_batches(data := first + second[:-1] + b"\xff"):
            collect_newest(newest, data, raw)

    assert raised.value.offset == 6
    assert newest == {b"a": b"1"}


def test_an_incomplete_batch_at_the_end_is_left_out() -> None:
    data = batch([Record(0, NOW, b"a", b"1")]) + batch([Record(1, NOW, b"a", b"2")])

    assert collected(data[:-1]) == {b"a": b"1"}


def test_an_unknown_format_is_an_error() -> None:
    data = bytearray(batch([Record(0, NOW, b"a", b"1")]))
    data[16] = 3

    with pytest.raises(UnknownVersion, match="message format 3"):
        list(raw_batches(bytes(data)))


def test_the_headers_have_the_producers_and_the_offsets() -> None:
    data = batch([], base_offset=3, last_offset=9, producer=PRODUCER) + batch(
        [Record(10, NOW, b"k", b"v")], producer=PRODUCER._replace(transactional=True)
    )

    emptied, transactional = raw_batches(data)

    assert (emptied.base_offset, emptied.last_offset, emptied.record_count) == (3, 9, 0)
    assert (emptied.producer_id, emptied.producer_epoch, emptied.transactional) == (7, 3, False)
    assert transactional.transactional
