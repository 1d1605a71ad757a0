"""The runtime claims a shard group only after the lease of its former owner has ended."""

from __future__ import annotations

import asyncio

from runtimes import LOADING, PARTITIONS, QUICK, Lease, commit, fetch_error, manager, scenario, shard_group_of, until

from offsetmgr.core.clock import boottime
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.log.memory import MemoryLog
from offsetmgr.manager.runtime import ManagerRuntime, Role
from offsetmgr.records.avro import AvroRecordFormat

WAIT_S = 0.4


class RecordingLog(MemoryLog):
    """A log that records the claims. ``writers`` are the shard groups for which the runtime has opened a writer."""

    def __init__(self) -> None:
        super().__init__(PARTITIONS)
        self.writers: list[int] = []

    def writer(self, shard_group: int):
        self.writers.append(shard_group)
        return super().writer(shard_group)


async def writers_before(log: RecordingLog, moment: float) -> list[int]:
    """Waits until the moment. Returns the writers that the runtime had opened shortly before."""
    found = list(log.writers)
    while True:
        seen = list(log.writers)
        if boottime() >= moment:
            return found
        found = seen
        await asyncio.sleep(0.01)


def test_a_shard_group_is_not_claimed_before_the_time_of_its_assignment() -> None:
    log = RecordingLog()

    async def work() -> None:
        async with manager(log, shard_groups=[]) as runtime:
            shard_group = shard_group_of(runtime, "g")
            not_before = boottime() + WAIT_S
            runtime.on_assigned(shard_group, not_before)
            assert await runtime.commit(commit("g", 1)) == LOADING
            assert fetch_error(runtime, "g") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            (status, *_) = [s for s in runtime.status() if s.shard_group == shard_group]
            assert (status.role, status.state) == (Role.OWNER, "initial")
            runtime.on_assigned(shard_group, boottime())  # a second assignment changes nothing
            assert await writers_before(log, not_before) == []
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            assert log.writers == [shard_group]

    scenario(work)


def test_a_shard_group_that_is_revoked_during_the_wait_is_not_claimed() -> None:
    log = RecordingLog()

    async def work() -> None:
        async with manager(log, shard_groups=[]) as runtime:
            runtime.on_assigned(0, boottime() + WAIT_S / 2)
            await runtime.on_revoked(0)
            runtime.on_assigned(1, boottime() + WAIT_S / 2)
            await until(lambda: log.writers != [])
            await asyncio.sleep(WAIT_S)
            assert log.writers == [1]

    scenario(work)


def test_a_shard_group_that_is_assigned_again_during_a_revocation_waits_for_the_later_time() -> None:
    log = RecordingLog()

    async def work() -> None:
        async with manager(log, shard_groups=[0]) as runtime:
            revocation = asyncio.create_task(runtime.on_revoked(0))
            await asyncio.sleep(0)
            not_before = boottime() + WAIT_S
            runtime.on_assigned(0, not_before)
            await revocation
            assert await writers_before(log, not_before) == [0]
            await until(lambda: log.writers == [0, 0])

    scenario(work)


def test_a_runtime_that_closes_during_the_wait_claims_nothing() -> None:
    log = RecordingLog()

    async def work() -> None:
        runtime = ManagerRuntime(log, AvroRecordFormat(), Lease(), QUICK)
        await runtime.start()
        runtime.on_assigned(0, boottime() + WAIT_S / 4)
        await runtime.close()
        await asyncio.sleep(WAIT_S / 2)
        assert log.writers == []

    scenario(work)
