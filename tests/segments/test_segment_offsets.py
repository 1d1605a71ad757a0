"""The newest offsets in the bytes of a log, as ``log offsets`` finds them: records that count, ignored records, and
unreadable ones."""

import struct
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from end_of_transaction import end_of_transaction
from hypothesis import example, given
from hypothesis import strategies as st
from mutated_entries import with_valid_checksum
from savedlogs import KAFKA, NOON, Reported, read_rows, write

from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord
from offsetmgr.segments.batch_builder import Producer, batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD


def commit(group: str, offset: int, *, partition: int = 0) -> EncodedRecord:
    return KAFKA.encode_commit(group, "orders", [(partition, offset, -1, "")], NOON, None)[0]


def deletion(group: str) -> EncodedRecord:
    return commit(group, 0)[0], None


def entry(offset: int, *records: tuple[bytes | None, bytes | None], producer: int | None = None) -> bytes:
    """A batch of format 2 that begins at ``offset``. With ``producer`` it is part of that producer's transaction."""
    found = [Record(offset + n, NOON, key, value) for n, (key, value) in enumerate(records)]
    return batch(found, producer=None if producer is None else Producer(producer, 0, 0, transactional=True))


def end(offset: int, producer: int, *, commit: bool) -> bytes:
    return end_of_transaction(offset, Producer(producer, 0, 0, transactional=True), commit=commit, timestamp=NOON)


def replayed(*entries: bytes, transactions: bytes = b"") -> tuple[list[dict[str, Any]], Reported]:
    """The rows of ``log offsets`` for a log of these entries, and for a log of the transaction coordinator."""
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory) / "__consumer_offsets-0", (0, b"".join(entries)))
        if transactions:
            write(Path(directory) / "__transaction_state-0", (0, transactions))
        rows, reported = read_rows(Path(directory))
    assert not any(error.startswith("internal") for error in reported.errors)
    return rows, reported


def offsets(*entries: bytes) -> dict[str, int]:
    """The offset of each group in partition 0 of orders."""
    rows, reported = replayed(*entries)
    assert reported.errors == []
    return {row["group"]: row["offset"] for row in rows}


OLD_KEY, VALUE = b"\x00\x00" + commit("a", 9)[0][2:], commit("a", 9)[1]
"""The first version of a key, which differs from the present one only in its version."""
PENDING = [entry(0, commit("a", 4)), entry(1, commit("a", 9), producer=7), entry(2, commit("a", 11), producer=8)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([entry(0, commit("a", 4)), entry(1, (OLD_KEY, VALUE))], {"a": 9}, id="replaces the offset"),
        pytest.param([entry(0, commit("a", 4)), entry(1, (OLD_KEY, None))], {}, id="deletes it"),
        pytest.param([entry(0, (OLD_KEY, None)), entry(1, commit("a", 4))], {"a": 4}, id="is replaced by it"),
    ],
)  # fmt: skip
def test_both_spellings_of_a_key_are_one_offset(entries: list[bytes], expected: dict[str, int]) -> None:
    assert offsets(*entries) == expected


def test_offsets_of_open_transactions_are_counted() -> None:
    rows, reported = replayed(
        entry(0, commit("a", 4), commit("b", 5), producer=7), entry(2, commit("c", 6), producer=8)
    )

    assert (rows, len(reported.notes)) == ([], 2)
    assert "offsetmgr leaves out 3 offsets of 2 open transactions" in reported.notes[0]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4])
def test_logs_of_old_brokers_are_read(magic: int, codec: int) -> None:
    time = NOON if magic else None
    first = [Record(n, time, *commit("a", 4 + n)) for n in range(3)]
    last = [Record(3, time, *commit("b", 7)), Record(4, time, *deletion("a"))]

    assert offsets(message_set(first, magic, codec), message_set(last, magic, codec)) == {"b": 7}


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

    rows, reported = replayed(batch(records, codec, leader_epoch=3))

    assert {row["group"]: (row["offset"], row["log_offset"]) for row in rows} == {
        "plain": (4, 0), "long": (1, 1), "headed": (5, 2), "far": (6, 40_000), "g" * 9000: (3, 40_001),
    }  # fmt: skip
    assert reported == Reported(["__consumer_offsets-0: offsetmgr skips 1 record without a key"], [])


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (
            [entry(5, commit("a", 4)), entry(4, commit("a", 5))],
            "entry at offset 4: entries before it go up to offset 5",
        ),
        (
            [message_set([Record(5, None, *commit("a", 4))], 0)] * 2,
            "entry at offset 5: entries before it go up to offset 5",
        ),
    ],
)
def test_decreasing_offsets_are_an_error(entries: list[bytes], why: str) -> None:
    rows, reported = replayed(*entries)

    assert (rows, len(reported.errors)) == ([], 1)
    assert why in reported.errors[0]


def test_values_of_unknown_versions_are_errors_of_their_partition_alone() -> None:
    rows, reported = replayed(entry(0, commit("a", 4), (commit("a", 4, partition=1)[0], b"\x00\x63\x00")))

    assert [(row["partition"], row["state"], row["offset"]) for row in rows] == [
        (0, "committed", 4),
        (1, "unreadable", None),
    ]
    assert reported.errors == ["group a, orders-1: offset value: version 99; known are 0 to 4"]


def test_keys_of_groups_are_ignored_and_keys_of_no_known_format_are_counted() -> None:
    """The first key is a group's state in the consumer protocol."""
    rows, reported = replayed(entry(0, (b"\x00\x03\x00\x01g", b"x"), (b"\x77\x77", b"x"), commit("a", 4)))

    assert [row["group"] for row in rows] == ["a"]
    counted = "offsets topic: 1 keys are of no known format, so offsets may be missing"
    assert reported.errors == [f"__consumer_offsets-0: {counted}"]


def test_records_of_a_manager_are_read() -> None:
    record = AvroRecordFormat().encode_commit("a", "orders", [(0, 42, 3, "here")], NOON, NOON + 5)[0]

    ((row,), _) = replayed(entry(0, record))

    assert (row["offset"], row["metadata"], row["leader_epoch"]) == (42, "here", 3)
    assert (row["commit_timestamp"], row["expire_timestamp"]) == (NOON, NOON + 5)


def transaction_state(status: int, *, version: int) -> bytes:
    """The coordinator's record of the transaction of producer 7 in partition 0 of the offsets topic."""
    state = struct.pack(">hqhib", version, 7, 0, 60_000, status)
    if version:
        state += b"\x02\x13__consumer_offsets\x02" + bytes(4) + b"\x00" + struct.pack(">qq", NOON, NOON) + b"\x00"
    else:
        state += struct.pack(">ih", 1, 18) + b"__consumer_offsets" + struct.pack(">iiqq", 1, 0, NOON, NOON)
    return batch([Record(0, NOON, b"\x00\x00\x00\x01t", state)])


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("status", range(7))
def test_a_transaction_without_its_marker_has_the_outcome_that_its_coordinator_decided(version, status: int) -> None:
    """2 is PREPARE_COMMIT, 3 is PREPARE_ABORT. In the other states nothing is decided that the log does not have."""
    state = transaction_state(status, version=version)

    ((row,), reported) = replayed(*PENDING[:2], transactions=state)

    assert row["offset"] == (9 if status == 2 else 4)
    open_ones = "offsetmgr leaves out 1 offset of 1 open transaction: whether they were committed is not known"
    decided = "offsetmgr takes the outcome of 1 transaction from __transaction_state"
    assert reported == Reported([f"__consumer_offsets-0: {decided if status in (2, 3) else open_ones}"], [])


def test_a_transactions_state_of_an_unknown_version_is_an_error() -> None:
    unknown = batch([Record(0, NOON, b"\x00\x00\x00\x01t", b"\x00\x09")])

    ((row,), reported) = replayed(*PENDING[:2], transactions=unknown)

    assert row["offset"] == 4
    assert "version 9" in reported.errors[0]


class Step(NamedTuple):
    """``group`` commits (or deletes) in the transaction of ``producer`` (0: without one), or that transaction ends."""

    producer: int
    group: str
    deletes: bool
    ends: bool | None


OPEN = [Step(producer, "a", False, None) for producer in range(3)]
ENDS = st.sampled_from([None, None, None, True, False])
STEPS = st.lists(st.builds(Step, st.integers(0, 2), st.sampled_from("abc"), st.booleans(), ENDS), max_size=40)


@given(STEPS)
@example([*OPEN, Step(2, "a", False, False), Step(1, "a", False, True), Step(2, "a", False, True)])
@example([*OPEN, Step(2, "a", False, True), Step(1, "a", False, True)])
@example([*OPEN[:2], Step(0, "a", True, None), Step(1, "a", False, True)])
def test_the_last_record_that_counts_wins(steps: list[Step]) -> None:
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

    found = offsets(*log)

    expected: dict[str, int | None] = {}
    for producer, at, group, value in records:
        ended = [committed for when, committed in outcome.get(producer, []) if when > at]
        if not producer or (ended and ended[0]):
            expected[group] = value
    assert found == {group: value for group, value in expected.items() if value is not None}


# --- changed bytes ------------------------------------------------------------------------------------


@given(st.dictionaries(st.binary(max_size=40), st.none() | st.binary(max_size=40), min_size=1))
def test_any_key_and_value_is_read_ignored_or_an_error(newest: dict[bytes, bytes | None]) -> None:
    rows, _ = replayed(entry(0, *newest.items()))

    assert len(rows) <= len(newest)


@given(key=st.integers(0, 60), value=st.integers(0, 60), byte=st.binary(min_size=1, max_size=1))
def test_a_changed_byte_of_a_key_or_value_gives_another_one_or_an_error(key: int, value: int, byte: bytes) -> None:
    right, content = commit("group", 4)
    assert content is not None

    rows, _ = replayed(
        entry(
            0, (right[:key] + byte + right[key + 1 :], content), (right, content[:value] + byte + content[value + 1 :])
        )
    )

    assert len(rows) <= 2


@given(st.sampled_from([NONE, GZIP]), st.sampled_from([None, 7]), st.integers(0, 400), st.binary(max_size=6))
def test_a_changed_batch_with_a_right_checksum_is_an_error_or_has_its_five_records(codec, producer, at, new) -> None:
    records = [Record(n, NOON, *commit("a", n, partition=n)) for n in range(5)]
    whole = batch(records, codec, producer=None if producer is None else Producer(producer, 0, 0, transactional=True))
    start = 61 + at % (len(whole) - 60)

    rows, reported = replayed(with_valid_checksum(whole[:start] + new + whole[start + len(new) // 2 :]))

    assert len(rows) <= 5
    assert rows or reported.errors or reported.notes
