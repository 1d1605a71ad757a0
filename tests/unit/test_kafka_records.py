"""`KafkaRecordFormat` and group metadata: every version that brokers have written, encoded here field by field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import INT32, INT64, TEXT

from offsetmgr.core.errors import CorruptData, UnsupportedOperation
from offsetmgr.records.base import GroupValue, OffsetKey, OffsetValue
from offsetmgr.records.kafka import KEY_NAMES, KafkaRecordFormat
from offsetmgr.records.kafka_group import GroupMetadata, MemberMetadata, decode_group_metadata

form = KafkaRecordFormat()
VERSIONS = st.integers(0, 4)
TAGS = st.dictionaries(st.integers(1, 1 << 30), st.binary(max_size=200), max_size=3)


def unsigned(number: int) -> bytes:
    """KIP-482's unsigned varint."""
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + unsigned(number >> 7)


def sized(data: bytes | None, length: str, flexible: bool) -> bytes:
    if flexible:
        return unsigned(0) if data is None else unsigned(len(data) + 1) + data
    return struct.pack(length, -1) if data is None else struct.pack(length, len(data)) + data


def text(value: str | None, flexible: bool) -> bytes:
    return sized(None if value is None else value.encode(), ">h", flexible)


def tagged(tags: dict[int, bytes], flexible: bool) -> bytes:
    if not flexible:
        return b""
    fields = [unsigned(tag) + unsigned(len(data)) + data for tag, data in sorted(tags.items())]
    return unsigned(len(fields)) + b"".join(fields)


def offset_value(version: int, value: OffsetValue, tags: dict[int, bytes]) -> bytes:
    flexible = version >= 4
    data = struct.pack(">hq", version, value.offset)
    if version >= 3:
        data += struct.pack(">i", -1 if value.leader_epoch is None else value.leader_epoch)
    data += text(value.metadata, flexible) + struct.pack(">q", value.commit_timestamp)
    if version == 1:
        data += struct.pack(">q", -1 if value.expire_timestamp is None else value.expire_timestamp)
    known = {} if value.topic_id is None else {0: value.topic_id.bytes}
    return data + tagged(known | tags, flexible)


def group_value(version: int, group: GroupMetadata, tags: dict[int, bytes]) -> bytes:
    flexible = version >= 4
    data = struct.pack(">h", version) + text(group.protocol_type, flexible) + struct.pack(">i", group.generation)
    data += text(group.protocol, flexible) + text(group.leader, flexible)
    if version >= 2:
        data += struct.pack(">q", -1 if group.current_state_timestamp is None else group.current_state_timestamp)
    data += unsigned(len(group.members) + 1) if flexible else struct.pack(">i", len(group.members))
    for member in group.members:
        data += text(member.member_id, flexible)
        if version >= 3:
            data += text(member.group_instance_id, flexible)
        data += text(member.client_id, flexible) + text(member.client_host, flexible)
        if version >= 1:
            data += struct.pack(">i", member.rebalance_timeout_ms)
        data += struct.pack(">i", member.session_timeout_ms)
        data += sized(member.subscription, ">i", flexible) + sized(member.assignment, ">i", flexible)
        data += tagged(tags, flexible)
    return data + tagged(tags, flexible)


EPOCHS = st.none() | INT32.filter(lambda epoch: epoch != -1)
MAYBE_TIMES = st.none() | INT64.filter(lambda time: time != -1)
UUIDS = st.none() | st.uuids()
MEMBERS = st.builds(
    MemberMetadata, TEXT, st.none() | TEXT, TEXT, TEXT, INT32, INT32, st.binary(max_size=300), st.binary(max_size=9)
)


@given(VERSIONS, st.builds(OffsetValue, INT64, EPOCHS, TEXT, INT64, MAYBE_TIMES, UUIDS), TAGS)
def test_offset_values_of_every_version(version: int, value: OffsetValue, tags: dict[int, bytes]) -> None:
    expected = value._replace(
        leader_epoch=value.leader_epoch if version >= 3 else None,
        expire_timestamp=value.expire_timestamp if version == 1 else None,
        topic_id=value.topic_id if version >= 4 else None,
    )

    data = offset_value(version, value, tags)

    assert form.decode_value(data) == expected
    epoch = -1 if expected.leader_epoch is None else expected.leader_epoch
    assert form.read_offset(data) == (value.offset, epoch, value.metadata)


@given(
    VERSIONS,
    st.builds(GroupMetadata, TEXT, INT32, st.none() | TEXT, st.none() | TEXT, MAYBE_TIMES, st.tuples(MEMBERS, MEMBERS)),
    st.integers(0, 2),
    TAGS,
)
def test_group_values_of_every_version(version: int, group: GroupMetadata, size: int, tags: dict[int, bytes]) -> None:
    group = group._replace(members=group.members[:size])
    expected = group._replace(
        current_state_timestamp=group.current_state_timestamp if version >= 2 else None,
        members=tuple(
            member._replace(
                group_instance_id=member.group_instance_id if version >= 3 else None,
                rebalance_timeout_ms=member.rebalance_timeout_ms if version >= 1 else None,
            )
            for member in group.members
        ),
    )

    data = group_value(version, group, tags)

    assert decode_group_metadata(data) == expected
    if expected.current_state_timestamp is not None:
        assert form.decode_group(data) == GroupValue(expected.current_state_timestamp)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_group_without_a_time_is_unreadable_and_was_not_last_active_in_1970(version: int) -> None:
    data = group_value(version, GroupMetadata("consumer", 0, None, None, None, ()), {})

    with pytest.raises(CorruptData, match="last state change is unknown"):
        form.decode_group(data)


def test_a_written_group_is_an_empty_consumer_group() -> None:
    _, value = form.encode_group("g", GroupValue(1_700_000_000_000))

    assert value is not None
    assert value[:2] == b"\x00\x03"
    assert decode_group_metadata(value) == GroupMetadata("consumer", 0, None, None, 1_700_000_000_000, ())


def test_offset_values_are_written_in_version_3_and_with_an_expiry_in_version_1() -> None:
    ((key, plain),) = form.encode_commit("g", "t", [(7, 42, 5, "m")], 1000, None)
    ((_, expiring),) = form.encode_commit("g", "t", [(7, 42, 5, "m")], 1000, 2000)

    assert key.hex(" ", 2) == "0001 0001 6700 0174 0000 0007"
    assert plain == offset_value(3, OffsetValue(42, 5, "m", 1000), {})
    assert expiring == offset_value(1, OffsetValue(42, None, "m", 1000, 2000), {})


def test_both_versions_of_an_offsets_key_mean_the_same_offset() -> None:
    new = form.offset_prefix("g", "t") + form.partition_suffix(7)
    old = b"\x00\x00" + new[2:]

    assert form.decode_key(old) == form.decode_key(new) == OffsetKey("g", "t", 7)
    assert form.split(old) == (old[:-4], 7)


def test_no_topic_id_is_none_and_a_short_one_is_unreadable() -> None:
    value = OffsetValue(42, None, "", 1000)

    assert form.decode_value(offset_value(4, value._replace(topic_id=UUID(int=0)), {})) == value
    with pytest.raises(CorruptData, match="15 bytes"):
        form.decode_value(offset_value(4, value, {0: bytes(15)}))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: form.offset_prefix("g" * 32768, "t"), "group: 32768 bytes"),
        (lambda: form.offset_prefix("g", "ü" * 16384), "topic: 32768 bytes"),
        (lambda: form.encode_group_key("g" * 32768), "group: 32768 bytes"),
        (lambda: form.encode_commit("g", "t", [(0, 0, -1, "m" * 32768)], 0, None), "metadata: 32768 bytes"),
    ],
)
def test_names_that_are_too_long_for_kafkas_records_are_rejected(call: Callable[[], object], what: str) -> None:
    with pytest.raises(UnsupportedOperation, match=what):
        call()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("0001 ffff 0001 74 00000000", "group is null"),
        ("0001 fffe 0001 74 00000000", "the length of group is -2"),
        ("0001 0001 67 0001 74 000000", "it ends within partition"),
        ("0001 0001 67 0001 74 0000000000", "1 bytes too many"),
        ("0002 0001 67 00", "1 bytes too many"),
        ("0002 0001 ff", "group is not UTF-8"),
        ("0001 0001 67 8000" + "74" * 0x8000 + "00000000", "the length of topic is -32768"),
    ],
)
def test_a_key_that_breaks_its_format_is_unreadable(data: str, why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        form.decode_key(bytes.fromhex(data))
    if data.startswith("0001"):
        with pytest.raises(CorruptData, match=why):
            form.split(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
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
def test_a_value_that_breaks_its_format_is_unreadable(data: str, why: str) -> None:
    for call in (form.decode_value, form.read_offset):
        with pytest.raises(CorruptData, match=why) as raised:
            call(bytes.fromhex(data))
        assert raised.value.what.startswith(f"offset value {data[:4]}")


@pytest.mark.parametrize("metadata", ["", "m", "m" * 4096])
def test_usual_values_are_read_without_the_general_reader(monkeypatch: pytest.MonkeyPatch, metadata: str) -> None:
    def slow(*_: object) -> None:
        raise AssertionError("read by the general reader")

    monkeypatch.setattr(KafkaRecordFormat, "_decode_value_slowly", slow)
    ((_, value),) = form.encode_commit("g", "t", [(0, 42, 7, metadata)], 1_700_000_000_000, None)
    assert value is not None
    assert form.read_offset(value) == (42, 7, metadata)
    assert form.decode_value(value) == OffsetValue(42, 7, metadata, 1_700_000_000_000)


def test_the_names_of_keys() -> None:
    assert list(KEY_NAMES) == list(range(24))
    assert KEY_NAMES[3] == "ConsumerGroupMetadata"
