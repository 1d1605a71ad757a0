"""The hand-written encoding of snapshot records equals fastavro's, and values that do not fit are rejected."""

from __future__ import annotations

import io

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnsupportedOperation
from offsetmgr.core.model import BrokerPartition, Committed, TopicPartition
from offsetmgr.records.avro_fields import long
from offsetmgr.snapshots.avro import SCHEMA
from offsetmgr.snapshots.avro_encoder import NO_END, RecordEncoder, end, errors_field
from offsetmgr.snapshots.group_images import IMAGES_SCHEMA

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
T0, T1 = TopicPartition("orders", 0), TopicPartition("zahlungen-ü", 300)


def fastavro_bytes(schema: dict[str, object], record: dict[str, object]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), record)
    return stream.getvalue()


@given(LONGS)
def test_a_long_is_encoded_as_by_fastavro(number: int) -> None:
    assert long(number) == fastavro_bytes({"type": "long"}, number)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", range(64))
def test_a_long_on_either_side_of_each_length(bits: int) -> None:
    for number in (2**bits - 1, -(2**bits)):
        assert long(number) == fastavro_bytes({"type": "long"}, number)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**80])
def test_a_number_over_64_bits_is_rejected(number: int) -> None:
    with pytest.raises(UnsupportedOperation, match="64 bits"):
        long(number)


@given(LONGS, st.text(max_size=5), st.none() | INTS, st.none() | LONGS, st.none() | LONGS)
def test_a_record_of_before_images_is_encoded_as_by_fastavro(
    offset: int, metadata: str, epoch: int | None, timestamp: int | None, after: int | None
) -> None:
    encoder = RecordEncoder()
    found = Committed(offset, metadata, epoch, timestamp, 7)
    value = {"offset": offset, "metadata": metadata, "leader_epoch": epoch, "commit_timestamp": timestamp}
    plain = {"offset": 1, "metadata": "", "leader_epoch": None, "commit_timestamp": None}
    names = [{"topic": tp.topic, "partition": tp.partition} for tp in (T0, T1)]
    theirs = fastavro_bytes(
        IMAGES_SCHEMA,
        {
            "group": "g",
            "offsets": [names[0] | value, names[1] | plain],
            "errors": [],
            "end": None,
            "after": [names[1] | {"offset": after}, names[0] | {"offset": 7}],
        },
    ).removesuffix(b"\0")  # the field tree, which `write_images` adds

    first = encoder.group("g", {T1: Committed(1), T0: found}) + NO_END + encoder.planned_offsets([T1, T0], [after, 7])
    again = encoder.group("g", {T1: Committed(1), T0: found}) + NO_END + encoder.planned_offsets([T1, T0], [after, 7])

    assert first == theirs
    assert again == theirs  # the cached parts give the same bytes


def test_errors_and_the_end_are_encoded_as_by_fastavro() -> None:
    whole, one = OffsetMgrError("group g", "cannot be read", "look"), CorruptData("node", "is junk")
    recorded = [
        {"topic": None, "partition": None, "kind": "OffsetMgrError"}
        | {"what": "group g", "why": "cannot be read", "hint": "look"},
        {"topic": "orders", "partition": 0, "kind": "CorruptData", "what": "node", "why": "is junk", "hint": one.hint},
    ]
    encoder = RecordEncoder()

    assert encoder.group("g", {}, errors_field([(None, whole), (T0, one)])) + NO_END == fastavro_bytes(
        SCHEMA, {"group": "g", "offsets": [], "errors": recorded, "end": None}
    )
    assert encoder.group("", {}) + end(3, 70_000, 2**32 - 1) == fastavro_bytes(
        SCHEMA, {"group": "", "offsets": [], "errors": [], "end": {"groups": 3, "offsets": 70_000, "crc32": 2**32 - 1}}
    )


def test_a_partition_of_kafka_0_7_is_encoded_as_its_number() -> None:
    partition = BrokerPartition(65_534, 32_767)

    assert RecordEncoder().planned_offsets(
        [TopicPartition("orders", partition)], [5]
    ) == RecordEncoder().planned_offsets([TopicPartition("orders", int(partition))], [5])


@pytest.mark.parametrize(
    ("partition", "found"),
    [
        (2**31, Committed(1)),
        (0, Committed(2**63)),
        (0, Committed(1, leader_epoch=2**31)),
        (0, Committed(1, commit_timestamp=2**63)),
    ],
)
def test_a_number_outside_the_range_of_its_field_is_rejected(partition: int, found: Committed) -> None:
    with pytest.raises(UnsupportedOperation):
        RecordEncoder().group("g", {TopicPartition("orders", partition): found})
