"""The rules of the audit of batches, by example: the batches that are valid, and those that are not."""

from dataclasses import replace

import pytest
from audited_logs import NOW, PARTITION, Log, Written, alarms, claim, data, encoded_claim, follow, load
from end_of_transaction import end_of_transaction

from offsetmgr.core.errors import OffsetMgrError, UnknownVersion
from offsetmgr.manager.log.base import CorruptRecords, LogRecord
from offsetmgr.records.claim import CLAIM_KEY, FENCE_EPOCH, FENCE_KEY
from offsetmgr.segments.batch_builder import Producer, batch, message
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import GZIP

FENCE = Written(4, FENCE_EPOCH, fence=True)
LOADS: dict[str, tuple[list[Written], str, set[bytes], list[int], tuple[int, int] | None, set[int]]] = {
    "data before the first claim is valid if a later claim lists its producer": (
        [data(4, 9, b"a"), data(5, 0, b"b"), data(6, 0, b"c"), claim(5, 1, 3), data(5, 1, b"d"), claim(7, 0, 4)],
        "bda", {b"c"}, [2], (7, 0), {3, 4, 5, 7}),
    "a second claim of the same epoch adds producer ids, which the owner has found in the log": (
        [claim(5, 1), data(5, 1, b"a"), claim(5, 1, 4), data(5, 1, b"b")], "ab", set(), [], (5, 1), {4, 5}),
    "fences": (
        [FENCE, claim(5, 0), FENCE, data(5, 0, b"a"), Written(4, FENCE_EPOCH, ((FENCE_KEY, b""),)), data(5, 0, b"b")],
        "ab", set(), [], (5, 0), {5}),
    "a fence with another epoch": (
        [claim(5, 0), Written(4, FENCE_EPOCH - 1, fence=True)], "", set(), [1], (5, 0), {5}),
    "the epoch of a fence with other keys": (
        [claim(5, 0), Written(4, FENCE_EPOCH, ((FENCE_KEY, None), (b"a", b"1")))], "", {b"a"}, [1], (5, 0), {5}),
    "batches without records": (
        [Written(9, 0), claim(5, 0), Written(5, 9), Written(7, 0), data(5, 0, b"a")], "a", set(), [], (5, 0), {5}),
    "a claim with data, and a compressed claim": (
        [replace(claim(5, 1), records=((b"a", b"v"),)), data(5, 1, b"b"), replace(claim(5, 2), codec=GZIP),
         data(5, 2, b"c")], "abc", set(), [], (5, 2), {5}),
}  # fmt: skip
"""The batches of a log, and what a load finds: the keys with valid values, the invalid keys, the offsets of alarms, the
owner, and the producer ids of its claims."""


@pytest.mark.parametrize("case", LOADS)
def test_the_valid_values_of_a_log(case: str, caplog: pytest.LogCaptureFixture) -> None:
    written, valid, invalid, offsets, owner, ids = LOADS[case]
    log = Log.of(written)

    newest, loading = load(log)

    state = loading.audit.state
    assert newest == {key.encode(): b"v" for key in valid}
    assert (state.invalid_keys, [offset for offset, *_ in alarms(caplog)]) == (invalid, offsets)
    assert (state.owner, set(state.producer_ids), loading.fetch_offset) == (owner, ids, log.end)


@pytest.mark.parametrize("intruder", [(5, 0), (5, 2), (6, 1), (-1, -1)])
def test_another_producer_after_a_claim_is_invalid(intruder: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    log = Log.of([claim(5, 1), data(5, 1, b"a"), data(*intruder, b"a", b"new", value=b"x"), data(5, 1, b"b")])

    newest, loading = load(log)

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"a", b"new"}
    assert alarms(caplog) == [(2, *intruder, "the owner's producer id is 5 with epoch 1")]
    assert "another program wrote to the offsets topic" in caplog.text


@pytest.mark.parametrize(("start", "log_start"), [(1, 0), (0, 1), (1, 1)])
def test_a_part_of_a_log_whose_claims_are_unknown_is_accepted(start: int, log_start: int, caplog) -> None:
    whole = Log.of([claim(4, 9), data(4, 9, b"a"), data(4, 9, b"b")])
    log = Log(whole.chunks[1:], whole.starts[1:], whole.ends[1:])

    newest, loading = load(log, start, log_start=log_start)
    followed = follow(log, None, start, log_start=log_start)

    assert newest == {b"a": b"v", b"b": b"v"}
    assert [record.key for record in followed] == [b"a", b"b"]
    assert loading.audit.state.producer_ids == frozenset()
    assert alarms(caplog) == []


def test_a_part_of_a_log_with_a_later_claim_is_checked() -> None:
    newest, loading = load(Log.of([data(4, 9, b"a"), data(5, 0, b"b"), claim(4, 10)]), log_start=1)

    assert newest == {b"a": b"v"}
    assert loading.audit.state.invalid_keys == {b"b"}


@pytest.mark.parametrize(
    "late",
    [
        claim(5, 1, 4),
        claim(4, 7),
        Written(6, 0, ((CLAIM_KEY, b"{}"),)),
        Written(6, 0, ((CLAIM_KEY, None),)),
        Written(-1, -1, encoded_claim(5)),
    ],
)
def test_an_invalid_claim_changes_nothing_and_has_to_be_written_again(late: Written, caplog) -> None:
    written = [claim(5, 2, 4), late, data(5, 2, b"a"), data(late.id, late.epoch, b"b")]

    newest, loading = load(Log.of(written))

    assert newest == {b"a": b"v"}
    assert loading.audit.state.owner == (5, 2)
    assert loading.audit.state.invalid_keys == {CLAIM_KEY, b"b"}
    assert [offset for offset, *_ in alarms(caplog)] == [1, 3]


def test_a_claim_of_an_unknown_version_is_an_error() -> None:
    with pytest.raises(UnknownVersion, match="claim"):
        load(Log.of([Written(5, 0, ((CLAIM_KEY, b'{"version": 2}'),))]))


@pytest.mark.parametrize(
    "chunk",
    [
        batch([Record(0, NOW, b"k", b"v")], producer=Producer(5, 0, 0, transactional=True)),
        batch([], base_offset=0, last_offset=3, producer=Producer(5, 0, 0, transactional=True)),
        end_of_transaction(0, Producer(5, 0, 0), commit=True, timestamp=NOW),
    ],
)
def test_a_transactional_batch_means_that_the_topic_is_unsuitable(chunk: bytes) -> None:
    log = Log([chunk], [0], [1])
    expected = "topic offsets: partition 3 has a batch of a transaction at offset 0"

    for read in (load, follow):
        with pytest.raises(OffsetMgrError, match=expected) as raised:
            read(log)
        assert "export the offsets" in raised.value.hint


def test_messages_of_an_old_format_are_invalid() -> None:
    log = Log.of([claim(5, 0)])
    log.chunks.append(message(Record(log.end, NOW, b"a", b"1"), 1))
    log.starts.append(log.end)
    log.ends.append(log.end + 1)

    newest, loading = load(log)

    assert newest == {}
    assert loading.audit.state.invalid_keys == {b"a"}


def test_a_damaged_batch_is_an_error_after_the_records_before_it() -> None:
    log = Log.of([claim(5, 0), data(5, 0, b"a"), data(5, 0, b"b")])
    log.chunks[2] = log.chunks[2][:-1] + b"x"
    newest: dict[bytes, bytes | None] = {}
    taken: list[LogRecord] = []

    for read in (lambda: load(log, newest=newest), lambda: follow(log, batches=1, taken=taken)):
        with pytest.raises(CorruptRecords, match="offsets-3: the record batch at offset 2 is damaged") as raised:
            read()
        assert (raised.value.partition, raised.value.offset) == (PARTITION, 2)

    assert newest[b"a"] == b"v"
    assert b"b" not in newest
    assert [record.key for record in taken] == [b"a"]


def test_a_load_keeps_values_from_before_even_if_it_needs_a_second_pass() -> None:
    """The second pass is necessary because the claim does not list the producer before it."""
    newest: dict[bytes, bytes | None] = {b"old": b"1", b"a": b"1"}

    load(Log.of([data(4, 9, b"a", b"b"), claim(5, 0), data(5, 0, b"c")]), newest=newest)

    assert newest == {b"old": b"1", b"a": b"1", b"c": b"v"}
