"""A runtime from whose log records are deleted: it appends what it has in memory again."""

import random
from copy import copy
from dataclasses import replace

import pytest
from async_tests import async_test
from memory_log import Failure, MemoryLog
from runtimes import PARTITIONS, QUICK, commit, manager, offset, shard_group_of, until, written

from offsetmgr.manager.log.base import DeletedRecords
from offsetmgr.manager.runtime import ManagerRuntime

OFFSETS = 60
SHARD_GROUP = "offsetmgr.manager.runtime.shard_group"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SHARD_GROUP}._RESTORE_BYTES", 200)
    monkeypatch.setattr(f"{SHARD_GROUP}._RESTORE_PAUSE_S", 0.001)


async def delete_records(log: MemoryLog, runtime: ManagerRuntime) -> None:
    for partition in range(PARTITIONS):
        log.delete_records(partition)
    await runtime.check_starts()


def other_process(log: MemoryLog) -> None:
    """Forgets what a process knows and the log does not contain."""
    complete_from, log.deleted = log.deleted.complete_from, DeletedRecords()
    log.deleted.complete_from.update(complete_from)


FAILURES = [Failure.NOT_WRITTEN, Failure.UNKNOWN_NOT_WRITTEN, Failure.UNKNOWN_WRITTEN, Failure.UNKNOWN_OPEN_WRITTEN]


@pytest.mark.parametrize("failures", [[], FAILURES])
@async_test
async def test_changes_while_a_shard_is_appended_again_stay_the_newest_values_in_the_log(failures) -> None:
    log, numbers = MemoryLog(PARTITIONS), random.Random(5)
    async with manager(log) as runtime:
        await written([runtime.commit(commit("g", 1, partitions=OFFSETS))])
        partition = runtime.partition_of("g")
        await delete_records(log, runtime)
        assert len(runtime.alarms) == 1
        changes = 0
        while runtime.alarms:
            if failures and changes % 4 == 0:
                log.fail_next_append(shard_group_of(runtime, "g"), numbers.choice(failures))
            at = numbers.randrange(OFFSETS)
            if numbers.random() < 0.3:
                await runtime.delete_offsets("g", [("t", [at])])
            else:
                request = commit("g", 0)._replace(topics=[("t", [(at, changes, -1, "")])])
                await runtime.commit(request)
            changes += 1
            if changes == 40:
                failures = ()
        assert changes > 10
        served = runtime.dump(partition)
        assert len(served) > OFFSETS // 2
    other_process(log)
    async with manager(log) as runtime:
        assert runtime.dump(partition) == served
        assert runtime.alarms == []


@async_test
async def test_parts_that_are_too_large_for_the_topic_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SHARD_GROUP}._RESTORE_BYTES", 1 << 18)
    log = MemoryLog(PARTITIONS, max_batch_bytes=1_000)
    async with manager(log) as runtime:
        await written([runtime.commit(commit(f"g{number}", number)) for number in range(400)])
        await delete_records(log, runtime)
        await until(lambda: runtime.alarms == [])
    other_process(log)
    async with manager(log) as runtime:
        assert [offset(runtime, f"g{number}") for number in range(400)] == list(range(400))


@async_test
async def test_a_record_that_is_too_large_does_not_keep_others_from_the_log(monkeypatch, caplog) -> None:
    """Its alarm lasts until a later attempt has appended it."""
    monkeypatch.setattr(f"{SHARD_GROUP}.NON_RETRIABLE_BACKOFF_S", 0.01)
    log = MemoryLog(PARTITIONS)
    async with manager(log) as runtime:
        large = commit("large", 0)._replace(topics=[("t", [(0, 1, -1, "x" * 2_000)])])
        await written([runtime.commit(one) for one in (*(commit(f"g{n}", n) for n in range(400)), large)])
        log.max_batch_bytes = 1_000
        await delete_records(log, runtime)
        await until(lambda: not runtime.restoring)
        for attempts in range(1, 4):
            while caplog.text.count("a record cannot be appended again") < attempts or runtime.restoring:
                assert "max.message.bytes: group large, topic t, partition 0; raise it" in runtime.alarms[-1]
                await runtime.check_starts()
        log.max_batch_bytes = 1 << 20
        while runtime.alarms:
            await runtime.check_starts()
    other_process(log)
    async with manager(log) as runtime:
        assert [offset(runtime, f"g{number}") for number in range(400)] == list(range(400))
        assert offset(runtime, "large") == 1


@pytest.mark.parametrize("end", ["stop", "revocation"])
@async_test
async def test_a_manager_gives_no_shard_up_before_it_has_appended_it_again(end: str) -> None:
    log = MemoryLog(PARTITIONS)
    async with manager(log) as runtime:
        await written([runtime.commit(commit("g", 7, partitions=OFFSETS))])
        log.delete_records(runtime.partition_of("g"))  # and no check of the topic has found it yet
        if end == "revocation":
            await runtime.on_revoked(shard_group_of(runtime, "g"))
    other_process(log)
    async with manager(log) as runtime:
        assert len(runtime.dump(runtime.partition_of("g"))) == OFFSETS


@async_test
async def test_a_manager_that_cannot_append_in_time_says_how_many_offsets_may_be_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{SHARD_GROUP}._RESTORE_LIMIT_S", 0.0)
    log = MemoryLog(PARTITIONS)
    async with manager(log) as runtime:
        await written([runtime.commit(commit("g", 7, partitions=OFFSETS))])
        await delete_records(log, runtime)
        partition = runtime.partition_of("g")
    errors = {record.shards[0]: record.offsets for record in caplog.records if "were revoked" in record.message}  # type: ignore[attr-defined]
    assert errors[partition] == OFFSETS


@pytest.mark.parametrize("restored_at_wake", [True, False])
@async_test
async def test_a_frozen_standby_serves_no_offset_that_was_deleted_meanwhile(restored_at_wake: bool) -> None:
    log = MemoryLog(PARTITIONS)
    theirs = copy(log)  # another process, which has read no claim yet
    theirs.deleted = DeletedRecords()
    async with manager(theirs, shard_groups=()) as standby:
        async with manager(log) as owner:
            await written([owner.commit(commit("g", 7, partitions=2))])
            partition = owner.partition_of("g")
            await until(lambda: standby.status()[partition].offsets == 2)
            theirs.frozen = True
            await owner.delete_offsets("g", [("t", [0])])
            await delete_records(log, owner)
            theirs.frozen = restored_at_wake
            await until(lambda: restored_at_wake or theirs.deleted.missing_below[partition] > 0)
            await until(lambda: not owner.restoring)
            theirs.deleted.note_complete(partition, log.deleted.complete_from[partition])
            theirs.frozen = False
            await until(lambda: standby.status()[partition].offsets == 1)
        standby.on_assigned(partition % 8)
        await until(lambda: standby.status()[partition].state == "active")
        assert [key.partition for key, _ in standby.dump(partition)] == [1]
        assert standby.alarms == []


@async_test
async def test_a_standby_that_has_the_records_in_memory_appends_them_after_a_takeover() -> None:
    log = MemoryLog(PARTITIONS)
    async with manager(log, shard_groups=()) as standby:
        async with manager(log) as owner:
            await written([owner.commit(commit("g", 7))])
            partition = owner.partition_of("g")
            await until(lambda: standby.status()[partition].offsets == 1)
        log.delete_records(partition)
        standby.on_assigned(partition % 8)
        await until(lambda: standby.status()[partition].state == "active")
        await standby.check_starts()
        assert len(standby.alarms) == 1
        await until(lambda: standby.alarms == [])
    other_process(log)
    async with manager(log) as runtime:
        assert offset(runtime, "g") == 7


@async_test
async def test_a_loss_is_reported_by_each_owner_until_one_has_reported_it_and_refreshed_its_claim() -> None:
    log = MemoryLog(PARTITIONS)
    async with manager(log) as runtime:
        await written([runtime.commit(commit("g", 7))])
        partition = runtime.partition_of("g")
    log.delete_records(partition)
    for refresh_s in (3600.0, 0.01):
        other_process(log)
        async with manager(log, config=replace(QUICK, claim_refresh_s=refresh_s)) as runtime:
            if refresh_s < 1:
                await until(lambda: log.deleted.complete_from[partition] > 0)
            (alarm,) = runtime.alarms
            assert f"records of shards {partition} were deleted before this manager read them" in alarm
    other_process(log)
    async with manager(log) as runtime:
        assert runtime.alarms == []
