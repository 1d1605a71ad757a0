"""The audit of a log's batches: what a load and a follower know of earlier claims, also while the log cleaner removes
claims."""

from dataclasses import replace

import pytest
from audited_logs import NOW, PARTITION, Log, alarms, claim, data, follow, load

from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.kafka.log_follower import PartitionFollow
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.log_load import PartitionLoad
from offsetmgr.records.claim import CLAIM_KEY, Claim, encode_claim

# --- earlier claims --------------------------------------------------------------------------------------------


def test_a_second_load_knows_the_claim_before_its_start(caplog: pytest.LogCaptureFixture) -> None:
    history = LogHistory("offsets")
    log = Log.of([claim(5, 1, 4), data(5, 1, b"a"), data(5, 1, b"b"), data(5, 0, b"c"), data(6, 0, b"d")])
    load(log, 0, 2, history, batches=1)

    newest, loading = load(log, 2, None, history)

    assert newest == {b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"c", b"d"}
    assert loading.audit.state.claimed_at == 0
    assert loading.audit.state.producer_ids == {4, 5}
    load(log, 0, None, history)
    assert [offset for offset, *_ in alarms(caplog)] == [3, 4], "each batch is logged once"


def test_a_load_after_a_gap_in_the_knowledge_accepts_later_epochs_of_the_owner() -> None:
    """The owner refreshed its claim, and its process did not read the claim."""
    history = LogHistory("offsets")
    log = Log.of([
        claim(5, 1, 4), claim(5, 2, 4), data(5, 2, b"a"), data(5, 0, b"b"), data(4, 9, b"c"), data(6, 0, b"d"),
        data(5, 1, b"e"),
    ])  # fmt: skip
    load(log, 0, 1, history, batches=1)

    newest, loading = load(log, 2, None, history)

    assert newest == {b"a": b"v", b"e": b"v"}
    assert loading.audit.state.invalid_keys == {b"b", b"c", b"d"}


def test_invalid_keys_are_known_to_the_next_load() -> None:
    history = LogHistory("offsets")
    log = Log.of([claim(5, 1), data(5, 0, b"a", b"b"), data(5, 1, b"c"), data(5, 1, b"b")])
    follow(Log(log.chunks[:2], log.starts[:2], log.ends[:2]), history)

    _, loading = load(log, 3, None, history)

    assert loading.audit.state.invalid_keys == {b"a"}


def test_a_recreated_topic_has_no_known_claims() -> None:
    history = LogHistory("offsets")
    load(Log.of([claim(5, 1), data(5, 0, b"a")]), history=history)
    history.forget()

    newest, _ = load(Log.of([claim(6, 0), data(6, 0, b"a")]), history=history)

    assert newest == {b"a": b"v"}


def test_a_claim_of_a_new_owner_or_of_an_earlier_version_does_not_hide_what_is_known_of_deleted_records() -> None:
    earlier = b'{"version":1,"token":"c","manager":"m","time_ms":1,"producer_ids":[5]}'
    history = LogHistory("offsets")
    audit = history.audit(0, 0)
    for offset, value in enumerate([encode_claim(Claim("a", "m", NOW, (5,), 10))[1], earlier]):
        audit.check(offset, ProducerEpoch(5, offset), [(CLAIM_KEY, value)])
    assert audit.state.owner == (5, 1)
    history.add_ids(0, [5])
    history.on_claimed(0)
    history.record(0, 2, audit.state)
    assert history.deleted.complete_from[0] == 10
    assert history.is_incomplete(0)  # the next claim repeats it


# --- claims that the log cleaner removes -----------------------------------------------------------------------


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
def test_a_batch_whose_claim_was_removed_before_a_reader_came_there_is_valid(cleaned, read_before: int, caplog) -> None:
    before = Log.of(_BEFORE_CLEANING)
    assert before.end == cleaned.end
    newest: dict[bytes, bytes | None] = {}
    loading = PartitionLoad("offsets", PARTITION, 0, newest, LogHistory("offsets"))
    following = PartitionFollow("offsets", PARTITION, 0, LogHistory("offsets"))
    if read_before:
        loading.add(before.read(0, read_before))
        following.add(before.read(0, read_before))
    while loading.fetch_offset < before.end or not loading.finish():
        loading.add(cleaned.read(loading.fetch_offset, 2))
    while following.fetch_offset < cleaned.end:
        following.add(cleaned.read(following.fetch_offset, 2))

    assert newest == dict.fromkeys((b"a", b"b", b"c", b"d"), b"v")
    assert loading.audit.state.invalid_keys == set()
    assert [record.key for record in following.take(10)] == [b"a", b"b", b"c", b"d"]
    assert alarms(caplog) == []


@pytest.mark.parametrize("batches", [1, 9])
def test_a_foreign_batch_behind_a_gap_is_invalid_although_a_later_claim_lists_its_producer(batches, caplog) -> None:
    log = Log.of([
        claim(5, 0), replace(data(5, 0, b"a"), gap=1), data(7, 0, b"x"), data(5, 0, b"b"), data(7, 0, b"y"),
        claim(5, 1, 7),
    ])  # fmt: skip
    newest, loading = load(log, batches=batches)
    following = PartitionFollow("offsets", PARTITION, 0, LogHistory("offsets"))
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
    loading = PartitionLoad("offsets", PARTITION, 0, newest, LogHistory("offsets"))
    for _ in range(2):
        loading.add(before.read(loading.fetch_offset, 3))
    assert (loading.fetch_offset, loading.audit.state.invalid_keys) == (4, {b"x"})

    while loading.fetch_offset < cleaned.end or not loading.finish():
        loading.add(cleaned.read(loading.fetch_offset, 2))

    assert newest == {b"a": b"v", b"c": b"v"}
    assert loading.audit.state.invalid_keys == {b"x"}


# --- followers -------------------------------------------------------------------------------------------------


def test_a_follower_waits_at_an_undecided_batch_until_it_finds_a_claim(caplog: pytest.LogCaptureFixture) -> None:
    log = Log.of([data(4, 0, b"a"), data(6, 0, b"b"), data(4, 1, b"c")])
    following = PartitionFollow("offsets", PARTITION, 0, LogHistory("offsets"))
    following.add(log.read(0, 9))
    assert following.take(10) == []
    assert (following.position, following.fetch_offset) == (0, 3)

    log = Log.of([data(4, 0, b"a"), data(6, 0, b"b"), data(4, 1, b"c"), claim(4, 2), data(4, 2, b"d")])
    following.add(log.read(3, 9))
    assert following.fetch_offset == 0
    following.add(log.read(0, 9))

    assert [record.key for record in following.take(10)] == [b"a", b"c", b"d"]
    assert following.position == 5
    assert [offset for offset, *_ in alarms(caplog)] == [1]


def test_a_follower_returns_records_in_parts() -> None:
    history = LogHistory("offsets")
    log = Log.of([claim(5, 0), data(5, 0, b"a", b"b", b"c"), data(5, 0, b"d")])
    following = PartitionFollow("offsets", PARTITION, 0, history)
    following.add(log.read(0, 9))

    assert [record.key for record in following.take(2)] == [b"a", b"b"]
    assert (following.position, following.buffered) == (3, 2)
    assert [(record.offset, record.value) for record in following.take(2)] == [(3, b"v"), (4, b"v")]
    assert (following.position, following.buffered) == (5, 0)
    assert history.audit(PARTITION, 5).is_owner(5, 0)
