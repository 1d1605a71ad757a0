"""Requests to the runtime on a log in memory: commits, fetches and deletions, appends that fail or have an unknown
outcome, and expiration."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from async_tests import async_test
from blocking_writer import BlockingWriter
from confluent_kafka import KafkaError
from memory_log import Failure, MemoryLog
from runtimes import (
    PARTITIONS,
    QUICK,
    UNAVAILABLE,
    Lease,
    commit,
    fetch_error,
    manager,
    manager_of_new_log,
    offset,
    shard_group_of,
    until,
    written,
)
from stopwatch import Stopwatch

from offsetmgr.config.manager_settings import HOUR_MS, ManagerSettings
from offsetmgr.core.errors import TimedOut, Unreachable
from offsetmgr.manager.results import CommitResponse, FetchRequest

# --- requests --------------------------------------------------------------------------------------------------


@async_test
async def test_a_commit_is_visible_once_it_is_acknowledged_and_not_before() -> None:
    async with manager_of_new_log() as (log, runtime):
        await written([runtime.commit(commit("g", 41))])
        log.hold = True
        answer = runtime.commit(commit("g", 42))
        await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
        assert not answer.done()
        assert offset(runtime, "g") == 41
        log.advance_high_watermark()
        assert await answer == CommitResponse()
        assert offset(runtime, "g") == 42


@async_test
async def test_an_append_is_bounded_in_records() -> None:
    config = ManagerSettings(max_append_records=100, standby=False)
    async with manager_of_new_log(config=config) as (log, runtime):
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


@async_test
async def test_deletes_go_through_the_log_and_an_unknown_group_is_an_error() -> None:
    async with manager_of_new_log() as (log, runtime):
        await written([runtime.commit(commit("g", 5, partitions=3))])
        assert (await runtime.delete_offsets("g", [("t", [1])])).error == KafkaError.NO_ERROR
        assert runtime.fetch(FetchRequest("g", None)).topics == [("t", [(0, 5, -1, "", 0), (2, 5, -1, "", 0)])]
        assert await runtime.delete_group("g") == KafkaError.NO_ERROR
        assert offset(runtime, "g") == -1
        assert await runtime.delete_group("g") == KafkaError.GROUP_ID_NOT_FOUND
    async with manager(log) as runtime:
        assert offset(runtime, "g") == -1


@async_test
async def test_wait_for_writes_waits_for_earlier_writes_only() -> None:
    async with manager_of_new_log() as (log, runtime):
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


@async_test
async def test_wait_for_writes_waits_for_an_append_whose_commit_has_timed_out() -> None:
    lease = Lease()
    async with manager_of_new_log(lease) as (log, runtime):
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


@pytest.mark.slow
@async_test
async def test_wait_for_writes_times_out_while_the_outcome_of_an_append_is_unknown() -> None:
    config = replace(QUICK, commit_timeout_s=1.0, claim_timeout_s=0.1)
    lease = Lease()
    async with manager_of_new_log(lease, config) as (log, runtime):
        log.fail_next_append(shard_group_of(runtime, "g"), Failure.UNKNOWN_OPEN_WRITTEN)
        answer = runtime.commit(commit("g", 1))
        earlier_writes = runtime.wait_for_writes("g")
        lease.good = False
        assert await answer == UNAVAILABLE
        with pytest.raises(TimedOut):
            await earlier_writes


@async_test
async def test_backpressure_lasts_until_half_of_the_records_in_flight_are_written() -> None:
    config = ManagerSettings(max_pending_records=100, max_append_records=10, standby=False)
    async with manager_of_new_log(config=config) as (log, runtime):
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


# --- appends that fail -----------------------------------------------------------------------------------------


@pytest.mark.slow
@async_test
async def test_a_commit_is_answered_at_its_timeout_counted_from_the_call() -> None:
    config = ManagerSettings(commit_timeout_s=2.0, retry_pause_s=0.01, standby=False)
    async with manager_of_new_log(config=config) as (log, runtime):
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


@async_test
async def test_only_the_commit_that_is_too_large_fails() -> None:
    log = MemoryLog(PARTITIONS, max_batch_bytes=20_000)
    async with manager(log) as runtime:
        answers = [runtime.commit(commit("g", number, partitions=4)) for number in range(10)]
        answers.append(runtime.commit(commit("g", 999, partitions=10, metadata="x" * 2_000)))
        answers += [runtime.commit(commit("g", number, partitions=4)) for number in range(10, 20)]
        results = await asyncio.gather(*answers)
        assert [result.error for result in results] == [0] * 10 + [KafkaError.INVALID_COMMIT_OFFSET_SIZE] + [0] * 10
        assert offset(runtime, "g") == 19
        assert runtime.status()[runtime.partition_of("g")].offsets == 4


@pytest.mark.parametrize(
    ("failure", "found"),
    [
        (Failure.NOT_WRITTEN, 1),
        (Failure.UNKNOWN_NOT_WRITTEN, 1),
        (Failure.UNKNOWN_OPEN, 1),
        (Failure.UNKNOWN_WRITTEN, 2),
        (Failure.UNKNOWN_OPEN_WRITTEN, 2),
    ],
)
@async_test
async def test_a_failed_append_counts_if_it_is_in_the_log_and_the_next_commits_follow_it(failure, found: int) -> None:
    async with manager_of_new_log() as (log, runtime):
        shard_group = shard_group_of(runtime, "g")
        other = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == shard_group and g != "g")
        await written([runtime.commit(commit("g", 1))])
        log.fail_next_append(shard_group, failure)
        assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
        await written([runtime.commit(commit(other, 7))])
        assert offset(runtime, "g") == found
        assert offset(runtime, other) == 7
        assert runtime.status()[runtime.partition_of("g")].state == "active"
        assert runtime.counters.unknown_outcomes == (failure is not Failure.NOT_WRITTEN)
        # No write counts as in flight any more.
        assert await runtime.delete_group("g") == KafkaError.NO_ERROR
        assert offset(runtime, "g") == -1
        assert await runtime.delete_group("g") == KafkaError.GROUP_ID_NOT_FOUND


@async_test
async def test_while_an_outcome_is_unknown_fetches_return_acknowledged_offsets_and_commits_wait() -> None:
    async with manager_of_new_log() as (log, runtime):
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


@pytest.mark.slow
@async_test
async def test_after_an_unknown_outcome_no_shard_group_is_claimed_without_a_lease() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()
    config = ManagerSettings(commit_timeout_s=1.0, standby=False)
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
        assert fetch_error(runtime, "g") == KafkaError.NOT_COORDINATOR


@async_test
async def test_a_shard_group_whose_state_diverges_from_the_log_is_reloaded() -> None:
    """After a defect, or with full memory, the manager must serve only the content of the log."""
    async with manager(MemoryLog(PARTITIONS)) as runtime:
        await written([runtime.commit(commit("g", 1))])
        shard = runtime._serving[runtime.partition_of("g")]
        assert shard is not None
        shard.acknowledged = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
        assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
        assert runtime.ownership_error("g") != KafkaError.NO_ERROR
        await until(lambda: runtime.ownership_error("g") == KafkaError.NO_ERROR)
        assert offset(runtime, "g") == 2
        await written([runtime.commit(commit("g", 3))])


# --- background work -------------------------------------------------------------------------------------------


@pytest.mark.slow
@async_test
async def test_a_request_for_members_without_an_answer_does_not_stop_the_housekeeping() -> None:
    log, requested = MemoryLog(PARTITIONS), []

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        requested.append(groups)
        await asyncio.Event().wait()
        return {}

    config = replace(QUICK, retention_ms=1, expiry_interval_s=0.05, commit_timeout_s=1.0)
    async with manager(log, config=config, members=members) as runtime:
        await written([runtime.commit(commit("g", 1))])
        await until(lambda: len(requested) > 2)
        assert offset(runtime, "g") == 1


@async_test
async def test_offsets_expire_but_not_those_of_groups_with_members() -> None:
    log = MemoryLog(PARTITIONS)
    requested: list[str] = []

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        requested.extend(groups)
        return {group: group == "active" for group in groups if group != "unknown"}

    config = ManagerSettings(retention_ms=0, max_activity_age_ms=HOUR_MS, expiry_interval_s=0.2, standby=False)
    async with manager(log, config=config, members=members) as runtime:
        await written([runtime.commit(commit(group, 1)) for group in ("idle", "active", "unknown")])
        await until(lambda: offset(runtime, "idle") == -1)
        await until(lambda: set(requested) == {"idle", "active", "unknown"})
        assert offset(runtime, "active") == 1
        assert offset(runtime, "unknown") == 1
        assert runtime.counters.expired_offsets == 1


@pytest.mark.parametrize("turns", range(6))
@async_test
async def test_the_housekeeping_ends_if_an_answer_about_members_arrives_during_the_close(turns: int) -> None:
    """``turns``: turns of the loop between the two. After one of them the answer has arrived, but is not processed."""
    config = ManagerSettings(retention_ms=0, expiry_interval_s=0.02, standby=False)
    requested, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        requested.set()
        found: Mapping[str, bool] = await answer
        return found

    async with manager(MemoryLog(PARTITIONS), config=config, members=members) as runtime:
        await written([runtime.commit(commit("g", 1))])
        await requested.wait()
        answer.set_result({"g": True})
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.create_task(runtime.close())
        await asyncio.wait({closing}, timeout=240)
        assert closing.done()


@async_test
async def test_the_metrics_count_shards_offsets_and_failed_commits() -> None:
    async with manager_of_new_log() as (log, runtime):
        await written([runtime.commit(commit("g", 1, partitions=3))])
        log.fail_next_append(shard_group_of(runtime, "g"), Failure.NOT_WRITTEN)
        await runtime.commit(commit("g", 2))
        found = runtime.metrics()
    assert found['shards{role="owner",state="active"}'] == 16
    assert found["cache_entries"] == 3
    assert found['commit_errors_total{code="15"}'] == 1
    assert [name for name in found if not re.fullmatch(r'[a-z_]+(\{([a-z]+="\w+",?)+\})?', name)] == []
