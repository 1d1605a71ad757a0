"""The rules of the audit of batches, by example: the batches that are valid, and those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audited_logs import NOW, PARTITION, Log, Written, alarms, claim, data, encoded_claim, follow, load

from offsetmgr.core.errors import UnknownVersion
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.partition_follow import PartitionFollow
from offsetmgr.manager.log.kafka.partition_load import PartitionLoad
from offsetmgr.manager.log.topic import UnsuitableTopic
from offsetmgr.records.claim import CLAIM_KEY, FENCE_EPOCH, FENCE_KEY
from offsetmgr.segments.batch_builder import Producer, batch, end_of_transaction, message
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import GZIP


def test_data_of_the_owner_is_loaded_and_the_claim_is_returned() -> None:
    newest, loading = load(Log.of([claim(5, 0), data(5, 0, b"a", b"b"), data(5, 0, b"a", value=b"w")]))

    assert newest == {b"a": b"w", b"b": b"v"}
    state = loading.audit.state
    assert state.claim is not None
    assert (state.claim.token, state.owner, set(state.producer_ids)) == ("5-0", (5, 0), {5})
    assert state.invalid_keys == frozenset()


@pytest.mark.parametrize("intruder", [ProducerEpoch(5, 0), ProducerEpoch(5, 2), ProducerEpoch(6, 1), (-1, -1)])
def test_another_producer_after_a_claim_is_invalid(intruder: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    log = Log.of([claim(5, 1), data(5, 1, b"a"), data(*intruder, b"a", b"new", value=b"x"), data(5, 1, b"b")])

    newest, loading = load(log)

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"a", b"new"}
    assert alarms(caplog) == [(2, *intruder, "the owner's producer id is 5 with epoch 1")]
    assert "another program wrote to the offsets topic" in caplog.text


def test_a_key_that_was_written_again_is_valid() -> None:
    _, loading = load(Log.of([claim(5, 1), data(5, 0, b"a", b"b"), data(5, 1, b"a")]))

    assert loading.audit.state.invalid_keys == {b"b"}


def test_data_before_the_first_claim_is_valid_if_a_later_claim_lists_its_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = [data(4, 9, b"a"), data(5, 0, b"b"), data(6, 0, b"c"), claim(5, 1, 3), data(5, 1, b"d"), claim(7, 0, 4)]

    newest, loading = load(Log.of(written))

    assert newest == {b"a": b"v", b"b": b"v", b"d": b"v"}
    assert loading.audit.state.invalid_keys == {b"c"}
    assert alarms(caplog) == [(2, 6, 0, "no claim lists its producer id")]


def test_a_log_without_claims_is_invalid(caplog: pytest.LogCaptureFixture) -> None:
    newest, loading = load(Log.of([data(4, 9, b"a"), data(-1, -1, b"b")]))

    assert newest == {}
    assert loading.audit.state.invalid_keys == {b"a", b"b"}
    assert len(alarms(caplog)) == 2


@pytest.mark.parametrize(("start", "log_start"), [(1, 0), (0, 1), (1, 1)])
def test_a_part_of_a_log_whose_claims_are_unknown_is_accepted(
    start: int, log_start: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Log.of([claim(4, 9), data(4, 9, b"a"), data(4, 9, b"b")])
    log = Log(whole.chunks[1:], whole.starts[1:], whole.ends[1:])

    newest, loading = load(log, start, log_start=log_start)
    followed = follow(log, ClaimHistory("offsets"), start, log_start=log_start)

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
def test_an_invalid_claim_changes_nothing_and_has_to_be_written_again(
    late: Written, caplog: pytest.LogCaptureFixture
) -> None:
    written = [claim(5, 2, 4), late, data(5, 2, b"a"), data(late.id, late.epoch, b"b")]

    newest, loading = load(Log.of(written))

    assert newest == {b"a": b"v"}
    assert loading.audit.state.owner == (5, 2)
    assert loading.audit.state.invalid_keys == {CLAIM_KEY, b"b"}
    assert [offset for offset, *_ in alarms(caplog)] == [1, 3]


def test_an_invalid_claim_before_a_newer_claim_need_not_be_written_again() -> None:
    _, loading = load(Log.of([claim(5, 2), claim(5, 1), claim(5, 3)]))

    assert loading.audit.state.invalid_keys == frozenset()


def test_a_refreshed_claim_and_a_new_producer_id_are_claims() -> None:
    written = [claim(5, 0), data(5, 0, b"a"), claim(5, 3), data(5, 3, b"b"), claim(8, 0, 5), data(8, 0, b"c")]

    newest, loading = load(Log.of(written))

    assert set(newest) == {b"a", b"b", b"c"}
    assert loading.audit.state.owner == (8, 0)
    assert loading.audit.state.producer_ids == {5, 8}


def test_a_second_claim_of_the_same_epoch_adds_producer_ids() -> None:
    """An owner that finds more producer ids in the log appends its claim again."""
    written = [claim(5, 1), data(5, 1, b"a"), claim(5, 1, 4), data(5, 1, b"b")]

    newest, loading = load(Log.of(written))

    assert set(newest) == {b"a", b"b"}
    assert loading.audit.state.producer_ids == {4, 5}
    assert loading.audit.state.invalid_keys == frozenset()


def test_fences_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    fence = Written(4, FENCE_EPOCH, fence=True)
    empty_fence = Written(4, FENCE_EPOCH, ((FENCE_KEY, b""),))

    newest, loading = load(Log.of([fence, claim(5, 0), fence, data(5, 0, b"a"), empty_fence, data(5, 0, b"b")]))

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.owner == (5, 0)
    assert alarms(caplog) == []


def test_a_fence_with_another_epoch_is_invalid(caplog: pytest.LogCaptureFixture) -> None:
    load(Log.of([claim(5, 0), Written(4, FENCE_EPOCH - 1, fence=True)]))

    assert [offset for offset, *_ in alarms(caplog)] == [1]


def test_a_batch_with_the_epoch_of_a_fence_and_other_keys_is_invalid() -> None:
    newest, loading = load(Log.of([claim(5, 0), Written(4, FENCE_EPOCH, ((FENCE_KEY, None), (b"a", b"1")))]))

    assert newest == {}
    assert loading.audit.state.invalid_keys == {b"a"}


def test_batches_without_records_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    newest, loading = load(Log.of([Written(9, 0), claim(5, 0), Written(5, 9), Written(7, 0), data(5, 0, b"a")]))

    assert newest == {b"a": b"v"}
    assert alarms(caplog) == []
    assert loading.position == 5


def test_a_claim_in_a_batch_with_data_and_a_compressed_claim_are_claims() -> None:
    with_data = replace(claim(5, 1), records=((b"a", b"1"),))
    compressed = replace(claim(5, 2), codec=GZIP)

    newest, loading = load(Log.of([with_data, data(5, 1, b"b"), compressed, data(5, 2, b"c")]))

    assert set(newest) == {b"a", b"b", b"c"}
    assert loading.audit.state.owner == (5, 2)


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

    with pytest.raises(UnsuitableTopic, match=expected) as raised:
        load(log)
    with pytest.raises(UnsuitableTopic, match=expected):
        follow(log, ClaimHistory("offsets"))

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
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))

    for one in (loading, following):
        with pytest.raises(CorruptRecords, match="offsets-3: the record batch at offset 2 is damaged") as raised:
            one.add(log.read(0, 3))
        assert (raised.value.partition, raised.value.offset) == (PARTITION, 2)

    assert newest[b"a"] == b"v"
    assert b"b" not in newest
    assert [record.key for record in following.take(10)] == [b"a"]


def test_a_load_keeps_values_from_before_even_if_it_needs_a_second_pass() -> None:
    newest: dict[bytes, bytes | None] = {b"old": b"1", b"a": b"1"}
    log = Log.of([data(4, 9, b"a", b"b"), claim(5, 0), data(5, 0, b"c")])
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))

    loading.add(log.read(0, 9))
    assert not loading.finish()
    loading.add(log.read(0, 9))

    assert loading.finish()
    assert newest == {b"old": b"1", b"a": b"1", b"c": b"v"}
