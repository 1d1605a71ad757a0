"""Compares `AvroRecordFormat` with fastavro in both directions: the bytes after the version match the schemas."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import EXPIRIES, INT32, INT64, OFFSETS, TEXT, TIMES

from offsetmgr.core.errors import CorruptData, UnsupportedOperation
from offsetmgr.records import avro, avro_fields
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import GroupKey, GroupValue, OffsetKey, OffsetValue

SCHEMA_DIRECTORY = Path(__file__).parents[2] / "schemas"
SCHEMAS = {
    name: fastavro.parse_schema(json.loads((SCHEMA_DIRECTORY / f"{name}.avsc").read_text()))
    for name in ("offset-key", "offset-value", "group-key", "group-value")
}
VERSIONS = {"offset": b"\x4f\x00", "group": b"\x4f\x10"}
form = AvroRecordFormat()


def written(schema: str, datum: dict[str, Any]) -> bytes:
    """Returns fastavro's encoding after our version."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMAS[schema], datum)
    return VERSIONS[schema.partition("-")[0]] + stream.getvalue()


def read(schema: str, data: bytes | None) -> Any:
    """Returns the value that fastavro decodes after the version, and checks that the data end there."""
    assert data is not None
    assert data[:2] == VERSIONS[schema.partition("-")[0]]
    stream = io.BytesIO(data[2:])
    datum = fastavro.schemaless_reader(stream, SCHEMAS[schema], None)
    assert stream.read() == b""
    return datum


@given(TEXT, TEXT, INT32 | st.integers(0, 1100))
def test_keys(group: str, topic: str, partition: int) -> None:
    datum = {"group": group, "topic": topic, "partition": partition}

    key = form.offset_prefix(group, topic) + form.partition_suffix(partition)

    assert key == written("offset-key", datum)
    assert read("offset-key", key) == datum
    assert form.decode_key(written("offset-key", datum)) == OffsetKey(group, topic, partition)
    assert form.encode_group_key(group) == written("group-key", {"group": group})
    assert form.decode_key(written("group-key", {"group": group})) == GroupKey(group)


@given(OFFSETS, INT32, TEXT | st.text("m", min_size=8000, max_size=8400), TIMES, EXPIRIES)
def test_values(offset: int, epoch: int, metadata: str, time: int, expiry: int | None) -> None:
    known = None if epoch == -1 else epoch
    datum = {
        "offset": offset,
        "leader_epoch": known,
        "metadata": metadata,
        "commit_timestamp": time,
        "expire_timestamp": expiry,
    }

    ((_, value),) = form.encode_commit("g", "t", [(0, offset, epoch, metadata)], time, expiry)

    assert value == written("offset-value", datum)
    assert read("offset-value", value) == datum
    assert form.decode_value(written("offset-value", datum)) == OffsetValue(offset, known, metadata, time, expiry)


@pytest.mark.parametrize("bits", range(5, 63))
def test_offsets_at_the_edges_of_each_encoded_length_are_read(bits: int) -> None:
    """A byte of an encoded number holds seven bits, so its lowest value with a byte after it is 0x80."""
    for offset in {sign * ((1 << bits) + step) for sign in (1, -1) for step in (-1, 0, 1)}:
        for epoch, metadata in ((-1, ""), (0, "m" * 63), (63, "m" * 64), (64, "m" * 128)):
            ((_, value),) = form.encode_commit("g", "t", [(0, offset, epoch, metadata)], 1_700_000_000_000, None)
            assert value is not None
            assert form.read_offset(value) == (offset, epoch, metadata)


def test_usual_keys_and_values_are_read_without_the_general_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general reader takes several times as long. It is the way to an error, and to values that are not usual."""

    def slow(*_: object) -> None:
        raise AssertionError("read by the general reader")

    monkeypatch.setattr(avro, "_split_slowly", slow)
    monkeypatch.setattr(AvroRecordFormat, "_read_offset_slowly", slow)
    for group, topic in product(("", "g", "g" * 63, "g" * 64, "g" * 255), ("t", "t" * 63, "t" * 64, "t" * 249)):
        prefix = form.offset_prefix(group, topic)
        assert form.split(prefix + form.partition_suffix(7)) == (prefix, 7)
    for offset, epoch, length in product((0, 63, 64, 8191, 8192, 1 << 40), (-1, 0, 63), (0, 1, 63, 64, 200)):
        ((_, value),) = form.encode_commit("g", "t", [(0, offset, epoch, "m" * length)], 1_700_000_000_000, None)
        assert value is not None
        assert form.read_offset(value) == (offset, epoch, "m" * length)


@given(INT64)
def test_group_values(last_active: int) -> None:
    _, value = form.encode_group("g", GroupValue(last_active))

    assert value == written("group-value", {"last_active": last_active})
    assert form.decode_group(value) == GroupValue(last_active)


def test_an_epoch_of_minus_one_is_unknown_in_either_encoding() -> None:
    value = written(
        "offset-value",
        {"offset": 5, "leader_epoch": -1, "metadata": "", "commit_timestamp": 1, "expire_timestamp": None},
    )

    assert form.decode_value(value) == OffsetValue(5, None, "", 1)
    assert form.read_offset(value) == (5, -1, "")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("4f00 8200 0274 00", "group is not in its shortest form"),
        ("4f00 0267 820074 00", "topic is not in its shortest form"),
        ("4f00 0267 0274 8000", "partition is not in its shortest form"),
        ("4f00 0267 0274 8080808010", "partition does not fit into 32 bits"),
        ("4f00 0167 0274 00", "the length of group is -1"),
        ("4f00 0267 0274 0000", "1 bytes too many"),
        ("4f00 0267 0374 00", "the length of topic is -2"),
        ("4f00 0267 fe7f74 00", "it ends within topic"),
        ("4f00 02ff 0274 00", "group is not UTF-8"),
    ],
)
def test_a_key_in_another_form_than_the_writers_is_unreadable(data: str, why: str) -> None:
    """Two keys of the log could otherwise mean the same offset."""
    with pytest.raises(CorruptData, match=why):
        form.decode_key(bytes.fromhex(data))
    if "UTF-8" not in why:  # only decode_key reports it, once for each topic
        with pytest.raises(CorruptData, match=why):
            form.split(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("4f00 5400 00 8080808080800000", "commit_timestamp is not in its shortest form"),
        ("4f00 d400 0000 80a0abfef962 00", "offset is not in its shortest form"),
        ("4f00 ffffffffffffffffff02 0000 80a0abfef962 00", "offset does not fit into 64 bits"),
        ("4f00 54 04 00 80a0abfef962 00", "the union leader_epoch has no branch 2"),
        ("4f00 54 00 00 80a0abfef962 04", "the union expire_timestamp has no branch 2"),
        ("4f00 54 02 8080808010 00 80a0abfef962 00", "leader_epoch does not fit into 32 bits"),
        ("4f00 54 00 03 80a0abfef962 00", "the length of metadata is -2"),
        ("4f00 54 00 02ff 80a0abfef962 00", "metadata is not UTF-8"),
        ("4f00 54 00 00 80a0abfef962 0000", "1 bytes too many"),
        ("4f00 54 00 00 80a0abfef962", "it ends within expire_timestamp"),
    ],
)
def test_a_value_that_breaks_the_schema_is_unreadable(data: str, why: str) -> None:
    for call in (form.decode_value, form.read_offset):
        with pytest.raises(CorruptData, match=why) as raised:
            call(bytes.fromhex(data))
        assert raised.value.what == f"offset value {bytes.fromhex(data).hex()}"


@pytest.mark.parametrize(("encode", "bits"), [(avro_fields.int32, 32), (avro_fields.long, 64)])
def test_a_number_of_more_bits_than_its_type_is_refused(encode: Callable[[int], bytes], bits: int) -> None:
    lowest, highest = -(1 << bits - 1), (1 << bits - 1) - 1
    assert len(encode(lowest)) == len(encode(highest)) == -(-bits // 7)
    for number in (lowest - 1, highest + 1):
        with pytest.raises(UnsupportedOperation, match=f"does not fit into {bits} bits"):
            encode(number)
