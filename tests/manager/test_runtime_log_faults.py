"""Logs that the runtime must not trust: recreated ones, whose old offsets are never served again, and records that a
manager cannot read, which are logged and counted and never treated as absent."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from async_tests import async_test
from blocking_writer import claimed
from confluent_kafka import KafkaError
from memory_log import Failure, MemoryLog
from runtimes import (
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

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.log.base import CorruptRecords, LogRecord, partitions_of
from offsetmgr.manager.results import FetchRequest
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord

# --- recreated logs --------------------------------------------------------------------------------------------


@async_test
async def test_a_shard_group_assigned_again_after_its_log_was_recreated_serves_no_old_offset() -> None:
    """Even if the new log is already longer than the part of the old one that was read."""
    log = MemoryLog(PARTITIONS)
    async with manager(log) as first, manager(log, shard_groups=()) as other:
        await written([first.commit(commit("g", 1))])
        shard_group, partition = shard_group_of(first, "g"), first.partition_of("g")
        await until(lambda: other.status()[partition].offsets == 1)
        await first.on_revoked(shard_group)
        log.recreate()
        _fill(log, shard_group)
        await until(lambda: other.status()[partition].offsets == 0)
        other.on_assigned(shard_group)
        await until(lambda: other.ownership_error("g") == KafkaError.NO_ERROR)
        assert offset(other, "g") == -1


@async_test
async def test_a_shard_group_assigned_immediately_after_its_log_was_recreated_serves_no_old_offset() -> None:
    config = ManagerSettings(standby_poll_s=0.01, lag_interval_s=60)
    async with manager_of_new_log(config=config) as (log, runtime):
        await written([runtime.commit(commit("g", 1))])
        shard_group = shard_group_of(runtime, "g")
        await runtime.on_revoked(shard_group)
        await until(lambda: runtime.caught_up)
        log.recreate()
        _fill(log, shard_group)
        runtime.on_assigned(shard_group)
        await until(lambda: runtime.ownership_error("g") == KafkaError.NO_ERROR)
        assert offset(runtime, "g") == -1


@async_test
async def test_a_log_recreated_while_an_outcome_is_unknown_is_reloaded() -> None:
    lease = Lease()
    async with manager_of_new_log(lease) as (log, runtime):
        await written([runtime.commit(commit("g", 1))])
        shard_group = shard_group_of(runtime, "g")
        log.fail_next_append(shard_group, Failure.UNKNOWN_OPEN)
        lease.good = False
        assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
        log.recreate()
        _fill(log, shard_group)
        lease.good = True
        await until(lambda: runtime.ownership_error("g") == KafkaError.NO_ERROR and offset(runtime, "g") == -1)


def _fill(log: MemoryLog, shard_group: int) -> None:
    """Extends the partitions of a shard group with tombstones of a key that does not exist."""
    writer = claimed(log, shard_group)
    key = AvroRecordFormat().encode_group_key("absent")
    for _ in range(10):
        writer.append({partition: [(key, None)] for partition in partitions_of(shard_group, PARTITIONS)}, 1)
    writer.close()


@async_test
async def test_a_log_that_is_recreated_under_its_owner_is_reloaded_before_anything_else_is_acknowledged() -> None:
    async with manager_of_new_log() as (log, runtime):
        for number in range(10):
            await written([runtime.commit(commit("g", number))])
        for partition in log._partitions:
            partition.__init__()  # type: ignore[misc]
        assert await runtime.commit(commit("g", 10)) == UNAVAILABLE
        await until(lambda: runtime.ownership_error("g") == KafkaError.NO_ERROR)
        assert offset(runtime, "g") == 10
        await written([runtime.commit(commit("g", 11))])
        assert offset(runtime, "g") == 11


@async_test
async def test_an_owner_that_learns_of_a_recreated_log_serves_no_old_offset() -> None:
    log = SlowLog(PARTITIONS)
    log.loading_allowed.set()
    async with manager(log) as runtime:
        await written([runtime.commit(commit("g", 1)), runtime.commit(commit("h", 7))])
        runtime.note_generation(log.generation(1))
        runtime.note_generation("")  # as brokers before 2.8 do, which report no topic ids
        assert offset(runtime, "g") == 1  # this is the log from which the shard group was loaded
        log.recreate()
        _fill(log, shard_group_of(runtime, "g"))
        log.loading_allowed.clear()
        runtime.note_generation(log.generation(1))
        assert fetch_error(runtime, "g") == KafkaError.NOT_COORDINATOR
        assert await runtime.commit(commit("g", 2)) == NOT_COORDINATOR
        await until(lambda: fetch_error(runtime, "g") == KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        log.loading_allowed.set()
        await until(lambda: {status.state for status in runtime.status()} == {"active"})
        assert (offset(runtime, "g"), offset(runtime, "h")) == (-1, -1)
        await written([runtime.commit(commit("g", 3))])


# --- unreadable records ----------------------------------------------------------------------------------------


SHARD = 4
"""The shard of the group ``loop``."""
LOAD, FETCH = "a shard has records that this version cannot read", "committed offsets cannot be read"


def record_of(partition: int) -> EncodedRecord:
    [(key, value)] = AvroRecordFormat().encode_commit(
        "loop", "orders", [(partition, 5, -1, "")], 1_700_000_000_000, None
    )
    return key, value


def newer(data: bytes | None) -> bytes:
    assert data is not None
    return b"O\x01" + data[2:]


def appended(log: MemoryLog, *records: EncodedRecord) -> None:
    claimed(log, SHARD % 8).append({SHARD: list(records)}, 1)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [record.__dict__ for record in caplog.records if record.message == event]


@async_test
async def test_a_load_logs_unreadable_records_once_per_shard_with_their_versions(caplog) -> None:
    log = MemoryLog(PARTITIONS)
    unreadable = [(newer(record_of(2)[0]), newer(record_of(2)[1])), (record_of(3)[0], newer(record_of(3)[1]))]
    appended(log, record_of(0), *unreadable, (b"foreign-key", b"x"), (b"", b"x"))
    async with manager(log) as runtime:
        [status] = [status for status in runtime.status() if status.partition == runtime.partition_of("loop")]
        assert (status.offsets, status.unreadable, status.unknown_keys) == (2, 2, 2)
        assert runtime.metrics()["unreadable_records"] == 4
    [line] = logged(caplog, LOAD)
    assert (line["shard"], line["unreadable"]) == (SHARD, 2)
    assert line["keys_of_unknown_versions"] == {"0x4f01": 1, "0x666f": 1}
    assert [text.split(": ")[0] for text in line["first"]] == ["key ", "loop/orders-3"]
    assert "version 20225" in line["first"][1]
    assert logged(caplog, FETCH) == []


@async_test
async def test_a_value_that_becomes_unreadable_is_logged_only_at_its_first_fetch(caplog) -> None:
    async with manager(MemoryLog(PARTITIONS)) as runtime:
        await written([runtime.commit(commit("loop", 7))])
        shard: Any = runtime._serving[SHARD]
        shard.replay(shard.position, record_of(3)[0], newer(record_of(3)[1]))
        for _ in range(2):
            answer = runtime.fetch(FetchRequest("loop", [("orders", [3])]))
            assert answer.topics == [("orders", [(3, -1, -1, "", -1)])]
    [line] = logged(caplog, FETCH)
    assert line["shard"] == SHARD
    assert line["which"] == ["loop/orders-3: offset value: version 20225; known are 20224 to 20224"]


class DamagedLog(MemoryLog):
    """Readers that follow the log find one partition damaged once ``damaged`` is set, as Kafka's do. With ``at_rest``,
    loads find it damaged too."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.damaged = False
        self.at_rest = False
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def reader(self) -> Any:
        reader = super().reader()
        load, follow, poll = reader.load, reader.follow, reader.poll
        followed: set[int] = set()

        def loading(starts: Mapping[int, int], *args: Any, **options: Any) -> Mapping[int, int]:
            if self.at_rest and SHARD in starts:
                self.reading.set()
                assert self.go_on.wait(60)
                raise CorruptRecords("offsets", SHARD, 1, "CRC32C")
            return load(starts, *args, **options)

        def following(starts: Mapping[int, int]) -> None:
            followed.clear()
            followed.update(starts)
            follow(starts)

        def polling(most: int, timeout_s: float) -> Sequence[LogRecord]:
            if self.damaged and SHARD in followed:
                raise CorruptRecords("offsets", SHARD, 1, "CRC32C")
            return poll(most, timeout_s)

        reader.load, reader.follow, reader.poll = loading, following, polling  # type: ignore[method-assign,assignment]
        return reader


@pytest.mark.parametrize("at_rest", [True, False])
@async_test
async def test_a_standby_stops_following_a_damaged_shard_group_and_follows_the_others(at_rest: bool, caplog) -> None:
    log = DamagedLog(PARTITIONS)
    appended(log, record_of(0))
    async with manager(log, shard_groups=()) as standby:
        if not at_rest:
            await until(lambda: all(s.state == "following" for s in standby.status()))
        log.at_rest = log.damaged = True
        if at_rest:
            standby.on_assigned(SHARD % 8)
        expected = "failed" if at_rest else "waiting"
        own, others = ([s for s in range(PARTITIONS) if (s % 8 == SHARD % 8) is mine] for mine in (True, False))
        await until(lambda: all(standby.status()[s].state in (expected, "loading") for s in own))
        await until(lambda: "offsets-" in standby.status()[SHARD].last_error)
        await until(lambda: all(standby.status()[s].state == "following" for s in others))
        assert fetch_error(standby, "loop") in (14, 15, 16)
    event = "a shard group is not served: its log is damaged" if at_rest else "a shard group is no longer followed"
    assert logged(caplog, event)


@async_test
async def test_a_damaged_tail_after_an_unknown_outcome_ends_the_shard_groups_service(caplog) -> None:
    """Memory contains the acknowledged offsets, but the manager cannot compare them with the log."""
    log = DamagedLog(PARTITIONS)
    async with manager(log, config=replace(QUICK, standby=False)) as runtime:
        await written([runtime.commit(commit("loop", 1))])
        log.at_rest = True
        log.fail_next_append(SHARD % 8, Failure.UNKNOWN_WRITTEN)
        assert (await runtime.commit(commit("loop", 2))).error != 0
        await until(lambda: runtime.ownership_error("loop") == KafkaError.COORDINATOR_NOT_AVAILABLE)
        log.at_rest = False
        await until(lambda: runtime.status()[SHARD].state == "active")
        assert offset(runtime, "loop") == 2
    assert logged(caplog, "a shard group is not served: its log is damaged")


@async_test
async def test_an_owner_that_waits_for_a_standbys_load_gets_the_shard_group_although_the_load_finds_damage() -> None:
    log = DamagedLog(PARTITIONS)
    appended(log, record_of(0))
    log.at_rest = True
    log.go_on.clear()
    async with manager(log, shard_groups=()) as runtime:
        await asyncio.to_thread(log.reading.wait, 60)
        runtime.on_assigned(SHARD % 8)
        log.go_on.set()
        await until(lambda: runtime.status()[SHARD].state == "failed")
        log.at_rest = False
        await until(lambda: runtime.status()[SHARD].state == "active")
