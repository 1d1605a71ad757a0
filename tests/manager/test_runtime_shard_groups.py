"""Shard groups of the runtime: assigned, revoked and fenced; loads and standbys; claims that wait for the lease of the
former owner."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from async_tests import async_test
from blocking_writer import claimed
from confluent_kafka import KafkaError
from memory_log import Failure, MemoryLog
from runtimes import (
    LOADING,
    NOT_COORDINATOR,
    PARTITIONS,
    QUICK,
    UNAVAILABLE,
    Lease,
    SlowLog,
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

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.clock import boottime
from offsetmgr.core.errors import CoordinatorLoadInProgress, Unreachable
from offsetmgr.manager.results import CommitResponse
from offsetmgr.manager.runtime import ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import OffsetKey, OffsetValue

# --- assignments -----------------------------------------------------------------------------------------------


@async_test
async def test_an_owner_fenced_by_a_successor_acknowledges_nothing_and_leaves_the_shard_group() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()
    async with manager(log, lease) as runtime:
        shard_group = shard_group_of(runtime, "g")
        claimed(log, shard_group)
        answers = [runtime.commit(commit("g", 1)), runtime.commit(commit("g", 2))]
        assert await asyncio.gather(*answers) == [NOT_COORDINATOR] * 2
        await until(lambda: bool(lease.losses))
        assert [lost for lost, _ in lease.losses] == [shard_group]
        assert fetch_error(runtime, "g") == KafkaError.NOT_COORDINATOR
        assert await runtime.commit(commit("g", 3)) == NOT_COORDINATOR
        # After the next assignment, it serves the shard group again.
        runtime.on_assigned(shard_group)
        await until(lambda: runtime.ownership_error("g") == KafkaError.NO_ERROR)
        await written([runtime.commit(commit("g", 4))])


@async_test
async def test_without_a_lease_no_cached_offset_is_returned() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()
    async with manager(log, lease) as runtime:
        await written([runtime.commit(commit("g", 1))])
        lease.good = False
        assert fetch_error(runtime, "g") == KafkaError.NOT_COORDINATOR
        assert await runtime.delete_group("unknown") == KafkaError.NOT_COORDINATOR
        assert runtime.list_groups() == (KafkaError.NOT_COORDINATOR, ())
        assert runtime.ownership_error("g") == KafkaError.NOT_COORDINATOR
        lease.good = True
        assert offset(runtime, "g") == 1


@async_test
async def test_a_claim_that_ends_after_the_lease_loads_and_serves_nothing() -> None:
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

    runtime = ManagerRuntime(log, AvroRecordFormat(), lease, QUICK)
    await runtime.start()
    log.writer = writer  # type: ignore[method-assign]
    runtime.on_assigned(0)
    await until(claimed.is_set)
    group = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == 0)
    assert await runtime.commit(commit(group, 1)) == LOADING
    assert fetch_error(runtime, group) == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    log.writer = plain  # type: ignore[method-assign]
    await asyncio.sleep(0.1)  # long enough for the task to continue, if it did
    assert runtime.status()[0].state == "loading"
    await runtime.on_revoked(0)
    assert log.records(0) == []
    await runtime.close()


@async_test
async def test_a_revoked_shard_group_finishes_the_commits_in_flight_and_rejects_new_ones() -> None:
    async with manager_of_new_log() as (log, runtime):
        shard_group = shard_group_of(runtime, "g")
        log.hold = True
        answers = [runtime.commit(commit("g", 1))]
        await until(lambda: log.unfinished(shard_group))
        answers.append(runtime.commit(commit("g", 2)))
        revocation = asyncio.create_task(runtime.on_revoked(shard_group))
        await asyncio.sleep(0)
        assert await runtime.commit(commit("g", 3)) == NOT_COORDINATOR
        assert fetch_error(runtime, "g") == KafkaError.NOT_COORDINATOR
        log.hold = False
        log.advance_high_watermark()
        await revocation
        await written(answers)
        assert runtime.status()[runtime.partition_of("g")].role.value == "standby"


@async_test
async def test_a_failed_claim_is_reported_and_retried() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerSettings(retry_pause_s=0.05, standby=False)
    again = threading.Event()

    class LeaseForTwoClaims(Lease):
        """Is valid for the first claim of the shard group's writer, and again once ``again`` is set."""

        checks = 0

        def valid(self) -> bool:
            if threading.current_thread() is threading.main_thread():
                return True
            self.checks += 1
            return self.checks == 1 or again.is_set()

    runtime = ManagerRuntime(log, AvroRecordFormat(), LeaseForTwoClaims(), config)
    await runtime.start()
    log.fail_next_claim(3, Unreachable("broker", "no answer"))
    runtime.on_assigned(3)
    await until(lambda: runtime.status()[3].state == "failed")
    assert runtime.status()[3].last_error == "Unreachable: broker: no answer"
    group = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == 3)
    assert fetch_error(runtime, group) == KafkaError.COORDINATOR_NOT_AVAILABLE
    assert runtime.list_groups() == (KafkaError.COORDINATOR_NOT_AVAILABLE, [])
    again.set()
    await until(lambda: runtime.status()[3].state == "active")
    await runtime.close()


@async_test
async def test_closing_waits_for_commits_in_flight_and_rejects_new_ones() -> None:
    async with manager_of_new_log() as (log, runtime):
        log.hold = True
        answer = runtime.commit(commit("g", 1))
        await until(lambda: log.unfinished(shard_group_of(runtime, "g")))
        closing = asyncio.create_task(runtime.close())
        await until(lambda: runtime.ownership_error("g") == KafkaError.NOT_COORDINATOR)
        assert await runtime.commit(commit("g", 2)) == NOT_COORDINATOR
        assert not closing.done()
        log.hold = False
        log.advance_high_watermark()
        await closing
        await written([answer])
        runtime.on_assigned(0)
        assert runtime.ownership_error("g") == KafkaError.NOT_COORDINATOR
    # The last action of a thread is to report its end.
    await until(lambda: not any(thread.name.startswith("offsetmgr-shard-group-") for thread in threading.enumerate()))


@async_test
async def test_closing_is_bounded_when_the_log_does_not_answer() -> None:
    config = ManagerSettings(commit_timeout_s=0.2, standby=False)
    async with manager_of_new_log(config=config) as (log, runtime):
        log.hold = True
        answers = [runtime.commit(commit(str(number), 1)) for number in range(50)]
        with Stopwatch() as watch:
            await runtime.close()
        assert watch.seconds < 5  # 10 s if the commits were awaited in turn
        assert await asyncio.gather(*answers) == [UNAVAILABLE] * 50


# --- loads and standbys ----------------------------------------------------------------------------------------


def dumped(runtime: ManagerRuntime, partition: int) -> Sequence[tuple[OffsetKey, OffsetValue]] | None:
    """The entries of a partition, or None while it is loading and must not be read."""
    try:
        return runtime.dump(partition)
    except CoordinatorLoadInProgress:
        return None


@pytest.mark.parametrize("standby", [False, True])
@async_test
async def test_a_shard_group_reports_loading_until_it_has_loaded_everything(standby: bool) -> None:
    """Also if it is assigned while its standby loads."""
    log = SlowLog(PARTITIONS)
    log.loading_allowed.set()
    async with manager(log) as runtime:
        await written([runtime.commit(commit(f"g{number}", number)) for number in range(100)])
    log.loading_allowed.clear()
    runtime = ManagerRuntime(log, AvroRecordFormat(), Lease(), replace(QUICK, standby=standby))
    await runtime.start()
    if standby:
        await until(lambda: any(status.state == "loading" and status.load_total for status in runtime.status()))
    for shard_group in range(runtime.shard_groups):
        runtime.on_assigned(shard_group)
    for number in range(100):
        assert fetch_error(runtime, f"g{number}") == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        assert await runtime.commit(commit(f"g{number}", 1)) == LOADING
    assert runtime.list_groups() == (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, [])
    assert await runtime.delete_group("g1") == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    await until(lambda: any(status.load_total > 0 for status in runtime.status()))
    log.loading_allowed.set()
    await until(lambda: all(status.state == "active" for status in runtime.status()))
    assert [offset(runtime, f"g{number}") for number in range(100)] == list(range(100))
    assert sorted(runtime.list_groups()[1]) == sorted(f"g{number}" for number in range(100))
    assert sum(status.load_read for status in runtime.status()) > 0
    await runtime.close()


@async_test
async def test_a_standby_has_all_acknowledged_offsets_and_takes_over_with_the_tail() -> None:
    log = MemoryLog(PARTITIONS)
    async with manager(log) as owner, manager(log, shard_groups=()) as standby:
        await until(lambda: standby.caught_up)
        await written([owner.commit(commit(f"g{number}", number)) for number in range(100)])
        await until(lambda: sum(status.offsets for status in standby.status()) == 100)
        ends = log.end_offsets(range(PARTITIONS), 1.0)  # each log ends with the marker of a claim
        await until(lambda: {s.partition: (s.end_offset, s.position, s.lag) for s in standby.status()} == {
            partition: (end, end, 0) for partition, end in ends.items()
        })  # fmt: skip
        assert fetch_error(standby, "g1") == KafkaError.NOT_COORDINATOR
        for shard_group in range(8):
            await owner.on_revoked(shard_group)
            standby.on_assigned(shard_group)
        await until(lambda: all(status.state == "active" for status in standby.status()))
        assert [offset(standby, f"g{number}") for number in range(100)] == list(range(100))
        await written([standby.commit(commit("g1", 1000))])
        await until(
            lambda: (("g1", "t", 0), 1000) in [(k, v.offset) for k, v in dumped(owner, owner.partition_of("g1")) or ()]
        )


@async_test
async def test_an_error_is_shown_until_the_next_success() -> None:
    async with manager_of_new_log() as (log, runtime):
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


@pytest.mark.slow
@async_test
async def test_a_standby_that_was_disconnected_for_too_long_reloads_everything() -> None:
    """The cleaner may have removed a tombstone that the standby never read."""
    config = ManagerSettings(standby=True, standby_poll_s=0.01, lag_interval_s=0.02, max_standby_age_s=0.3)
    async with manager_of_new_log() as (log, owner):
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


@async_test
async def test_a_shard_group_that_cannot_be_read_does_not_affect_the_other_standbys() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerSettings(standby=True, standby_poll_s=0.01, lag_interval_s=0.02)
    async with manager(log) as owner, manager(log, config=config, shard_groups=()) as standby:
        await until(lambda: standby.caught_up)
        unreadable = shard_group_of(owner, "g")
        await owner.on_revoked(unreadable)
        writer = claimed(log, unreadable)
        kafkas_key = b"\0\x01\0\x01x\0\x01t\0\0\0\0"  # of an offset, in version 1
        writer.append({owner.partition_of("g"): [(kafkas_key, b"any value")]}, 1)
        others = [name for name in (f"o{n}" for n in range(50)) if shard_group_of(owner, name) != unreadable]

        await written([owner.commit(commit(name, 7)) for name in others])

        await until(lambda: sum(status.offsets for status in standby.status()) == len(others))
        await until(lambda: any(s.last_error for s in standby.status() if s.shard_group == unreadable))
        assert not [s for s in standby.status() if s.shard_group != unreadable and s.last_error]
        assert {s.lag for s in standby.status() if s.shard_group == unreadable} == {None}
        assert "standby_lag" not in standby.metrics()


# --- claims after the lease of the former owner ----------------------------------------------------------------


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


@async_test
async def test_a_shard_group_is_not_claimed_before_the_time_of_its_assignment() -> None:
    log = RecordingLog()
    async with manager(log, shard_groups=[]) as runtime:
        shard_group = shard_group_of(runtime, "g")
        not_before = boottime() + WAIT_S
        runtime.on_assigned(shard_group, not_before)
        assert await runtime.commit(commit("g", 1)) == LOADING
        assert fetch_error(runtime, "g") == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        (status, *_) = [s for s in runtime.status() if s.shard_group == shard_group]
        assert (status.role.value, status.state) == ("owner", "initial")
        runtime.on_assigned(shard_group, boottime())  # a second assignment changes nothing
        assert await writers_before(log, not_before) == []
        await until(lambda: runtime.ownership_error("g") == KafkaError.NO_ERROR)
        assert log.writers == [shard_group]


@async_test
async def test_a_shard_group_is_not_claimed_if_it_is_revoked_or_the_runtime_closes_during_the_wait() -> None:
    log = RecordingLog()
    async with manager(log, shard_groups=[]) as runtime:
        runtime.on_assigned(0, boottime() + WAIT_S / 2)
        await runtime.on_revoked(0)
        runtime.on_assigned(1, boottime() + WAIT_S / 2)
        await until(lambda: log.writers != [])
        await asyncio.sleep(WAIT_S)
        assert log.writers == [1]
        runtime.on_assigned(2, boottime() + WAIT_S / 4)
    await asyncio.sleep(WAIT_S / 2)
    assert log.writers == [1]


@async_test
async def test_a_shard_group_that_is_assigned_again_during_a_revocation_waits_for_the_later_time() -> None:
    log = RecordingLog()
    async with manager(log, shard_groups=[0]) as runtime:
        group = next(g for g in map(str, range(999)) if shard_group_of(runtime, g) == 0)
        await written([runtime.commit(commit(group, 1))])
        epoch = runtime.ownership_epoch(group)
        revocation = asyncio.create_task(runtime.on_revoked(0))
        await asyncio.sleep(0)
        not_before = boottime() + WAIT_S
        runtime.on_assigned(0, not_before)
        await revocation
        assert await writers_before(log, not_before) == [0]
        await until(lambda: runtime.ownership_error(group) == KafkaError.NO_ERROR)
        assert (log.writers, offset(runtime, group), runtime.ownership_epoch(group)) == ([0, 0], 1, epoch + 1)
