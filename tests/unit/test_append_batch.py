"""`batch_reader` reads the records that `append_batch` has encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.segments.append_batch import append_batch
from offsetmgr.segments.batch_builder import Producer
from offsetmgr.segments.batch_reader import batches

PRODUCER = Producer(4711, 3, 17)
RECORDS = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=200)), min_size=1, max_size=60)


def read(data: bytes) -> list[tuple[bytes | None, bytes | None]]:
    (batch,) = batches(data)
    assert (batch.base_offset, batch.producer_id) == (0, PRODUCER.id)
    assert [record.offset for record in batch.records] == list(range(len(batch.records)))
    return [(record.key, record.value) for record in batch.records]


@given(RECORDS)
def test_any_records(records: list[tuple[bytes, bytes | None]]) -> None:
    assert read(append_batch(records, PRODUCER)) == records


@pytest.mark.parametrize(
    "records",
    [
        [(b"key", b"v" * 8_100)],
        [(b"key", b"v" * 9_000), (b"key", None), (b"k" * 9_000, b"value")],
        [(b"key", b"value")] * 10_000,
        [(b"", b""), (b"", None)],
    ],
    ids=["a long record", "longer records", "many records", "empty keys and values"],
)
def test_large_and_empty_records(records: list[tuple[bytes, bytes | None]]) -> None:
    assert read(append_batch(records, PRODUCER)) == records
