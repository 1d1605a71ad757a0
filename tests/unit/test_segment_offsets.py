"""The newest offsets in the bytes of a log: records that count, ignored records, and unreadable ones."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import GroupValue
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.segments.batch_builder import Producer, batch, end_of_transaction, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.committed_offsets import SavedOffset, decode
from offsetmgr.segments.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from offsetmgr.segments.offsets import Newest, OffsetsReplay
from offsetmgr.segments.transaction_state import TransactionDecision, decisions

KAFKA = KafkaRecordFormat()
NOON = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


def commit(group: str, offset: int, *, partition: int = 0, at: int = NOON) -> tuple[bytes, bytes | None]:
    return KAFKA.encode_commit(group, "orders", [(partition, offset, -1, "")], at, None)[0]


def deletion(group: str) -> tuple[bytes, bytes | None]:
    return commit(group, 0)[0], None


def entry(offset: int, *records: tuple[bytes | None, bytes | None], producer: int | None = None) -> bytes:
    """A batch of format 2 that begins at ``offset``. With ``producer`` it is part of that producer's transaction."""
    found = [Record(offset + n, NOON, key, value) for n, (key, value) in enumerate(records)]
    return batch(found, producer=None if producer is None else Producer(producer, 0, 0, transactional=True))


def end(offset: int, producer: int, *, commit: bool) -> bytes:
    return end_of_transaction(offset, Producer(producer, 0, 0, transactional=True), commit=commit, timestamp=NOON)


def fold(*entries: bytes) -> OffsetsReplay:
    found = OffsetsReplay()
    found.replay(b"".join(entries))
    return found


def offsets(found: OffsetsReplay) -> dict[str, int]:
    """The offset of each group in partition 0 of orders."""
    return {group.group: group.offsets[ORDERS].offset for group in decode(found.newest).groups}


def test_the_last_commit_of_a_partition_wins() -> None:
    assert offsets(fold(entry(0, commit("a", 4), commit("b", 7)), entry(2, commit("a", 5)))) == {"a": 5, "b": 7}


def test_a_deleted_offset_is_absent_until_it_is_committed_again() -> None:
    gone = [entry(0, commit("a", 4), commit("b", 7)), entry(2, deletion("a"))]

    assert offsets(fold(*gone)) == {"b": 7}
    assert offsets(fold(*gone, entry(3, commit("a", 1)))) == {"a": 1, "b": 7}


def test_offsets_of_a_transaction_count_after_its_commit_and_never_after_its_abort() -> None:
    log = [entry(0, commit("a", 4)), entry(1, commit("a", 9), producer=7), entry(2, commit("a", 11), producer=8)]

    assert offsets(fold(*log)) == {"a": 4}
    assert offsets(fold(*log, end(3, 7, commit=True))) == {"a": 9}
    assert offsets(fold(*log, end(3, 8, commit=False))) == {"a": 4}
    both = fold(*log, end(3, 8, commit=True), end(4, 7, commit=True))
    assert offsets(both) == {"a": 11}, "the later record wins, in any order of the transactions' ends"
    assert both.pending == {}


def test_offsets_of_open_transactions_are_pending_and_aborted_ones_are_counted() -> None:
    found = fold(entry(0, commit("a", 4), commit("b", 5), producer=7), entry(2, commit("c", 6), producer=8))
    found.replay(end(3, 8, commit=False))

    assert {producer: len(records) for producer, records in found.pending.items()} == {7: 2}
    assert found.aborted == 1
    found.end_transaction(7, committed=True)
    assert offsets(found) == {"a": 4, "b": 5}


def test_a_deletion_outlives_a_transaction_that_was_open() -> None:
    log = [entry(0, commit("a", 4)), entry(1, commit("a", 9), producer=7), entry(2, deletion("a"))]

    assert offsets(fold(*log, end(3, 7, commit=True))) == {}


@pytest.mark.parametrize(("magic", "codecs"), [(0, (NONE, GZIP, SNAPPY, LZ4)), (1, (NONE, GZIP, SNAPPY, LZ4))])
def test_logs_of_old_brokers_are_read(magic: int, codecs: tuple[int, ...]) -> None:
    for codec in codecs:
        time = NOON if magic else None
        first = [Record(n, time, *commit("a", 4 + n)) for n in range(3)]
        last = [Record(3, time, *commit("b", 7)), Record(4, time, *deletion("a"))]

        found = fold(message_set(first, magic, codec), message_set(last, magic, codec))

        assert offsets(found) == {"b": 7}
        assert (found.end, found.records, found.largest_timestamp) == (5, 5, time)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_batches_of_every_codec_are_read_and_unusual_records_too(codec: int) -> None:
    long = KAFKA.encode_commit("long", "orders", [(0, 1, 5, "x" * 4096)], NOON, None)[0]
    longer = (KAFKA.offset_prefix("g" * 9000, "orders") + KAFKA.partition_suffix(0), commit("a", 3)[1])
    records = [
        Record(0, NOON, *commit("plain", 4)),
        Record(1, NOON, *long),
        Record(2, NOON, *commit("headed", 5), headers=(("by", b"hand"),)),
        Record(3, NOON, None, b"no key"),
        Record(40_000, NOON + 100_000, *commit("far", 6)),
        Record(40_001, NOON, *longer),
    ]

    found = fold(batch(records, codec, leader_epoch=3))

    assert offsets(found) == {"plain": 4, "long": 1, "headed": 5, "far": 6, "g" * 9000: 3}
    assert (found.end, found.keyless, found.leader_epoch, found.records) == (40_002, 1, 3, 6)
    assert found.largest_timestamp == NOON + 100_000


def test_a_damaged_entry_is_reported_and_the_entries_before_it_are_used() -> None:
    good, bad = entry(0, commit("a", 4)), bytearray(entry(1, commit("a", 5)))
    bad[-1] ^= 1
    found = OffsetsReplay()

    with pytest.raises(CorruptData, match="batch at offset 1: its checksum"):
        found.replay(good + bytes(bad))

    assert (offsets(found), found.replayed_bytes) == ({"a": 4}, len(good))


def test_decreasing_offsets_are_an_error() -> None:
    with pytest.raises(CorruptData, match="entry at offset 4: entries before it go up to offset 5"):
        fold(entry(5, commit("a", 4)), entry(4, commit("a", 5)))
    old = message_set([Record(5, None, *commit("a", 4))], 0)
    with pytest.raises(CorruptData, match="entry at offset 5: entries before it go up to offset 5"):
        fold(old, old)


def test_a_malformed_batch_with_a_right_checksum_is_rejected() -> None:
    records = [Record(0, NOON, *commit("a", 4))]
    whole = batch(records)
    short = whole[: whole.index(b"orders") - 3]
    with pytest.raises(CorruptData, match="batch at offset 0"):
        fold(checked(short))


def test_two_spellings_of_a_key_are_one_offset_and_the_later_record_wins() -> None:
    key, value = commit("a", 9)
    old_key = b"\x00\x00" + key[2:]

    assert offsets(fold(entry(0, commit("a", 4)), entry(1, (old_key, value)))) == {"a": 9}
    assert offsets(fold(entry(0, commit("a", 4)), entry(1, (old_key, None)))) == {}
    assert offsets(fold(entry(0, (old_key, None)), entry(1, commit("a", 4)))) == {"a": 4}


def test_values_of_unknown_versions_are_errors_of_their_partition_alone() -> None:
    key, _ = commit("a", 4, partition=1)
    found = decode(fold(entry(0, commit("a", 4), (key, b"\x00\x63\x00"))).newest)

    (group,) = found.groups
    assert group.offsets == {ORDERS: SavedOffset(4, "", None, NOON, None, 0)}
    (tp, error), *others = group.errors.items()
    assert (tp, type(error), others) == (TopicPartition("orders", 1), UnknownVersion, [])


def test_keys_without_offsets_are_counted_by_version() -> None:
    found = decode(fold(entry(0, (b"\x00\x03\x00\x01g", b"x"), (b"\x77\x77", b"x"), commit("a", 4))).newest)

    assert [group.group for group in found.groups] == ["a"]
    assert dict(found.other) == {"of version 3": 1, "of no known format": 1}
    assert found.foreign == 1


def test_records_of_a_manager_are_read_with_the_time_of_the_groups_activity() -> None:
    avro = AvroRecordFormat()
    offset = avro.encode_commit("a", "orders", [(0, 42, 3, "here")], NOON, NOON + 5)[0]
    found = decode(fold(entry(0, offset, avro.encode_group("a", GroupValue(NOON - 1)))).newest)

    (group,) = found.groups
    assert group.offsets == {ORDERS: SavedOffset(42, "here", 3, NOON, NOON + 5, 0)}
    assert group.activity is not None
    assert (group.activity.format, group.activity.since_ms) == ("avro", NOON - 1)


def transaction_state(producer: int, status: int, *, version: int) -> bytes:
    head = struct.pack(">hqhib", version, producer, 0, 60_000, status)
    if version == 0:
        name = struct.pack(">ih", 1, 18) + b"__consumer_offsets" + struct.pack(">iii", 2, 3, 4)
        return head + name + struct.pack(">qq", NOON, NOON)
    name = b"\x02\x13__consumer_offsets\x03" + struct.pack(">ii", 3, 4) + b"\x00"
    return head + name + struct.pack(">qq", NOON, NOON) + b"\x00"


@pytest.mark.parametrize("version", [0, 1])
def test_decided_transactions_are_reported_and_ongoing_ones_are_not(version: int) -> None:
    newest: dict[bytes, tuple[int, bytes | None]] = {
        b"\x00\x00\x00\x01" + bytes([65 + status]): (status, transaction_state(status, status, version=version))
        for status in range(7)
    }
    newest[b"\x00\x00\x00\x01z"] = (9, None)

    found, errors = decisions(newest)

    three, four = TopicPartition("__consumer_offsets", 3), TopicPartition("__consumer_offsets", 4)
    assert found == [
        TransactionDecision(2, three, True),
        TransactionDecision(2, four, True),
        TransactionDecision(3, three, False),
        TransactionDecision(3, four, False),
    ]
    assert errors == []


def test_a_transactions_state_of_an_unknown_version_is_an_error() -> None:
    found, errors = decisions({b"\x00\x00\x00\x01z": (0, b"\x00\x09")})

    assert found == []
    assert [type(error) for error in errors] == [UnknownVersion]


class Step(NamedTuple):
    """``group`` commits (or deletes) in the transaction of ``producer`` (0: without one), or that transaction ends."""

    producer: int
    group: str
    deletes: bool
    ends: bool | None


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        st.sampled_from("abc"),
        st.booleans(),
        st.sampled_from([None, None, None, True, False]),
    ),
    max_size=40,
)


@given(steps=STEPS, pieces=st.integers(1, 5))
def test_the_last_record_that_counts_wins(steps: list[Step], pieces: int) -> None:
    log: list[bytes] = []
    records: list[tuple[int, int, str, int | None]] = []  # producer, log offset, group, committed offset
    outcome: dict[int, list[tuple[int, bool]]] = {1: [], 2: []}
    for at, (producer, group, deletes, ends) in enumerate(steps):
        if producer and ends is not None:
            log.append(end(at, producer, commit=ends))
            outcome[producer].append((at, ends))
        else:
            value = None if deletes else 1000 + at
            log.append(entry(at, deletion(group) if deletes else commit(group, 1000 + at), producer=producer or None))
            records.append((producer, at, group, value))

    found = OffsetsReplay()
    size = -(-len(log) // pieces) or 1
    for start in range(0, len(log), size):
        found.replay(b"".join(log[start : start + size]))

    expected: dict[str, int | None] = {}
    for producer, at, group, value in records:
        ended = [committed for when, committed in outcome.get(producer, []) if when > at]
        if not producer or (ended and ended[0]):
            expected[group] = value
    assert offsets(found) == {group: value for group, value in expected.items() if value is not None}


def checked(data: bytes) -> bytes:
    """A batch with the right size and checksum for its bytes."""
    whole = bytearray(data)
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return bytes(whole)


@given(
    codec=st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]),
    producer=st.sampled_from([None, 7]),
    at=st.integers(0, 400),
    new=st.binary(max_size=6),
    old=st.integers(0, 6),
)
def test_a_changed_batch_with_a_right_checksum_is_a_typed_error_and_counts_nothing_twice(
    codec: int, producer: int | None, at: int, new: bytes, old: int
) -> None:
    records = [Record(n, NOON, *commit("a", n, partition=n)) for n in range(5)]
    who = None if producer is None else Producer(producer, 0, 0, transactional=True)
    whole = batch(records, codec, producer=who)
    start = min(61, len(whole)) + at % (len(whole) - 60)
    broken = checked(whole[:start] + new + whole[start + old :])
    found = OffsetsReplay()

    try:
        found.replay(broken)
    except OffsetMgrError:
        assert found.replayed_bytes == 0
    else:
        assert (found.end, found.records) == (5, 5)
    decode(found.newest)


NEWEST = st.dictionaries(st.binary(max_size=40), st.tuples(st.integers(0), st.none() | st.binary(max_size=40)))


@given(newest=NEWEST)
def test_any_key_and_value_is_decoded_or_counted(newest: Newest) -> None:
    found = decode(newest)

    assert len(found.groups) + len(found.errors) + sum(found.other.values()) <= len(newest)


@given(key=st.integers(0, 60), value=st.integers(0, 60), byte=st.binary(min_size=1, max_size=1))
def test_a_changed_byte_of_a_key_or_value_gives_another_one_or_an_error(key: int, value: int, byte: bytes) -> None:
    right, content = commit("group", 4)
    assert content is not None
    changed: dict[bytes, tuple[int, bytes | None]] = {
        right[:key] + byte + right[key + 1 :]: (0, content),
        right: (1, content[:value] + byte + content[value + 1 :]),
    }

    found = decode(changed)

    assert sum(len(group.offsets) + len(group.errors) for group in found.groups) <= 2
