"""A topic that is deleted and recreated: no offset of the deleted topic is served again."""

from __future__ import annotations

from runtimes import (
    NOT_COORDINATOR,
    PARTITIONS,
    UNAVAILABLE,
    Lease,
    SlowLog,
    commit,
    fetch_error,
    manager,
    offset,
    scenario,
    shard_group_of,
    until,
    written,
)

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.log.base import partitions_of
from offsetmgr.manager.log.memory import Failure, MemoryLog
from offsetmgr.manager.runtime import ManagerConfig
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.testing.blocking_writer import BlockingWriter


def test_a_log_that_was_recreated_is_reloaded() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            shard_group = shard_group_of(runtime, "g")
            await runtime.on_revoked(shard_group)
            for partition in partitions_of(shard_group, PARTITIONS):
                log._partitions[partition].__init__()  # type: ignore[misc]
            runtime.on_assigned(shard_group)
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            assert offset(runtime, "g") == -1

    scenario(work)


def test_a_shard_group_assigned_again_after_its_log_was_recreated_serves_no_old_offset() -> None:
    """Even if the new log is already longer than the part of the old one that was read."""
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as first, manager(log, shard_groups=()) as other:
            await written([first.commit(commit("g", 1))])
            shard_group, partition = shard_group_of(first, "g"), first.partition_of("g")
            await until(lambda: other.status()[partition].offsets == 1)
            await first.on_revoked(shard_group)
            log.recreate()
            _fill(log, shard_group)
            await until(lambda: other.status()[partition].offsets == 0)
            other.on_assigned(shard_group)
            await until(lambda: other.ownership_error("g") == ErrorCode.NONE)
            assert offset(other, "g") == -1

    scenario(work)


def test_a_shard_group_assigned_immediately_after_its_log_was_recreated_serves_no_old_offset() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(standby_poll_s=0.01, lag_interval_s=60)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            await written([runtime.commit(commit("g", 1))])
            shard_group = shard_group_of(runtime, "g")
            await runtime.on_revoked(shard_group)
            await until(lambda: runtime.caught_up)
            log.recreate()
            _fill(log, shard_group)
            runtime.on_assigned(shard_group)
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            assert offset(runtime, "g") == -1

    scenario(work)


def test_a_log_recreated_while_an_outcome_is_unknown_is_reloaded() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        lease = Lease()
        async with manager(log, lease) as runtime:
            await written([runtime.commit(commit("g", 1))])
            shard_group = shard_group_of(runtime, "g")
            log.fail_next_append(shard_group, Failure.UNKNOWN_OPEN)
            lease.good = False
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            log.recreate()
            _fill(log, shard_group)
            lease.good = True
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE and offset(runtime, "g") == -1)

    scenario(work)


def _fill(log: MemoryLog, shard_group: int) -> None:
    """Extends the partitions of a shard group with tombstones of a key that does not exist."""
    writer = BlockingWriter(log.writer(shard_group))
    writer.claim(1)
    key = AvroRecordFormat().encode_group_key("absent")
    for _ in range(10):
        writer.append({partition: [(key, None)] for partition in partitions_of(shard_group, PARTITIONS)}, 1)
    writer.close()


def test_a_log_that_is_recreated_under_its_owner_is_reloaded_before_anything_else_is_acknowledged() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            for number in range(10):
                await written([runtime.commit(commit("g", number))])
            for partition in log._partitions:
                partition.__init__()  # type: ignore[misc]
            assert await runtime.commit(commit("g", 10)) == UNAVAILABLE
            await until(lambda: runtime.ownership_error("g") == ErrorCode.NONE)
            assert offset(runtime, "g") == 10
            await written([runtime.commit(commit("g", 11))])
            assert offset(runtime, "g") == 11

    scenario(work)


def test_an_owner_that_learns_of_a_recreated_log_serves_no_old_offset() -> None:
    log = SlowLog(PARTITIONS)
    log.loading_allowed.set()

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1)), runtime.commit(commit("h", 7))])
            runtime.note_generation(log.generation(1))
            assert offset(runtime, "g") == 1  # this is the log from which the shard group was loaded
            log.recreate()
            _fill(log, shard_group_of(runtime, "g"))
            log.loading_allowed.clear()
            runtime.note_generation(log.generation(1))
            assert fetch_error(runtime, "g") == ErrorCode.NOT_COORDINATOR
            assert await runtime.commit(commit("g", 2)) == NOT_COORDINATOR
            await until(lambda: fetch_error(runtime, "g") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            log.loading_allowed.set()
            await until(lambda: {status.state for status in runtime.status()} == {"active"})
            assert (offset(runtime, "g"), offset(runtime, "h")) == (-1, -1)
            await written([runtime.commit(commit("g", 3))])

    scenario(work)


def test_an_unknown_identity_of_the_log_does_not_stop_the_service() -> None:
    """Brokers before 2.8 report no topic ids."""
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            runtime.note_generation("")
            assert offset(runtime, "g") == 1

    scenario(work)
