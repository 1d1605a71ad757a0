"""Commits, fetches and deletions through the runtime on a log in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from runtimes import (
    PARTITIONS,
    QUICK,
    UNAVAILABLE,
    Lease,
    commit,
    manager,
    offset,
    scenario,
    shard_group_of,
    until,
    written,
)

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import TimedOut, Unreachable
from offsetmgr.manager.log.memory import Failure, MemoryLog
from offsetmgr.manager.protocol_values import CommitResponse, FetchRequest
from offsetmgr.manager.runtime import ManagerConfig


def test_a_commit_is_visible_once_it_is_acknowledged_and_not_before() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 41))])
            log.hold = True
            answer = runtime.commit(commit("g", 42))
            await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
            assert not answer.done()
            assert offset(runtime, "g") == 41
            log.advance_high_watermark()
            assert await answer == CommitResponse()
            assert offset(runtime, "g") == 42

    scenario(work)


def test_commits_during_an_append_join_the_next_one() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            log.hold = True
            first = runtime.commit(commit("g", 0))
            await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
            others = []
            for number in range(1, 100):
                others.append(runtime.commit(commit("g", number)))
                await asyncio.sleep(0)
            assert log.advance_high_watermark() == 1
            await first
            await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
            assert log.advance_high_watermark() == 1
            await written(others)
            assert runtime.counters.appends == 2
            assert offset(runtime, "g") == 99

    scenario(work)


def test_an_append_is_bounded_in_records() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(max_append_records=100, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            answers = [runtime.commit(commit("g", 0))]
            await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
            for number in range(100):
                answers.append(runtime.commit(commit("g", number, partitions=10)))
                await asyncio.sleep(0)
            log.hold = False
            log.advance_high_watermark()
            await written(answers)
            assert runtime.counters.appends == 11

    scenario(work)


def test_groups_of_all_shard_groups_are_served_and_listed() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            groups = [f"group-{number}" for number in range(200)]
            await written([runtime.commit(commit(group, number)) for number, group in enumerate(groups)])
            assert [offset(runtime, group) for group in groups] == list(range(200))
            error, listed = runtime.list_groups()
            assert (error, sorted(listed)) == (ErrorCode.NONE, sorted(groups))
            assert {shard_group_of(runtime, group) for group in groups} == set(range(8))

    scenario(work)


def test_deletes_go_through_the_log_and_an_unknown_group_is_an_error() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 5, partitions=3))])
            assert (await runtime.delete_offsets("g", [("t", [1])])).error == ErrorCode.NONE
            assert runtime.fetch(FetchRequest("g", None)).topics == [("t", [(0, 5, -1, "", 0), (2, 5, -1, "", 0)])]
            assert await runtime.delete_group("g") == ErrorCode.NONE
            assert offset(runtime, "g") == -1
            assert await runtime.delete_group("g") == ErrorCode.GROUP_ID_NOT_FOUND
        async with manager(log) as runtime:
            assert offset(runtime, "g") == -1

    scenario(work)


def test_wait_for_writes_waits_for_earlier_writes_only() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            assert runtime.wait_for_writes("g").done()
            log.hold = True
            answer = runtime.commit(commit("g", 1))
            earlier_writes = runtime.wait_for_writes("g")
            await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
            later = runtime.commit(commit("g", 2))
            await asyncio.sleep(0)
            assert not earlier_writes.done()
            log.advance_high_watermark()
            await earlier_writes
            assert answer.done()
            assert not later.done()

    scenario(work)


def test_wait_for_writes_waits_for_an_append_whose_commit_has_timed_out() -> None:
    log = MemoryLog(PARTITIONS)
    lease = Lease()

    async def work() -> None:
        async with manager(log, lease) as runtime:
            shard_group = shard_group_of(runtime, "g")
            log.fail_next_append(shard_group, Failure.UNKNOWN_OPEN_WRITTEN)
            log.fail_next_claim(shard_group, Unreachable("broker"))
            lease.good = False  # the outcome stays unknown until the lease is good again
            answer = runtime.commit(commit("g", 1))
            earlier_writes = runtime.wait_for_writes("g")
            assert await answer == UNAVAILABLE
            assert not earlier_writes.done()
            assert not runtime.wait_for_writes("g").done()
            lease.good = True
            await earlier_writes
            assert offset(runtime, "g") == 1

    scenario(work)


@pytest.mark.slow
def test_wait_for_writes_times_out_while_the_outcome_of_an_append_is_unknown() -> None:
    log = MemoryLog(PARTITIONS)
    config = replace(QUICK, commit_timeout_s=1.0, claim_timeout_s=0.1)
    lease = Lease()

    async def work() -> None:
        async with manager(log, lease, config) as runtime:
            log.fail_next_append(shard_group_of(runtime, "g"), Failure.UNKNOWN_OPEN_WRITTEN)
            answer = runtime.commit(commit("g", 1))
            earlier_writes = runtime.wait_for_writes("g")
            lease.good = False
            assert await answer == UNAVAILABLE
            with pytest.raises(TimedOut):
                await earlier_writes

    scenario(work)


def test_backpressure_lasts_until_half_of_the_records_in_flight_are_written() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(max_pending_records=100, max_append_records=10, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            assert runtime.backpressure() is None
            answers = [runtime.commit(commit("g", number, partitions=10)) for number in range(10)]
            relieved = runtime.backpressure()
            assert relieved is not None
            for _ in range(4):
                await until(lambda: log.advance_high_watermark() == 1)
            await asyncio.gather(*answers[:4])
            assert not relieved.done()
            log.hold = False
            log.advance_high_watermark()
            await relieved
            await written(answers)
            assert runtime.backpressure() is None

    scenario(work)
