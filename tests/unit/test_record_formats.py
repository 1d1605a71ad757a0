"""Tests of both record formats: golden bytes, round trips, and errors for invalid data.

The golden bytes of the Avro records were made with fastavro, those of Kafka's with the serializers of Kafka 4.1.1.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from record_strategies import COMMITS, EXPIRIES, INT64, TEXT, TIMES

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion, UnsupportedOperation, UsageError
from offsetmgr.records.base import (
    FormatMismatch,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    PartitionCommit,
    RecordFormat,
    UnknownKey,
)
from offsetmgr.records.kafka_group import decode_group_metadata
from offsetmgr.records.registry import FORMATS, format_of, record_format

GOLDEN = Path(__file__).parents[2] / "schemas" / "golden"

all_formats = pytest.mark.parametrize("form", [make() for make in FORMATS.values()], ids=list(FORMATS))


def golden(name: str) -> list[dict[str, Any]]:
    """Reads a file of golden records. ``written`` contains the records whose bytes offsetmgr also writes."""
    records: list[dict[str, Any]] = json.loads((GOLDEN / f"records-{name}.json").read_text())
    return records


def plain(value: Any) -> Any:
    """Returns a decoded key or value in the form of a golden file."""
    if isinstance(value, tuple):
        return {k: plain(v) for k, v in value._asdict().items()} if hasattr(value, "_asdict") else [*map(plain, value)]
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, int | str | None) else str(value)


def decoded(form: RecordFormat, kind: str, data: bytes) -> Any:
    if kind == "key":
        return form.decode_key(data)
    if kind == "offset value":
        return form.decode_value(data)
    return decode_group_metadata(data) if form.name == "kafka" else form.decode_group(data)


def encoded(form: RecordFormat, kind: str, value: Any) -> bytes | None:
    match value:
        case OffsetKey(group, topic, partition):
            return form.offset_prefix(group, topic) + form.partition_suffix(partition)
        case GroupKey(group):
            return form.encode_group_key(group)
        case OffsetValue(offset, epoch, metadata, commit_timestamp, expire_timestamp):
            commit = (0, offset, -1 if epoch is None else epoch, metadata)
            return form.encode_commit("g", "t", [commit], commit_timestamp, expire_timestamp)[0][1]
        case GroupValue():
            return form.encode_group("g", value)[1]
        case _:
            return form.encode_group("g", GroupValue(value.current_state_timestamp))[1]


@pytest.mark.parametrize(("name", "record"), [(name, record) for name in FORMATS for record in golden(name)])
def test_golden_bytes_are_decoded(name: str, record: dict[str, Any]) -> None:
    form, kind, data = record_format(name), record["kind"], bytes.fromhex(record["bytes"])

    found = decoded(form, kind, data)

    assert plain(found) == record["decoded"]
    if record["written"]:
        assert encoded(form, kind, found) == data
    if kind == "offset value":
        epoch = -1 if found.leader_epoch is None else found.leader_epoch
        assert form.read_offset(data) == (found.offset, epoch, found.metadata)


# --- round trips ------------------------------------------------------------------------


@all_formats
@given(TEXT, TEXT, st.lists(COMMITS, max_size=5), TIMES, EXPIRIES)
def test_a_commit_is_read_back(
    form: RecordFormat, group: str, topic: str, commits: list[PartitionCommit], time: int, expiry: int | None
) -> None:
    prefix = form.offset_prefix(group, topic)

    records = form.encode_commit(group, topic, commits, time, expiry)

    assert len(records) == len(commits)
    for (key, value), (partition, offset, epoch, metadata) in zip(records, commits, strict=True):
        kept = -1 if form.name == "kafka" and expiry is not None else epoch  # Kafka's version 1 has no epoch
        assert value is not None
        assert key == prefix + form.partition_suffix(partition)
        assert form.split(key) == (prefix, partition)
        assert form.decode_key(key) == OffsetKey(group, topic, partition)
        assert form.read_offset(value) == (offset, kept, metadata)
        assert form.decode_value(value) == OffsetValue(offset, None if kept == -1 else kept, metadata, time, expiry)
        assert format_of(key) == form.name


@all_formats
@given(TEXT, INT64.filter(lambda time: time != -1))
def test_a_group_is_read_back(form: RecordFormat, group: str, last_active: int) -> None:
    key, value = form.encode_group(group, GroupValue(last_active))

    assert value is not None
    assert key == form.encode_group_key(group)
    assert form.split(key) is None
    assert form.decode_key(key) == GroupKey(group)
    assert form.decode_group(value) == GroupValue(last_active)
    assert format_of(key) == form.name


@all_formats
@pytest.mark.parametrize("length", [0, 1, 63, 64, 8191, 8192, 32767])
@pytest.mark.parametrize("partition", [0, 8191, 8192, (1 << 31) - 1])
def test_names_of_every_length_are_distinguished(form: RecordFormat, length: int, partition: int) -> None:
    for group, topic in (("g" * length, "t"), ("g", "t" * length)):
        prefix = form.offset_prefix(group, topic)

        ((key, _),) = form.encode_commit(group, topic, [(partition, 1, -1, "")], 1_700_000_000_000, None)

        assert form.split(key) == (prefix, partition)
        assert form.decode_key(key) == OffsetKey(group, topic, partition)


@all_formats
def test_partitions_of_a_commit_keep_their_own_epoch_and_metadata(form: RecordFormat) -> None:
    commits = [(0, 10, 5, "a"), (1, 11, 5, "a"), (2, 12, 6, "a"), (3, 13, 5, "b"), (4, 14, 5, "a"), (5, 15, -1, "")]

    values = [value for _, value in form.encode_commit("g", "t", commits, 1_700_000_000_000, None)]

    assert [form.read_offset(value) for value in values if value is not None] == [commit[1:] for commit in commits]


@all_formats
@pytest.mark.parametrize(
    ("commit", "time", "expiry"),
    [
        ((1 << 31, 0, -1, ""), 0, None),
        ((0, 1 << 63, -1, ""), 0, None),
        ((0, -(1 << 63) - 1, -1, ""), 0, None),
        ((0, 0, 1 << 31, ""), 0, None),
        ((0, 0, -1, "\ud800"), 0, None),
        ((0, 0, -1, ""), 1 << 63, None),
        ((0, 0, -1, ""), 0, 1 << 63),
    ],
)
def test_numbers_that_do_not_fit_are_rejected_when_written(
    form: RecordFormat, commit: PartitionCommit, time: int, expiry: int | None
) -> None:
    with pytest.raises(UnsupportedOperation):
        form.encode_commit("g", "t", [commit], time, expiry)


@all_formats
def test_names_and_times_that_do_not_fit_are_rejected_when_written(form: RecordFormat) -> None:
    for call in (
        lambda: form.offset_prefix("\udfff", "t"),
        lambda: form.encode_group_key("\udfff"),
        lambda: form.encode_group("g", GroupValue(1 << 63)),
        lambda: form.partition_suffix(1 << 31),
    ):
        with pytest.raises(UnsupportedOperation):
            call()


# --- the other format, other versions ---------------------------------------------------------------


@all_formats
def test_a_key_of_the_other_format_is_rejected(form: RecordFormat) -> None:
    other = record_format("kafka" if form.name == "avro" else "avro")
    for key in (other.offset_prefix("g", "t") + other.partition_suffix(3), other.encode_group_key("g")):
        assert format_of(key) == other.name
        with pytest.raises(FormatMismatch, match=f"'{other.name}'.*'{form.name}'"):
            form.split(key)
        with pytest.raises(FormatMismatch, match=f"'{other.name}'.*'{form.name}'"):
            form.decode_key(key)


@pytest.mark.parametrize(
    ("name", "key", "version"),
    [
        *[("avro", "4f01aa", 0x4F01), ("avro", "4f2002", 0x4F20), ("avro", "7fff", 0x7FFF), ("avro", "ffff", -1)],
        *[("kafka", "0003aa", 3), ("kafka", "0018", 24), ("kafka", "7fff", 0x7FFF), ("kafka", "ffff", -1)],
    ],
)
def test_keys_of_unknown_versions_are_named_and_skipped(name: str, key: str, version: int) -> None:
    form = record_format(name)

    assert form.split(bytes.fromhex(key)) is None
    assert form.decode_key(bytes.fromhex(key)) == UnknownKey(version)


@pytest.mark.parametrize(
    ("name", "value", "version"),
    [
        *[("avro", "4f01aa", "20225"), ("avro", "4f10aa", "20240"), ("avro", "0003" + "00" * 22, "3")],
        *[("kafka", "0005" + "00" * 30, "5"), ("kafka", "4f00" + "00" * 22, "20224"), ("kafka", "ffff", "-1")],
    ],
)
def test_values_of_unknown_versions_are_an_error_that_names_the_version(name: str, value: str, version: str) -> None:
    form = record_format(name)
    for read in (form.read_offset, form.decode_value):
        with pytest.raises(UnknownVersion, match=f"version {version};"):
            read(bytes.fromhex(value))
    if value[:4] != "4f10":
        with pytest.raises(UnknownVersion, match=f"version {version};"):
            form.decode_group(bytes.fromhex(value))


def test_formats_are_found_by_name() -> None:
    assert [record_format(name).name for name in ("avro", "kafka")] == ["avro", "kafka"]
    with pytest.raises(UsageError, match="json"):
        record_format("json")


@pytest.mark.parametrize("key", ["", "4f", "00", "0100ff", "5000", "ffff", "4eff"])
def test_other_keys_have_no_format(key: str) -> None:
    assert format_of(bytes.fromhex(key)) is None


@all_formats
def test_data_too_short_for_a_version_is_unreadable(form: RecordFormat) -> None:
    for data in (b"", b"\x00", b"\x4f"):
        for read in (form.split, form.decode_key, form.read_offset, form.decode_value, form.decode_group):
            with pytest.raises(CorruptData):
                read(data)


# --- invalid data -------------------------------------------------------------------------------------------


def attempt(call: Any, data: bytes, *allowed: type[OffsetMgrError]) -> Any:
    """Returns the result of the call, or the class of the expected error that it raised."""
    try:
        return call(data)
    except allowed as error:
        return type(error)


def check_key(form: RecordFormat, key: bytes) -> None:
    parts = attempt(form.split, key, CorruptData, FormatMismatch)
    found = attempt(form.decode_key, key, CorruptData, FormatMismatch)
    if isinstance(found, OffsetKey):
        assert parts is not None
        assert parts[0] + form.partition_suffix(parts[1]) == key  # otherwise its tombstone would delete another key
        assert parts[1] == found.partition
        if form.name == "avro" or key[1] == 1:
            assert parts[0] == form.offset_prefix(found.group, found.topic)
    elif found is FormatMismatch:
        assert parts is FormatMismatch
    elif found is CorruptData:  # an offset key (a tuple if only its names are not text) or a group key
        assert parts is CorruptData or parts is None or isinstance(parts, tuple)
    else:
        assert parts is None


def check_value(form: RecordFormat, value: bytes) -> None:
    short = attempt(form.read_offset, value, CorruptData, UnknownVersion)
    whole = attempt(form.decode_value, value, CorruptData, UnknownVersion)
    if isinstance(whole, OffsetValue):
        assert short == (whole.offset, -1 if whole.leader_epoch is None else whole.leader_epoch, whole.metadata)
    else:
        assert short is whole
    attempt(form.decode_group, value, CorruptData, UnknownVersion)
    attempt(decode_group_metadata, value, CorruptData, UnknownVersion)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The data truncated, extended, with bytes removed, or with other bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = rng.randbytes(rng.randrange(1, 5))
            case 2:
                del changed[at : at + rng.randrange(1, 5)]
            case 3 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case _:
                changed[at : at + 1] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))])
    return bytes(changed)


@all_formats
def test_25000_mutated_keys_and_values_are_typed_errors_or_valid_records(form: RecordFormat) -> None:
    rng = random.Random(20240229)
    originals = [(record["kind"], bytes.fromhex(record["bytes"])) for record in golden(form.name)]

    for _ in range(25_000):
        kind, data = rng.choice(originals)
        data = mutated(data, rng)
        check = check_key if kind == "key" else check_value
        check(form, data)


@all_formats
def test_every_truncation_is_unreadable(form: RecordFormat) -> None:
    for record in golden(form.name):
        kind, data = record["kind"], bytes.fromhex(record["bytes"])
        if "version" in record["decoded"]:
            continue
        for end in range(len(data)):
            with pytest.raises(CorruptData):
                decoded(form, kind, data[:end])
            if kind == "offset value":
                with pytest.raises(CorruptData):
                    form.read_offset(data[:end])
        with pytest.raises(CorruptData):
            decoded(form, kind, data + b"\x00")


@all_formats
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x00\x00", b"\x00\x01", b"\x00\x03", b"\x4f\x00", b"\x4f\x10"]))
@example(b"\x80" * 12, b"\x4f\x00")
@example(b"\xff" * 10 + b"\x01", b"\x4f\x00")
@example(b"\x00" * 10 + b"\x7f\xff\xff\xff\xff\x7f", b"\x00\x04")
def test_arbitrary_bytes_are_typed_errors_or_valid_records(form: RecordFormat, data: bytes, version: bytes) -> None:
    check_key(form, version + data)
    check_value(form, version + data)
