"""Shard groups that are assigned to the runtime, revoked and fenced, and the close of the runtime."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from runtimes import (
    LOADING,
    NOT_COORDINATOR,
    PARTITIONS,
    QUICK,
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
from offsetmgr.manager.log.memory import MemoryLog
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime, Role
from offsetmgr.manager.runtime.shard_writer import ShardWriter
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.testing.blocking_writer import BlockingWriter


def test_an_owner_fenced_by_a_successor_acknowledges_nothing_and_leaves_the_shard_group() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()

    async def work() -> None:
        async with manager(log, lease) as runtime:
            shard_group = shard_group_of(runtime, "g")
            BlockingWriter(log.writer(shard_group)).claim(1)
            answers = [runtime.commit(commit("g", 1)), runtime.commit(commit("g", 2))]
            assert await asyncio.gather(*answers) == [NOT_COORDINATOR] * 2
            await until(lambda: bool(lease.losses))
            assert [lost for lost, _ in lease.losses] == [shard_group]
            assert fetch_error(runtime, "g") == ErrorCode.NOT_COORDINATOR
            assert await runtime.commit(commit("g", 3)) == NOT_COORDINATOR
            # After the next assignment, it serves the shard group again.
            runtime.on_assigned(shard_group)
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            await written([runtime.commit(commit("g", 4))])

    scenario(work)


def test_a_shard_group_that_was_revoked_is_not_kept_in_memory_until_the_next_refresh_of_its_claim() -> None:
    def writers() -> int:
        gc.collect()
        return sum(isinstance(one, ShardWriter) for one in gc.get_objects())

    async def work() -> None:
        async with manager(MemoryLog(PARTITIONS), Lease()) as runtime:
            before = writers()
            await runtime.on_revoked(shard_group_of(runtime, "g"))
            assert writers() == before - 1

    scenario(work)


def test_without_a_lease_no_cached_offset_is_returned() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()

    async def work() -> None:
        async with manager(log, lease) as runtime:
            await written([runtime.commit(commit("g", 1))])
            lease.good = False
            assert fetch_error(runtime, "g") == ErrorCode.NOT_COORDINATOR
            assert await runtime.delete_group("unknown") == ErrorCode.NOT_COORDINATOR
            assert runtime.list_groups() == (ErrorCode.NOT_COORDINATOR, ())
            assert runtime.ownership_error("g") == ErrorCode.NOT_COORDINATOR
            lease.good = True
            assert offset(runtime, "g") == 1

    scenario(work)


def test_a_claim_that_ends_after_the_lease_loads_and_serves_nothing() -> None:
    """The manager freezes between the assignment and the claim: the lease has expired when the claim returns."""
    log, lease = MemoryLog(PARTITIONS), Lease()
    claimed = threading.Event()
    plain = log.writer

    def writer(shard_group: int) -> Any:
        made = plain(shard_group)
        claim = made.claim

        async def late(timeout_s: float) -> Any:
            lease.good = False
            ends = await claim(timeout_s)
            claimed.set()
            return ends

        made.claim = late  # type: ignore[method-assign]
        return made

    async def work() -> None:
        runtime = ManagerRuntime(log, AvroRecordFormat(), lease, QUICK)
        await runtime.start()
        log.writer = writer  # type: ignore[method-assign]
        runtime.on_assigned(0)
        await until(claimed.is_set)
        group = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == 0)
        assert await runtime.commit(commit(group, 1)) == LOADING
        assert fetch_error(runtime, group) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        log.writer = plain  # type: ignore[method-assign]
        await asyncio.sleep(0.1)  # long enough for the task to continue, if it did
        assert runtime.status()[0].state == "loading"
        await runtime.on_revoked(0)
        assert log.records(0) == []
        await runtime.close()

    scenario(work)


def test_a_revoked_shard_group_finishes_the_commits_in_flight_and_rejects_new_ones() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            shard_group = shard_group_of(runtime, "g")
            log.hold = True
            answers = [runtime.commit(commit("g", 1))]
            await until(lambda: log.unfinished(shard_group))
            answers.append(runtime.commit(commit("g", 2)))
            revocation = asyncio.create_task(runtime.on_revoked(shard_group))
            await asyncio.sleep(0)
            assert await runtime.commit(commit("g", 3)) == NOT_COORDINATOR
            assert fetch_error(runtime, "g") == ErrorCode.NOT_COORDINATOR
            log.hold = False
            log.advance_high_watermark()
            await revocation
            await written(answers)
            assert runtime.status()[runtime.partition_of("g")].role is Role.STANDBY

    scenario(work)


def test_a_shard_group_assigned_during_its_revocation_is_served_again() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            shard_group = shard_group_of(runtime, "g")
            await written([runtime.commit(commit("g", 1))])
            epoch = runtime.ownership_epoch("g")
            revocation = asyncio.create_task(runtime.on_revoked(shard_group))
            await asyncio.sleep(0)
            runtime.on_assigned(shard_group)
            await revocation
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            assert offset(runtime, "g") == 1
            assert runtime.ownership_epoch("g") == epoch + 1

    scenario(work)


def test_a_failed_claim_is_reported_and_retried() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(retry_pause_s=0.05, standby=False)
    again = threading.Event()

    class LeaseForTwoClaims(Lease):
        """Is valid for the first claim of the shard group's writer, and again once ``again`` is set."""

        checks = 0

        def valid(self) -> bool:
            if threading.current_thread() is threading.main_thread():
                return True
            self.checks += 1
            return self.checks == 1 or again.is_set()

    async def work() -> None:
        runtime = ManagerRuntime(log, AvroRecordFormat(), LeaseForTwoClaims(), config)
        await runtime.start()
        log.fail_next_claim(3, Unreachable("broker", "no answer"))
        runtime.on_assigned(3)
        await until(lambda: runtime.status()[3].state == "failed")
        assert runtime.status()[3].last_error == "Unreachable: broker: no answer"
        group = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == 3)
        assert fetch_error(runtime, group) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert runtime.list_groups() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
        again.set()
        await until(lambda: runtime.status()[3].state == "active")
        await runtime.close()

    scenario(work)


def test_closing_waits_for_commits_in_flight_and_rejects_new_ones() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            log.hold = True
            answer = runtime.commit(commit("g", 1))
            await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
            closing = asyncio.create_task(runtime.close())
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NOT_COORDINATOR)
            assert await runtime.commit(commit("g", 2)) == NOT_COORDINATOR
            assert not closing.done()
            log.hold = False
            log.advance_high_watermark()
            await closing
            await written([answer])
            runtime.on_assigned(0)
            assert runtime.ownership_error("g") == ErrorCode.NOT_COORDINATOR
        # The last action of a thread is to report its end.
        await until(
            lambda: not any(thread.name.startswith("offsetmgr-shard-group-") for thread in threading.enumerate())
        )

    scenario(work)


def test_closing_is_bounded_when_the_log_does_not_answer() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(commit_timeout_s=0.2, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            answers = [runtime.commit(commit(str(number), 1)) for number in range(50)]
            with Stopwatch() as watch:
                await runtime.close()
            assert watch.seconds < 5  # 10 s if the commits were awaited in turn
            assert await asyncio.gather(*answers) == [UNAVAILABLE] * 50

    scenario(work)
