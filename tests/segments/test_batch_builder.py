"""Every format, codec and field is read as it was written; damaged entries and impossible values are rejected."""

import random
import struct
from collections import Counter

import pytest
from end_of_transaction import end_of_transaction
from hypothesis import given
from hypothesis import strategies as st
from mutated_entries import SEEDS, with_valid_checksum

from offsetmgr.core.errors import CorruptData, UnknownVersion, UnsupportedOperation
from offsetmgr.segments.batch_builder import Producer, batch, message, message_set
from offsetmgr.segments.batch_reader import Record, batches, starts_with_complete_batch
from offsetmgr.segments.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from offsetmgr.segments.entries import split

TIMES = st.integers(0, 2**62)
LARGE = st.integers(1000, 200_000).map(lambda size: bytes((size % 251,)) * size)
FIELDS = st.none() | st.binary(max_size=200) | LARGE
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
SHORTS, INTS = st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
PRODUCERS = st.builds(Producer, st.integers(0, 2**60), SHORTS, INTS, st.booleans())


@st.composite
def some_records(draw: st.DrawFn, magic: int) -> list[Record]:
    """At least one record, with gaps as after compaction. All times are the producer's, or all are the broker's."""
    offset = draw(st.integers(0, 2**61))
    appended = draw(st.none() | TIMES) if magic else None
    found = []
    for _ in range(draw(st.integers(1, 12))):
        time = None if magic == 0 else (draw(st.none() | TIMES) if appended is None else appended)
        headers = draw(HEADERS) if magic == 2 else ()
        found.append(Record(offset, time, draw(FIELDS), draw(FIELDS), headers, appended is not None))
        offset += draw(st.integers(1, 1000))
    return found


def records_of(data: bytes) -> list[Record]:
    return [record for found in batches(data) for record in found.records]


@pytest.mark.parametrize("magic", [0, 1])
@given(st.data(), st.sampled_from([NONE, GZIP, SNAPPY, LZ4]))
def test_old_formats_are_read_as_they_were_written(magic: int, draw: st.DataObject, codec: int) -> None:
    records = draw.draw(some_records(magic))
    data = message_set(records, magic, codec)

    found = list(batches(data))
    assert [record for one in found for record in one.records] == records
    assert (found[0].base_offset, found[-1].last_offset) == (records[0].offset, records[-1].offset)
    assert all(entry.intact() and entry.magic == magic for entry in split(data))
    last = list(split(data))[-1].header()
    assert (last.last_offset, last.codec) == (records[-1].offset, codec)
    if magic == 0:
        assert len(list(split(data))) == (1 if codec else len(records))


@given(
    some_records(2),
    st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]),
    st.none() | PRODUCERS,
    st.none() | INTS,
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.none() | TIMES,
)
def test_format_2_is_read_as_it_was_written(records, codec, producer, leader_epoch, before, behind, delete_horizon):
    base, last = max(0, records[0].offset - before), records[-1].offset + behind

    (entry,) = split(
        batch(
            records,
            codec,
            base_offset=base,
            last_offset=last,
            leader_epoch=leader_epoch,
            producer=producer,
            delete_horizon=delete_horizon,
        )
    )

    assert entry.intact()
    found, header = entry.batch(), entry.header()
    assert found.records == records
    assert (found.base_offset, found.last_offset, found.codec, found.control) == (base, last, codec, False)
    assert (header.base_offset, header.last_offset, header.record_count) == (base, last, len(records))
    assert (header.leader_epoch, header.delete_horizon) == (leader_epoch, delete_horizon is not None)
    assert found.producer_id == (None if producer is None else producer.id)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.transactional) == (
        (None, None, None, False) if producer is None else producer
    )


def test_a_batch_emptied_by_compaction_keeps_its_bounds() -> None:
    (entry,) = split(batch([], base_offset=10, last_offset=14, producer=Producer(7, 1, 3)))

    assert entry.intact()
    assert entry.batch().records == []
    assert (entry.header().base_offset, entry.header().last_offset, entry.header().producer_id) == (10, 14, 7)


def test_the_end_of_a_transaction_is_a_control_batch_of_one_record() -> None:
    commit = end_of_transaction(20, Producer(7, 3, 0), commit=True, timestamp=1_700, coordinator_epoch=5)
    abort = end_of_transaction(21, Producer(7, 3, 0), commit=False, timestamp=1_700)

    found, undone = batches(commit + abort, controls=True)

    assert found.records == [Record(20, 1_700, b"\0\0\0\1", b"\0\0\0\0\0\5")]
    assert undone.records == [Record(21, 1_700, b"\0\0\0\0", b"\0\0\0\0\0\0")]
    assert (found.control, found.transactional, found.producer_id) == (True, True, 7)
    assert [one.records for one in batches(commit + abort)] == [[], []]


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda: message(Record(1, None, b"k", b"v", (("h", b""),)), 1), "format 1 has no headers"),
        (lambda: message(Record(1, 5, b"k", b"v"), 0), "format 0 has no times"),
        (lambda: message(Record(1, 5, b"k", b"v"), 2), "format 2 has no such messages"),
        (lambda: message(Record(1, 2**63, b"k", b"v"), 1), "too large for its format"),
        (lambda: batch([]), "give base_offset and last_offset"),
        (lambda: batch([Record(2, 5, b"", b""), Record(2, 5, b"", b"")]), "do not ascend"),
        (lambda: batch([Record(2, 5, b"", b"")], base_offset=3), "do not ascend"),
        (lambda: batch([Record(2, 5, b"", b"")], last_offset=2**40), "too large for its format"),
        (lambda: batch([Record(2, 5, b"", b""), Record(3, 5, b"", b"", (), True)]), "different append times"),
        (lambda: batch([Record(2, 4, b"", b"", (), True), Record(3, 5, b"", b"", (), True)]), "different append times"),
    ],
)
def test_a_value_that_a_format_cannot_represent_is_rejected(write: object, why: str) -> None:
    with pytest.raises(UnsupportedOperation, match=why):
        write()  # type: ignore[operator]


@pytest.mark.parametrize(("magic", "codec"), [(0, ZSTD), (1, ZSTD), (1, 5)])
def test_old_formats_have_no_zstd(magic: int, codec: int) -> None:
    with pytest.raises(UnknownVersion, match=f"codec {codec} is not known in message format {magic}"):
        message_set([Record(1, None, b"k", b"v")], magic, codec)


# --- reading ----------------------------------------------------------------------------------------

FIVE = [Record(10 + n, 5 + n, b"k%d" % n, b"v") for n in range(5)]
PAIR = [Record(10, 5, b"a", b"1"), Record(12, 7, b"b", b"2")]


def changed(data: bytes, at: int, value: bytes) -> bytes:
    """The entry with other bytes and a valid checksum."""
    return with_valid_checksum(data[:at] + value + data[at + len(value) :])


def moved(data: bytes, offset: int) -> bytes:
    """The entry at another offset, which no checksum covers."""
    return struct.pack(">q", offset) + data[8:]


def test_the_append_time_of_an_outer_message_applies_to_the_inner_ones() -> None:
    data = message_set(PAIR, 1, GZIP)

    assert records_of(changed(data, 17, bytes([GZIP | 0x08]))) == [
        record._replace(timestamp=7, log_append_time=True) for record in PAIR
    ]


def test_records_from_an_offset_on() -> None:
    for data in (batch(FIVE), batch(FIVE, GZIP), message_set(FIVE, 1, GZIP), message_set(FIVE, 1)):
        for first in range(9, 17):
            found = list(batches(data, first))
            assert [record for one in found for record in one.records] == FIVE[max(0, first - 10) :]
            assert (found[0].base_offset, found[-1].last_offset) == (10, 14)


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 40, 60])
def test_an_incomplete_batch_at_the_end_is_left_out(cut: int) -> None:
    first, second = message(FIVE[0], 1), batch(FIVE[1:2])

    assert records_of(first + second[:cut]) == FIVE[:1]
    assert not starts_with_complete_batch(second[:cut])
    assert starts_with_complete_batch(second)


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_flipped_bit_anywhere_under_the_checksum_is_found(codec: int) -> None:
    for data, start in ((message_set(FIVE[:1], 1, codec), 12), (batch(FIVE[:1], codec), 21)):
        for at in range(start, len(data)):
            for bit in range(8):
                damaged = bytearray(data)
                damaged[at] ^= 1 << bit
                with pytest.raises((CorruptData, UnknownVersion)):
                    records_of(bytes(damaged))


def test_batches_before_the_damage_are_read() -> None:
    found = batches(batch(FIVE[:1]) + batch(FIVE[1:2])[:-1] + b"\1")

    assert next(found).records == FIVE[:1]
    with pytest.raises(CorruptData, match="batch at offset 11: its checksum does not match its content"):
        next(found)


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        (changed(message(FIVE[0], 1), 16, b"\3"), UnknownVersion, "message format 3 is not known"),
        (changed(batch(FIVE), 22, b"\5"), UnknownVersion, "compression codec 5 is not known"),
        (moved(message(FIVE[0], 1), -1), CorruptData, "negative"),
        (moved(message_set(FIVE, 1, GZIP), 3), CorruptData, "would have offset -1"),
        (moved(batch(FIVE), -(2**63)), CorruptData, "negative"),
        *((changed(batch(FIVE), 57, struct.pack(">i", count)), CorruptData, None) for count in (0, 4, 6)),
    ],
)
def test_an_impossible_field_is_an_error_and_hides_no_record(data: bytes, error, why: str | None) -> None:
    with pytest.raises(error, match=why):
        records_of(data)


def test_mutated_entries_with_valid_checksums_give_records_or_typed_errors() -> None:
    chance, results = random.Random(5), Counter[str]()
    for _ in range(5_000):
        data = bytearray(chance.choice(SEEDS))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(12, len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            records_of(with_valid_checksum(bytes(data)))
            results["read"] += 1
        except (CorruptData, UnknownVersion):
            results["refused"] += 1
    assert min(results["read"], results["refused"]) > 250
