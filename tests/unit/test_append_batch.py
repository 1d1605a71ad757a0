"""The quick encoder writes the same bytes as the general one, and the reader reads what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.segments.append_batch import append_batch
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import BATCH_HEADER, LOG_OVERHEAD, Record, batches

LARGE = st.integers(60, 20_000).map(lambda size: bytes((size % 251,)) * size)
KEYS = st.binary(max_size=100) | LARGE
RECORDS = st.lists(st.tuples(KEYS, st.none() | KEYS), min_size=1, max_size=20)
PRODUCERS = st.builds(
    Producer, st.integers(0, 2**60), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.just(False)
)


@given(RECORDS, PRODUCERS)
def test_a_batch_has_the_bytes_of_the_general_encoder(
    records: list[tuple[bytes, bytes | None]], producer: Producer
) -> None:
    expected = [Record(offset, None, key, value) for offset, (key, value) in enumerate(records)]

    assert append_batch(records, producer) == batch(expected, producer=producer)


@given(RECORDS, PRODUCERS)
def test_a_batch_is_read_as_it_was_written(records: list[tuple[bytes, bytes | None]], producer: Producer) -> None:
    data = append_batch(records, producer)

    (found,) = batches(data)
    assert [(record.key, record.value) for record in found.records] == records
    assert (found.base_offset, found.last_offset, found.producer_id) == (0, len(records) - 1, producer.id)
    assert not found.transactional and not found.control
    *_, producer_id, epoch, sequence, count = BATCH_HEADER.unpack_from(data, LOG_OVERHEAD)
    assert (producer_id, epoch, sequence, count) == (producer.id, producer.epoch, producer.sequence, len(records))


@pytest.mark.parametrize("count", [1, 63, 64, 4_095, 4_096, 4_097, 10_000])
def test_a_batch_may_have_any_number_of_records(count: int) -> None:
    records = [(b"%d" % number, None) for number in range(count)]

    (found,) = batches(append_batch(records, Producer(1, 2, 3)))
    assert [record.key for record in found.records] == [key for key, _ in records]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4_095, 4_096, 4_097, 8_191, 8_192, 1_000_000])
def test_a_key_and_a_value_may_have_any_size(size: int) -> None:
    records = [(b"k" * size, b"v" * size), (b"", None), (b"k", b"")]

    (found,) = batches(append_batch(records, Producer(1, 2, 3)))
    assert [(record.key, record.value) for record in found.records] == records
