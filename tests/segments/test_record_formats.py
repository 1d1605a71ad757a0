"""Tests of both record formats: golden bytes, round trips, and errors for invalid data.

The golden bytes of the Avro records were made with fastavro, those of Kafka's with the serializers of Kafka 4.1.1.
"""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion, UnsupportedOperation, UsageError
from offsetmgr.records.avro import AvroRecordFormat
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
from offsetmgr.records.kafka import KafkaRecordFormat, decode_group_metadata
from offsetmgr.records.registry import record_format

GOLDEN = Path(__file__).parents[2] / "schemas" / "golden"

FORMATS: dict[str, RecordFormat] = {"avro": AvroRecordFormat(), "kafka": KafkaRecordFormat()}
SCHEMAS = {
    path.stem: fastavro.parse_schema(json.loads(path.read_text())) for path in GOLDEN.parent.glob("*-[kv]*.avsc")
}
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
OFFSETS = INT64 | st.integers(0, 1 << 42) | st.sampled_from([(1 << n) + step for n in (13, 27, 41) for step in (-1, 0)])
TIMES = INT64 | st.integers(1_600_000_000_000, 1_800_000_000_000)
EXPIRIES = st.none() | st.integers(0, (1 << 63) - 1)
COMMITS: st.SearchStrategy[PartitionCommit] = st.tuples(
    INT32 | st.integers(0, 1100), OFFSETS, st.integers(-1, 200) | INT32, TEXT | st.just("")
)
REPEATED = [(0, 10, 5, "a"), (1, 11, 5, "a"), (2, 12, 6, "a"), (3, 13, 5, "b"), (4, 14, 5, "a"), (5, 15, -1, "")]
"""Commits that have the leader epoch or the metadata of the one before."""
all_formats = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


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
    form, kind, data = FORMATS[name], record["kind"], bytes.fromhex(record["bytes"])

    found = decoded(form, kind, data)

    assert plain(found) == record["decoded"]
    if record["written"]:
        assert encoded(form, kind, found) == data
    if kind == "offset value":
        epoch = -1 if found.leader_epoch is None else found.leader_epoch
        assert form.read_offset(data) == (found.offset, epoch, found.metadata)
    if name == "kafka" and kind == "group value":
        since = found.current_state_timestamp
        assert attempt(form.decode_group, data, CorruptData) == (CorruptData if since is None else GroupValue(since))


@given(TEXT, TEXT, INT32, OFFSETS, INT32, TEXT | st.text("m", min_size=8000, max_size=8400), TIMES, EXPIRIES)
def test_avro_records_have_the_bytes_that_fastavro_writes(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, time: int, expiry: int | None
) -> None:
    form, known = FORMATS["avro"], None if epoch == -1 else epoch
    key = {"group": group, "topic": topic, "partition": partition}
    value = {"offset": offset, "leader_epoch": known, "metadata": metadata, "commit_timestamp": time}
    ((ours, content),) = form.encode_commit(group, topic, [(partition, offset, epoch, metadata)], time, expiry)
    for schema, written, datum in (
        ("offset-key", ours, key),
        ("offset-value", content, value | {"expire_timestamp": expiry}),
        ("group-key", form.encode_group_key(group), {"group": group}),
        ("group-value", form.encode_group(group, GroupValue(offset))[1], {"last_active": offset}),
    ):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, SCHEMAS[schema], datum)
        assert written == (b"\x4f\x00" if schema.startswith("offset") else b"\x4f\x10") + stream.getvalue()


# --- round trips ------------------------------------------------------------------------


@all_formats
@given(TEXT, TEXT, st.lists(COMMITS, max_size=5), TIMES, EXPIRIES)
@example("g", "t", REPEATED, 1_700_000_000_000, None)
def test_a_commit_is_read_back(form, group: str, topic: str, commits, time: int, expiry: int | None) -> None:
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


@all_formats
@given(TEXT, INT64.filter(lambda time: time != -1))
def test_a_group_is_read_back(form: RecordFormat, group: str, last_active: int) -> None:
    key, value = form.encode_group(group, GroupValue(last_active))

    assert value is not None
    assert key == form.encode_group_key(group)
    assert form.split(key) is None
    assert form.decode_key(key) == GroupKey(group)
    assert form.decode_group(value) == GroupValue(last_active)


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
def test_values_that_do_not_fit_are_rejected_when_written(form, commit, time: int, expiry: int | None) -> None:
    with pytest.raises(UnsupportedOperation):
        form.encode_commit("g", "t", [commit], time, expiry)
    for call in (
        lambda: form.offset_prefix("\udfff", "t"),
        lambda: form.encode_group_key("\udfff"),
        lambda: form.encode_group("g", GroupValue(1 << 63)),
        lambda: form.partition_suffix(1 << 31),
    ):
        with pytest.raises(UnsupportedOperation):
            call()


@pytest.mark.parametrize("bits", range(5, 63))
def test_avro_offsets_at_the_edges_of_each_encoded_length_are_read(bits: int) -> None:
    """A byte of an encoded number holds seven bits, so its lowest value with a byte after it is 0x80."""
    form = FORMATS["avro"]
    for offset in {sign * ((1 << bits) + step) for sign in (1, -1) for step in (-1, 0, 1)}:
        for epoch, metadata in ((-1, ""), (0, "m" * 63), (63, "m" * 64), (64, "m" * 128)):
            ((_, value),) = form.encode_commit("g", "t", [(0, offset, epoch, metadata)], 1_700_000_000_000, None)
            assert value is not None
            assert form.read_offset(value) == (offset, epoch, metadata)


@pytest.mark.parametrize(
    ("encode", "bits"),
    [
        (FORMATS["avro"].partition_suffix, 32),
        (lambda number: FORMATS["avro"].encode_group("g", GroupValue(number))[1], 64),
    ],
)
def test_an_avro_number_of_more_bits_than_its_type_is_refused(encode: Callable[[int], bytes], bits: int) -> None:
    lowest, highest = -(1 << bits - 1), (1 << bits - 1) - 1
    assert len(encode(lowest)) == len(encode(highest)) == -(-bits // 7) + (2 if bits == 64 else 0)
    for number in (lowest - 1, highest + 1):
        with pytest.raises(UnsupportedOperation, match=f"does not fit into {bits} bits"):
            encode(number)


def test_an_unknown_record_format_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no such format"):
        record_format("json")


def test_names_that_are_too_long_for_kafkas_records_are_rejected() -> None:
    form = FORMATS["kafka"]
    for call, what in (
        (lambda: form.offset_prefix("g" * 32768, "t"), "group: 32768 bytes"),
        (lambda: form.offset_prefix("g", "ü" * 16384), "topic: 32768 bytes"),
        (lambda: form.encode_group_key("g" * 32768), "group: 32768 bytes"),
        (lambda: form.encode_commit("g", "t", [(0, 0, -1, "m" * 32768)], 0, None), "metadata: 32768 bytes"),
    ):
        with pytest.raises(UnsupportedOperation, match=what):
            call()


# --- the other format, other versions ---------------------------------------------------------------


@all_formats
def test_a_key_of_the_other_format_is_rejected(form: RecordFormat) -> None:
    other = FORMATS["kafka" if form.name == "avro" else "avro"]
    for key in (other.offset_prefix("g", "t") + other.partition_suffix(3), other.encode_group_key("g")):
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
    form = FORMATS[name]

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
    form = FORMATS[name]
    for read in (form.read_offset, form.decode_value):
        with pytest.raises(UnknownVersion, match=f"version {version};"):
            read(bytes.fromhex(value))
    if value[:4] != "4f10":
        with pytest.raises(UnknownVersion, match=f"version {version};"):
            form.decode_group(bytes.fromhex(value))


@all_formats
def test_data_too_short_for_a_version_is_unreadable(form: RecordFormat) -> None:
    for data in (b"", b"\x00", b"\x4f"):
        for read in (form.split, form.decode_key, form.read_offset, form.decode_value, form.decode_group):
            with pytest.raises(CorruptData):
                read(data)


def test_both_versions_of_kafkas_offset_key_mean_the_same_offset() -> None:
    form = FORMATS["kafka"]
    new = form.offset_prefix("g", "t") + form.partition_suffix(7)
    old = b"\x00\x00" + new[2:]

    assert form.decode_key(old) == form.decode_key(new) == OffsetKey("g", "t", 7)
    assert form.split(old) == (old[:-4], 7)


def test_values_that_say_unknown_in_an_unusual_way() -> None:
    """An epoch of -1 in a branch of Avro's union, a group without a time, and topic ids of 0 and of 15 bytes."""
    avro, kafka = FORMATS["avro"], FORMATS["kafka"]
    value = bytes.fromhex("4f00 0a 0201 00 02 00")
    assert avro.decode_value(value) == OffsetValue(5, None, "", 1)
    assert avro.read_offset(value) == (5, -1, "")
    groups = [record["bytes"] for record in golden("kafka") if record["decoded"].get("members") == []]
    assert [group[:4] for group in groups] == ["0000", "0001", "0002", "0003", "0004"]
    for group in groups:
        with pytest.raises(CorruptData, match="last state change is unknown"):
            kafka.decode_group(bytes.fromhex(group.replace("0000018bcfe56800", "ff" * 8)))
    of_version_4 = "0004000000000000002affffffff010000018bcfe56800 01 00 "
    assert kafka.decode_value(bytes.fromhex(f"{of_version_4} 10 {'00' * 16}")).topic_id is None
    with pytest.raises(CorruptData, match="15 bytes"):
        kafka.decode_value(bytes.fromhex(f"{of_version_4} 0f {'00' * 15}"))


# --- invalid data -------------------------------------------------------------------------------------------


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
        ("0001 ffff 0001 74 00000000", "group is null"),
        ("0001 fffe 0001 74 00000000", "the length of group is -2"),
        ("0001 0001 67 0001 74 000000", "it ends within partition"),
        ("0001 0001 67 0001 74 0000000000", "1 bytes too many"),
        ("0002 0001 67 00", "1 bytes too many"),
        ("0002 0001 ff", "group is not UTF-8"),
        ("0001 0001 67 8000" + "74" * 0x8000 + "00000000", "the length of topic is -32768"),
    ],
)
def test_a_key_in_another_form_than_the_writers_is_unreadable(data: str, why: str) -> None:
    """Two keys of the log could otherwise mean the same offset."""
    form = FORMATS["avro" if data.startswith("4f") else "kafka"]
    with pytest.raises(CorruptData, match=why):
        form.decode_key(bytes.fromhex(data))
    if not data.startswith("0002") and "UTF-8" not in why:  # only decode_key reports it, once for each topic
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
        ("0003 000000000000002a ffffffff ffff 0000018bcfe56800", "metadata is null"),
        ("0003 000000000000002a ffffffff 0001ff 0000018bcfe56800", "metadata is not UTF-8"),
        ("0003 000000000000002a ffffffff 0000 0000018bcfe5680000", "1 bytes too many"),
        ("0001 000000000000002a 0000 0000018bcfe56800 0000", "it ends within expireTimestamp"),
        ("0004 000000000000002a ffffffff 00 0000018bcfe56800 00", "metadata is null"),
        ("0004 000000000000002a ffffffff 818002" + "6d" * 0x8000 + "0000018bcfe56800 00", "metadata has 32768 bytes"),
        ("0004 000000000000002a ffffffff ffffffff0f 0000018bcfe56800 00", "does not fit into 31 bits"),
        ("0004 000000000000002a ffffffff 01 0000018bcfe56800 01 05 ff01 00", "it ends within a tagged field"),
        ("0004 000000000000002a ffffffff 01 0000018bcfe56800 ffffffff07", "it ends within a tag"),
    ],
)
def test_a_value_that_breaks_its_schema_is_unreadable(data: str, why: str) -> None:
    form = FORMATS["avro" if data.startswith("4f") else "kafka"]
    for call in (form.decode_value, form.read_offset):
        with pytest.raises(CorruptData, match=why) as raised:
            call(bytes.fromhex(data))
        assert raised.value.what.startswith(f"offset value {bytes.fromhex(data).hex()[:40]}")


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
