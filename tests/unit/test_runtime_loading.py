"""Loads of shard groups, and standbys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from runtimes import (
    LOADING,
    PARTITIONS,
    QUICK,
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
from offsetmgr.core.errors import CoordinatorLoadInProgress, Unreachable
from offsetmgr.manager.log.memory import Failure, MemoryLog
from offsetmgr.manager.protocol_values import CommitResponse
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import OffsetKey, OffsetValue
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.testing.blocking_writer import BlockingWriter


def dumped(runtime: ManagerRuntime, partition: int) -> Sequence[tuple[OffsetKey, OffsetValue]] | None:
    """The entries of a partition, or None while it is loading and must not be read."""
    try:
        return runtime.dump(partition)
    except CoordinatorLoadInProgress:
        return None


def test_a_shard_group_reports_loading_until_it_has_loaded_everything() -> None:
    log = SlowLog(PARTITIONS)
    log.loading_allowed.set()

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit(f"g{number}", number)) for number in range(100)])
        log.loading_allowed.clear()
        runtime = ManagerRuntime(log, AvroRecordFormat(), Lease(), ManagerConfig(standby=False))
        await runtime.start()
        for shard_group in range(runtime.shard_groups):
            runtime.on_assigned(shard_group)
        for number in range(100):
            assert fetch_error(runtime, f"g{number}") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await runtime.commit(commit(f"g{number}", 1)) == LOADING
        assert runtime.list_groups() == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
        assert await runtime.delete_group("g1") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: any(status.load_total > 0 for status in runtime.status()))
        log.loading_allowed.set()
        await until(lambda: all(status.state == "active" for status in runtime.status()))
        assert [offset(runtime, f"g{number}") for number in range(100)] == list(range(100))
        assert sum(status.load_read for status in runtime.status()) > 0
        await runtime.close()

    scenario(work)


def test_a_standby_has_all_acknowledged_offsets_and_takes_over_with_the_tail() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as owner, manager(log, shard_groups=()) as standby:
            await until(lambda: standby.caught_up)
            await written([owner.commit(commit(f"g{number}", number)) for number in range(100)])
            await until(lambda: sum(status.offsets for status in standby.status()) == 100)
            await until(lambda: all(status.lag == 0 for status in standby.status()))
            assert fetch_error(standby, "g1") == ErrorCode.NOT_COORDINATOR
            for shard_group in range(8):
                await owner.on_revoked(shard_group)
                standby.on_assigned(shard_group)
            await until(lambda: all(status.state == "active" for status in standby.status()))
            assert [offset(standby, f"g{number}") for number in range(100)] == list(range(100))
            await written([standby.commit(commit("g1", 1000))])
            await until(
                lambda: (
                    (("g1", "t", 0), 1000) in [(k, v.offset) for k, v in dumped(owner, owner.partition_of("g1")) or ()]
                )
            )

    scenario(work)


def test_a_standby_that_has_read_everything_has_no_lag_if_the_log_ends_with_a_marker() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as owner, manager(log, shard_groups=()) as standby:
            await until(lambda: standby.caught_up)
            await written([owner.commit(commit(f"g{number}", number)) for number in range(100)])
            ends = log.end_offsets(range(PARTITIONS), 1.0)
            assert any(ends.values())
            await until(lambda: {s.partition: s.end_offset for s in standby.status()} == ends)
            await until(lambda: all(s.lag == 0 and s.position == ends[s.partition] for s in standby.status()))
            assert sum(status.offsets for status in standby.status()) == 100

    scenario(work)


def test_an_error_is_shown_until_the_next_success() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            shard_group = shard_group_of(runtime, "g")

            def shown() -> set[str]:
                return {status.last_error for status in runtime.status() if status.shard_group == shard_group}

            log.fail_next_append(shard_group, Failure.NOT_WRITTEN)
            assert await runtime.commit(commit("g", 1)) != CommitResponse()
            assert shown() != {""}
            await written([runtime.commit(commit("g", 2))])
            assert shown() == {""}
            log.fail_next_append(shard_group, Failure.UNKNOWN_WRITTEN)
            assert await runtime.commit(commit("g", 3)) != CommitResponse()
            await until(lambda: not any(status.recovering for status in runtime.status()))
            assert shown() == {""}

    scenario(work)


def test_a_shard_group_assigned_while_its_standby_loads_waits_for_that_load() -> None:
    log = SlowLog(PARTITIONS)
    log.loading_allowed.set()

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit(f"g{number}", number)) for number in range(100)])
        log.loading_allowed.clear()
        runtime = ManagerRuntime(log, AvroRecordFormat(), Lease(), QUICK)
        await runtime.start()
        await until(lambda: any(status.state == "loading" and status.load_total for status in runtime.status()))
        for shard_group in range(runtime.shard_groups):
            runtime.on_assigned(shard_group)
        assert {fetch_error(runtime, f"g{number}") for number in range(100)} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        log.loading_allowed.set()
        await until(lambda: all(status.state == "active" for status in runtime.status()))
        assert [offset(runtime, f"g{number}") for number in range(100)] == list(range(100))
        await runtime.close()

    scenario(work)


@pytest.mark.slow
def test_a_standby_that_was_disconnected_for_too_long_reloads_everything() -> None:
    """The cleaner may have removed a tombstone that the standby never read."""
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(standby=True, standby_poll_s=0.01, lag_interval_s=0.02, max_standby_age_s=0.3)

    async def work() -> None:
        async with manager(log) as owner:
            await written([owner.commit(commit("g", 1)), owner.commit(commit("other", 1))])
            partition = owner.partition_of("g")
            async with manager(log, config=config, shard_groups=()) as standby:
                await until(lambda: sum(status.offsets for status in standby.status()) == 2)
                log.fail_next_read(Unreachable("broker"))
                await owner.delete_group("g")
                await written([owner.commit(commit("g2", 1))])
                for number in range(PARTITIONS):
                    log.compact(number)
                    log.compact(number)
                await until(lambda: dumped(standby, partition) == owner.dump(partition))
                await until(lambda: sum(status.offsets for status in standby.status()) == 2)

    scenario(work)


def test_a_shard_group_that_cannot_be_read_does_not_affect_the_other_standbys() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(standby=True, standby_poll_s=0.01, lag_interval_s=0.02)

    async def work() -> None:
        async with manager(log) as owner, manager(log, config=config, shard_groups=()) as standby:
            await until(lambda: standby.caught_up)
            unreadable = shard_group_of(owner, "g")
            await owner.on_revoked(unreadable)
            writer = BlockingWriter(log.writer(unreadable))
            writer.claim(1)
            foreign = KafkaRecordFormat().encode_commit("x", "t", [(0, 1, -1, "")], 1_700_000_000_000, None)
            writer.append({owner.partition_of("g"): foreign}, 1)
            others = [name for name in (f"o{n}" for n in range(50)) if shard_group_of(owner, name) != unreadable]

            await written([owner.commit(commit(name, 7)) for name in others])

            await until(lambda: sum(status.offsets for status in standby.status()) == len(others))
            await until(lambda: any(s.last_error for s in standby.status() if s.shard_group == unreadable))
            assert not [s for s in standby.status() if s.shard_group != unreadable and s.last_error]

    scenario(work)
