"""The audit of a log from which the log cleaner removes claims while a reader reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audited_logs import PARTITION, Log, alarms, claim, data, load

from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.partition_follow import PartitionFollow
from offsetmgr.manager.log.kafka.partition_load import PartitionLoad

_BEFORE_CLEANING = [
    claim(5, 0), data(5, 0, b"a"), claim(5, 1), data(5, 1, b"b"), claim(6, 0, 5), data(6, 0, b"c"), claim(6, 1, 5),
    data(6, 1, b"d"),
]  # fmt: skip
_CLEANED = [data(5, 0, b"a"), data(5, 1, b"b"), data(6, 0, b"c"), claim(6, 1, 5), data(6, 1, b"d")]


def cleaned_log() -> Log:
    """The log of `_BEFORE_CLEANING` without all claims but the last one."""
    return Log.of([replace(one, gap=int(number < 3)) for number, one in enumerate(_CLEANED)])


def emptied_log() -> Log:
    """The log of `_BEFORE_CLEANING` with all claims but the last one emptied."""
    return Log.of([replace(one, claimed=None) if one.claimed is not None else one for one in _BEFORE_CLEANING[:-2]]
                  + _BEFORE_CLEANING[-2:])  # fmt: skip


@pytest.mark.parametrize("cleaned", [cleaned_log(), emptied_log()], ids=["removed", "emptied"])
@pytest.mark.parametrize("read_before", range(9))
def test_a_batch_whose_claim_was_removed_during_a_load_is_valid(
    cleaned: Log, read_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = Log.of(_BEFORE_CLEANING)
    assert before.end == cleaned.end
    newest: dict[bytes, bytes | None] = {}
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))
    if read_before:
        loading.add(before.read(0, read_before))
    while loading.position < before.end or not loading.finish():
        loading.add(cleaned.read(loading.position, 2))

    assert newest == dict.fromkeys((b"a", b"b", b"c", b"d"), b"v")
    assert loading.audit.state.invalid_keys == set()
    assert alarms(caplog) == []


@pytest.mark.parametrize("cleaned", [cleaned_log(), emptied_log()], ids=["removed", "emptied"])
@pytest.mark.parametrize("read_before", range(9))
def test_a_follower_returns_a_batch_whose_claim_was_removed_before_it_came_there(
    cleaned: Log, read_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))
    if read_before:
        following.add(Log.of(_BEFORE_CLEANING).read(0, read_before))
    while following.fetch_offset < cleaned.end:
        following.add(cleaned.read(following.fetch_offset, 2))

    assert [record.key for record in following.take(10)] == [b"a", b"b", b"c", b"d"]
    assert alarms(caplog) == []


@pytest.mark.parametrize("batches", [1, 9])
def test_a_foreign_batch_behind_a_gap_is_invalid_although_a_later_claim_lists_its_producer(
    batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log.of([
        claim(5, 0), replace(data(5, 0, b"a"), gap=1), data(7, 0, b"x"), data(5, 0, b"b"), data(7, 0, b"y"),
        claim(5, 1, 7),
    ])  # fmt: skip
    newest, loading = load(log, batches=batches)
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))
    while following.fetch_offset < log.end:
        following.add(log.read(following.fetch_offset, batches))

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"x", b"y"}
    assert [record.key for record in following.take(10)] == [b"a", b"b"]
    assert [offset for offset, *_ in alarms(caplog)] == [3, 5, 3, 5]


def test_a_claim_is_read_again_for_batches_that_were_read_after_the_last_time() -> None:
    """The log cleaner removes the claim after the reader has found it once."""
    before = Log.of([claim(5, 0), replace(data(5, 0, b"a"), gap=1), data(7, 0, b"x"), claim(6, 0, 5), data(6, 0, b"c")])
    cleaned = Log.of([
        replace(data(5, 0, b"a"), gap=2), data(7, 0, b"x"), replace(data(6, 0, b"c"), gap=1), claim(6, 1, 5),
    ])  # fmt: skip
    newest: dict[bytes, bytes | None] = {}
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))
    for _ in range(2):
        loading.add(before.read(loading.position, 3))
    assert (loading.position, loading.audit.state.invalid_keys) == (4, {b"x"})

    while loading.position < cleaned.end or not loading.finish():
        loading.add(cleaned.read(loading.position, 2))

    assert newest == {b"a": b"v", b"c": b"v"}
    assert loading.audit.state.invalid_keys == {b"x"}
