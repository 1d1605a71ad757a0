"""`MemoryLog`: the contract of `PartitionLog`, and its methods that inject failures and compact."""

from __future__ import annotations

import pytest
from blocking_writer import claimed
from log_contract import PARTITIONS, LogContract
from memory_log import Failure, MemoryLog

from offsetmgr.manager.log.base import AppendRejected, OutcomeUnknown, PartitionLog

Record = tuple[bytes, bytes | None]


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(PARTITIONS)

    def recreate(self, log: PartitionLog) -> None:
        assert isinstance(log, MemoryLog)
        log.recreate()


def values(log: MemoryLog, partition: int) -> list[bytes | None]:
    return [record.value for record in log.records(partition)]


@pytest.mark.parametrize(
    ("failure", "error", "before_claim", "after_claim"),
    [
        (Failure.NOT_WRITTEN, AppendRejected, [], []),
        (Failure.UNKNOWN_NOT_WRITTEN, OutcomeUnknown, [], []),
        (Failure.UNKNOWN_WRITTEN, OutcomeUnknown, [b"v"], [b"v"]),
        (Failure.UNKNOWN_OPEN, OutcomeUnknown, [], []),
        (Failure.UNKNOWN_OPEN_WRITTEN, OutcomeUnknown, [], [b"v"]),
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

    if error is not AppendRejected:  # the writer cannot continue
        with pytest.raises(OutcomeUnknown):
            writer.append({1: [(b"k", b"v")]}, 1)

    assert values(log, 1) == before_claim
    successor = claimed(log, 1)
    assert values(log, 1) == after_claim
    successor.append({1: [(b"k", b"heir")]}, 1)
    assert values(log, 1) == [*after_claim, b"heir"]


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
