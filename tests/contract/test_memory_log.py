"""`MemoryLog`: the contract of `PartitionLog`, and its methods that inject failures and compact."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import pytest

from offsetmgr.core.errors import TimedOut
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog
from offsetmgr.manager.log.memory import Append, Failure, MemoryLog
from offsetmgr.records.base import EncodedRecord

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.testing.blocking_writer import LOOP, BlockingWriter  # noqa: E402
from offsetmgr.testing.log_contract import LogContract  # noqa: E402
from offsetmgr.testing.log_read_contract import PARTITIONS  # noqa: E402


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(PARTITIONS)

    def recreate(self, log: PartitionLog) -> None:
        assert isinstance(log, MemoryLog)
        log.recreate()


def claimed(log: MemoryLog, shard_group: int) -> BlockingWriter:
    writer = BlockingWriter(log.writer(shard_group))
    writer.claim(1)
    return writer


def begun(log: MemoryLog, batches: Mapping[int, Sequence[EncodedRecord]]) -> Append:
    """An append in flight, of a new owner of shard group 1."""
    writer = log.writer(1)
    LOOP.run(writer.claim(1))
    return writer.begin(batches)


def values(log: MemoryLog, partition: int) -> list[bytes | None]:
    return [record.value for record in log.records(partition)]


def leave_unfinished(log: MemoryLog, shard_group: int, batches: Mapping[int, Sequence[EncodedRecord]]) -> None:
    """Claims the shard group, begins an append and abandons it, as a process that dies during an append does."""
    log.fail_next_append(shard_group, Failure.UNKNOWN_OPEN)
    with pytest.raises(OutcomeUnknown):
        claimed(log, shard_group).append(batches, 1)


def test_an_unfinished_append_moves_no_end_and_is_never_read() -> None:
    log = MemoryLog(PARTITIONS)
    claimed(log, 1).append({1: [(b"k", b"whole")]}, 1)
    reader = log.reader()
    reader.follow({1: 0, 9: 0})

    leave_unfinished(log, 1, {1: [(b"k", b"half")], 9: [(b"k", b"half")]})

    assert log.end_offsets([1, 9], 1) == {1: 3, 9: 2}  # two claims, and one record
    assert [record.value for record in reader.poll(10, 0)] == [b"whole"]


def test_a_claim_aborts_an_unfinished_append_and_the_end_offset_passes_it() -> None:
    log = MemoryLog(PARTITIONS)
    leave_unfinished(log, 1, {1: [(b"k", b"half")], 9: [(b"k", b"half")]})
    reader = log.reader()
    reader.follow({1: 0, 9: 0})

    successor = claimed(log, 1)

    assert log.end_offsets([1, 9], 1) == {1: 3, 9: 3}
    assert list(reader.poll(10, 0)) == []
    successor.append({9: [(b"k", b"whole")]}, 1)
    assert [record.value for record in reader.poll(10, 0)] == [b"whole"]


def test_a_pending_append_is_readable_once_the_high_watermark_advances() -> None:
    log = MemoryLog(PARTITIONS, hold=True)
    append = begun(log, {1: [(b"k", b"v")], 9: [(b"k", b"v")]})

    assert append.waiting
    assert log.end_offsets([1, 9], 1) == {1: 1, 9: 1}
    with pytest.raises(ValueError, match="still waits"):
        append.outcomes()

    assert log.advance_high_watermark() == 1

    assert append.outcomes() == {1: 1, 9: 1}
    assert log.end_offsets([1, 9], 1) == {1: 2, 9: 2}
    assert log.advance_high_watermark() == 0


def test_the_high_watermark_wakes_a_thread_that_waits_for_its_append() -> None:
    log = MemoryLog(PARTITIONS, hold=True)
    writer, ends = claimed(log, 1), []
    thread = threading.Thread(target=lambda: ends.append(writer.append({1: [(b"k", b"v")]}, 10)))
    thread.start()
    while not log.unfinished(1):
        time.sleep(0.001)

    log.advance_high_watermark(1)

    thread.join()
    assert ends == [{1: 1}]


def test_a_pending_append_that_times_out_is_aborted_and_the_writer_stays_usable() -> None:
    log = MemoryLog(PARTITIONS, hold=True)
    writer = claimed(log, 1)
    with pytest.raises(AppendRejected):
        writer.append({1: [(b"k", b"late")]}, 0.01)

    log.hold = False
    writer.append({1: [(b"k", b"next")]}, 1)

    assert values(log, 1) == [b"next"]


def test_a_claim_fences_a_pending_append() -> None:
    log = MemoryLog(PARTITIONS, hold=True)
    append = begun(log, {1: [(b"k", b"v")]})

    claimed(log, 1)

    assert isinstance(append.outcomes()[1], Fenced)
    assert values(log, 1) == []


@pytest.mark.parametrize(
    ("failure", "error", "before_claim", "after_claim"),
    [
        (Failure.NOT_WRITTEN, AppendRejected, [], []),
        (Failure.UNKNOWN_NOT_WRITTEN, OutcomeUnknown, [], []),
        (Failure.UNKNOWN_WRITTEN, OutcomeUnknown, [b"v"], [b"v"]),
        (Failure.UNKNOWN_OPEN, OutcomeUnknown, [], []),
        (Failure.UNKNOWN_OPEN_WRITTEN, OutcomeUnknown, [], [b"v"]),
        (Failure.FENCED, Fenced, [], []),
    ],
)
def test_an_injected_append_failure(
    failure: Failure, error: type[Exception], before_claim: list[bytes], after_claim: list[bytes]
) -> None:
    log = MemoryLog(PARTITIONS)
    writer = claimed(log, 1)
    log.fail_next_append(1, failure)

    with pytest.raises(error):
        writer.append({1: [(b"k", b"v")]}, 1)

    assert values(log, 1) == before_claim
    successor = claimed(log, 1)
    assert values(log, 1) == after_claim
    successor.append({1: [(b"k", b"heir")]}, 1)
    assert values(log, 1) == [*after_claim, b"heir"]


@pytest.mark.parametrize("failure", [f for f in Failure if f is not Failure.NOT_WRITTEN])
def test_a_writer_cannot_append_after_a_failure_other_than_a_rejection(failure: Failure) -> None:
    log = MemoryLog(PARTITIONS)
    writer = claimed(log, 1)
    log.fail_next_append(1, failure)
    for _ in range(2):
        with pytest.raises((OutcomeUnknown, Fenced)):
            writer.append({1: [(b"k", b"v")]}, 1)


def test_an_injected_claim_or_read_failure_occurs_once() -> None:
    log = MemoryLog(PARTITIONS)
    log.fail_next_claim(1, TimedOut("claim", "made to fail"))
    log.fail_next_read(TimedOut("read", "made to fail"))

    with pytest.raises(TimedOut):
        BlockingWriter(log.writer(1)).claim(1)
    with pytest.raises(TimedOut):
        log.end_offsets([1], 1)

    assert log.end_offsets([1], 1) == {1: 0}
    claimed(log, 1)


def test_compaction_keeps_the_newest_record_of_each_key_at_its_offset() -> None:
    log = MemoryLog(PARTITIONS)
    writer = claimed(log, 1)
    for value in (b"1", b"2", b"3"):
        writer.append({1: [(b"a", value), (b"b", value)]}, 1)
    offsets = {record.offset: record.value for record in log.records(1)}

    log.compact(1)

    assert {r.offset: r.value for r in log.records(1)} == {o: v for o, v in offsets.items() if v == b"3"}
    assert log.end_offsets([1], 1) == {1: 7}
    assert log.start_offsets([1], 1) == {1: 0}


def test_compaction_keeps_a_tombstone_for_one_pass_and_leaves_the_active_segment_alone() -> None:
    log = MemoryLog(PARTITIONS)
    writer = claimed(log, 1)
    writer.append({1: [(b"a", b"1")]}, 1)
    writer.append({1: [(b"a", None)]}, 1)
    active = log.end_offsets([1], 1)[1]
    writer.append({1: [(b"b", b"1")]}, 1)
    writer.append({1: [(b"b", b"2")]}, 1)

    log.compact(1, below=active)
    assert values(log, 1) == [None, b"1", b"2"]
    log.compact(1, below=active)
    assert values(log, 1) == [b"1", b"2"]


def test_a_reader_skips_records_below_the_log_start_offset() -> None:
    log = MemoryLog(PARTITIONS)
    writer = claimed(log, 1)
    for value in (b"1", b"2", b"3"):
        writer.append({1: [(b"k", value)]}, 1)

    log.delete_before(1, 3)

    reader = log.reader()
    reader.follow({1: 0})
    assert log.start_offsets([1], 1) == {1: 3}
    assert [record.value for record in reader.poll(10, 1)] == [b"3"]
