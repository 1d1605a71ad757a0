"""`MemoryLog`: the contract of `PartitionLog`, and its methods that inject failures and compact."""

from __future__ import annotations

import pytest

from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog
from offsetmgr.manager.log.memory import Failure, MemoryLog

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.testing.blocking_writer import BlockingWriter  # noqa: E402
from offsetmgr.testing.log_contract import LogContract  # noqa: E402
from offsetmgr.testing.log_read_contract import PARTITIONS  # noqa: E402

Record = tuple[bytes, bytes | None]


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

    if error is not AppendRejected:  # the writer cannot continue
        with pytest.raises((OutcomeUnknown, Fenced)):
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
