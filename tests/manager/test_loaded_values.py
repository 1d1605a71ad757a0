"""A load of a partition finds the same values as `batch_reader`, which decodes one record at a time."""

import struct

import pytest
from audited_logs import Log, load
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.core.errors import OffsetMgrError, UnknownVersion
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.segments.batch_builder import Producer, batch, message, message_set
from offsetmgr.segments.batch_reader import Record, batches
from offsetmgr.segments.compression import GZIP

NOW = 1_700_000_000_000

_SIZES = st.sampled_from([0, 1, 5, 24, 30, 62, 63, 64, 65, 130, 8200])
_BYTES = st.builds(lambda size, fill: bytes([fill]) * size, _SIZES, st.integers(0, 255))
_HEADERS = st.sampled_from([(), (("name", b"value"),), (("name", None), ("other", b""))])
_DELTAS = st.sampled_from([1, 1, 1, 2, 70, 9000])
_TIMES = st.sampled_from([0, 0, 0, 1, -1, 64, 100_000, 86_400_000_000])
_RUN = st.tuples(_BYTES | st.none(), _BYTES | st.none(), _HEADERS, _DELTAS, _TIMES, st.sampled_from([1, 1, 3, 20]))


def loaded(data: bytes, end: int, first: int = 0) -> dict[bytes, bytes | None]:
    """The values of a log that has lost its first record, so that batches of every producer are valid."""
    return load(Log([data], [0], [end]), first, log_start=1)[0]


def expected(data: bytes, first: int = 0) -> dict[bytes, bytes | None]:
    return {record.key or b"": record.value for one in batches(data, first) for record in one.records}


@given(st.lists(_RUN, max_size=8), st.sampled_from([0, GZIP]), st.integers(0, 40))
@example([(b"k" * 30, b"v" * 24, (), 1, 0, 20)], 0, 0)
def test_the_values_are_those_of_the_other_decoder(runs, codec: int, first: int) -> None:
    records, offset = [], 0
    for key, value, headers, delta, time, times in runs:
        for number in range(times):
            suffix = struct.pack(">i", number)
            records.append(Record(offset, NOW + time, None if key is None else key + suffix, value, headers))
            offset += delta
    data = batch(records, codec, base_offset=0, last_offset=offset, producer=Producer(7, 3, 0))

    for _ in range(3):  # the first times a layout is decoded one record at a time
        assert loaded(data, offset + 1, first) == expected(data, first)


def test_a_long_run_is_decoded_completely_and_the_newest_value_stays() -> None:
    records = [Record(n, NOW, b"key %04d" % (n % 1500), b"value %06d" % n, (), True) for n in range(10_000)]

    newest = loaded(batch(records), 10_000)

    assert newest == {b"key %04d" % (n % 1500): b"value %06d" % n for n in range(8_500, 10_000)}


def test_messages_of_older_formats_are_loaded() -> None:
    old = message(Record(0, None, b"a", b"1"), 0) + message_set([Record(1, NOW, b"a", b"2")], 1, GZIP)

    assert loaded(old, 2) == {b"a": b"2"}


@pytest.mark.parametrize("at", range(57, 61 + 2 * 11))
def test_a_changed_byte_with_a_right_checksum_never_yields_other_values_than_the_other_decoder(at: int) -> None:
    original = batch([Record(n, NOW, b"key%d" % n, b"val") for n in range(2)])
    for change in (1, 2, 0x80):
        data = bytearray(original)
        data[at] ^= change
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        found: list[dict[bytes, bytes | None] | None] = []
        for read in (lambda: expected(bytes(data), -(1 << 40)), lambda: loaded(bytes(data), 2)):  # noqa: B023
            try:
                found.append(read())
            except OffsetMgrError:
                found.append(None)
        assert found[0] is None or found[0] == found[1]


def test_an_incomplete_batch_at_the_end_is_left_out_and_a_damaged_one_is_an_error() -> None:
    data = batch([Record(0, NOW, b"a", b"1")]) + batch([Record(1, NOW, b"a", b"2")])

    assert loaded(data[:-1], 1) == {b"a": b"1"}
    with pytest.raises(CorruptRecords, match="the record batch at offset 1 is damaged"):
        loaded(data[:-1] + b"\xff", 2)


def test_an_unknown_format_is_an_error() -> None:
    data = bytearray(batch([Record(0, NOW, b"a", b"1")]))
    data[16] = 3

    with pytest.raises(UnknownVersion, match="message format 3"):
        loaded(bytes(data), 1)
