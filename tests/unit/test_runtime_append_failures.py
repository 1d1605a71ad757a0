"""Appends that fail or have an unknown outcome: the error codes for clients, and the state in memory."""

from __future__ import annotations

import asyncio

import pytest
from runtimes import (
    PARTITIONS,
    UNAVAILABLE,
    Lease,
    commit,
    fetch_error,
    manager,
    offset,
    scenario,
    shard_group_of,
    until,
    written,
)
from stopwatch import Stopwatch

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import Unreachable
from offsetmgr.manager.log.memory import Failure, MemoryLog
from offsetmgr.manager.runtime import ManagerConfig
from offsetmgr.testing.blocking_writer import BlockingWriter


def test_a_definitely_failed_append_leaves_the_state_unchanged_and_the_next_one_succeeds() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            log.fail_next_append(shard_group_of(runtime, "g"), Failure.NOT_WRITTEN)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            assert offset(runtime, "g") == 1
            await written([runtime.commit(commit("g", 3))])
            assert offset(runtime, "g") == 3

    scenario(work)


@pytest.mark.slow
def test_a_commit_is_answered_at_its_timeout_counted_from_the_call() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(commit_timeout_s=2.0, retry_pause_s=0.01, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            with Stopwatch() as watch:
                first = runtime.commit(commit("g", 1))
                await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
                second = runtime.commit(commit("g", 2))
                assert await asyncio.gather(first, second) == [UNAVAILABLE] * 2
            assert watch.seconds < 3.0  # 4 s if the second timeout began after the first
            assert offset(runtime, "g") == -1
            log.hold = False
            await written([runtime.commit(commit("g", 3))])
            assert [record.value for record in log.records(runtime.partition_of("g"))] != []
            assert offset(runtime, "g") == 3

    scenario(work)


def test_only_the_commit_that_is_too_large_fails() -> None:
    log = MemoryLog(PARTITIONS, max_batch_bytes=20_000)

    async def work() -> None:
        async with manager(log) as runtime:
            answers = [runtime.commit(commit("g", number, partitions=4)) for number in range(10)]
            answers.append(runtime.commit(commit("g", 999, partitions=10, metadata="x" * 2_000)))
            answers += [runtime.commit(commit("g", number, partitions=4)) for number in range(10, 20)]
            results = await asyncio.gather(*answers)
            assert [result.error for result in results] == [0] * 10 + [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] + [0] * 10
            assert offset(runtime, "g") == 19
            assert runtime.status()[runtime.partition_of("g")].offsets == 4

    scenario(work)


def test_an_unknown_outcome_is_resolved_as_written() -> None:
    """Commits that arrived meanwhile are written after it."""
    _unknown(Failure.UNKNOWN_WRITTEN, found=2)
    _unknown(Failure.UNKNOWN_OPEN_WRITTEN, found=2)


def test_an_unknown_outcome_is_resolved_as_not_written() -> None:
    _unknown(Failure.UNKNOWN_NOT_WRITTEN, found=1)
    _unknown(Failure.UNKNOWN_OPEN, found=1)


def _unknown(failure: Failure, found: int) -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            shard_group = shard_group_of(runtime, "g")
            other = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == shard_group and g != "g")
            await written([runtime.commit(commit("g", 1))])
            log.fail_next_append(shard_group, failure)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            await written([runtime.commit(commit(other, 7))])
            assert offset(runtime, "g") == found
            assert offset(runtime, other) == 7
            assert runtime.status()[runtime.partition_of("g")].state == "active"
            assert runtime.counters.unknown_outcomes == 1
            # No write counts as in flight any more.
            assert await runtime.delete_group("g") == ErrorCode.NONE
            assert offset(runtime, "g") == -1
            assert await runtime.delete_group("g") == ErrorCode.GROUP_ID_NOT_FOUND

    scenario(work)


def test_while_an_outcome_is_unknown_fetches_return_acknowledged_offsets_and_commits_wait() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            shard_group = shard_group_of(runtime, "g")
            await written([runtime.commit(commit("g", 1))])
            for _ in range(5):
                log.fail_next_claim(shard_group, Unreachable("broker"))
            log.fail_next_append(shard_group, Failure.UNKNOWN_WRITTEN)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            waiting = runtime.commit(commit("g", 3))
            await until(lambda: runtime.status()[runtime.partition_of("g")].last_error.startswith("Unreachable"))
            assert runtime.status()[runtime.partition_of("g")].recovering
            assert offset(runtime, "g") == 1
            await written([waiting])
            assert offset(runtime, "g") == 3
            assert not runtime.status()[runtime.partition_of("g")].recovering

    scenario(work)


@pytest.mark.slow
def test_after_an_unknown_outcome_no_shard_group_is_claimed_without_a_lease() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()
    config = ManagerConfig(commit_timeout_s=1.0, standby=False)

    async def work() -> None:
        async with manager(log, lease, config) as runtime:
            shard_group = shard_group_of(runtime, "g")
            log.fail_next_append(shard_group, Failure.UNKNOWN_WRITTEN)
            lease.good = False
            successor = BlockingWriter(log.writer(shard_group))
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            successor.claim(1)
            assert await runtime.commit(commit("g", 3)) == UNAVAILABLE  # it waits for the lease until its timeout
            successor.append(
                {runtime.partition_of("g"): [(b"\x00\x00k", None)]}, 1
            )  # this manager has not fenced the successor
            assert fetch_error(runtime, "g") == ErrorCode.NOT_COORDINATOR

    scenario(work)


def test_a_shard_group_whose_state_diverges_from_the_log_is_reloaded() -> None:
    """After a defect, or with full memory, the manager must serve only the content of the log."""
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            shard = runtime._serving[runtime.partition_of("g")]
            assert shard is not None
            shard.acknowledged = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            assert runtime.ownership_error("g") != ErrorCode.NONE
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            assert offset(runtime, "g") == 2
            await written([runtime.commit(commit("g", 3))])

    scenario(work)
