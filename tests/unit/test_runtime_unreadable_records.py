"""Records that a manager cannot read: they are logged and counted, and never treated as absent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from runtimes import PARTITIONS, QUICK, manager, scenario, shard_group_of, until, written
from runtimes import commit as committing
from runtimes import offset as committed

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.log.base import CorruptRecords, LogRecord
from offsetmgr.manager.log.memory import Failure, MemoryLog
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.manager.protocol_values import FetchRequest
from offsetmgr.manager.runtime.status_report import totals
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord
from offsetmgr.testing.blocking_writer import BlockingWriter

SHARD = shard_for("loop", PARTITIONS)
LOAD, FETCH = "a shard has records that this version cannot read", "committed offsets cannot be read"


def offset(partition: int) -> EncodedRecord:
    [(key, value)] = AvroRecordFormat().encode_commit(
        "loop", "orders", [(partition, 5, -1, "")], 1_700_000_000_000, None
    )
    return key, value


def newer(data: bytes | None) -> bytes:
    assert data is not None
    return b"O\x01" + data[2:]


def appended(log: MemoryLog, *records: EncodedRecord) -> None:
    writer = BlockingWriter(log.writer(SHARD % 8))
    writer.claim(1)
    writer.append({SHARD: list(records)}, 1)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [record.__dict__ for record in caplog.records if record.message == event]


def test_a_load_logs_unreadable_records_once_per_shard_with_their_versions(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(PARTITIONS)
    appended(
        log,
        offset(0),
        (newer(offset(2)[0]), newer(offset(2)[1])),
        (offset(3)[0], newer(offset(3)[1])),
        (b"foreign-key", b"x"),
        (b"", b"x"),
    )

    async def work() -> None:
        async with manager(log) as runtime:
            [status] = [status for status in runtime.status() if status.partition == SHARD]
            assert (status.offsets, status.unreadable, status.unknown_keys) == (2, 2, 2)
            assert totals(runtime.status())["unreadable_records"] == 4

    with caplog.at_level(logging.WARNING):
        scenario(work)

    [line] = logged(caplog, LOAD)
    assert (line["shard"], line["unreadable"]) == (SHARD, 2)
    assert line["keys_of_unknown_versions"] == {"0x4f01": 1, "0x666f": 1}
    assert [text.split(": ")[0] for text in line["first"]] == ["key ", "loop/orders-3"]  # type: ignore[attr-defined]
    assert "version 20225" in line["first"][1]  # type: ignore[index]
    assert logged(caplog, FETCH) == []


def test_the_load_of_a_sound_log_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(PARTITIONS)
    appended(log, offset(0), offset(1))

    async def work() -> None:
        async with manager(log) as runtime:
            assert totals(runtime.status())["unreadable_records"] == 0

    with caplog.at_level(logging.WARNING):
        scenario(work)

    assert logged(caplog, LOAD) == []


def test_a_value_that_becomes_unreadable_is_logged_only_at_its_first_fetch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(committing("loop", 7))])
            shard = next(
                shard_group.shards[SHARD]
                for shard_group in runtime._shard_groups
                if shard_group.number == shard_group_of(runtime, "loop")
            )
            shard.replay(shard.position, offset(3)[0], newer(offset(3)[1]))
            for _ in range(2):
                answer = runtime.fetch(FetchRequest("loop", [("orders", [3])]))
                assert answer.topics == [("orders", [(3, -1, -1, "", -1)])]

    with caplog.at_level(logging.WARNING):
        scenario(work)

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
def test_a_standby_stops_following_a_damaged_shard_group_and_follows_the_others(
    at_rest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = DamagedLog(PARTITIONS)
    appended(log, offset(0))

    async def work() -> None:
        async with manager(log, shard_groups=()) as standby:
            if not at_rest:
                await until(lambda: all(s.state == "following" for s in standby.status()))
            log.at_rest = log.damaged = True
            if at_rest:
                standby.on_assigned(SHARD % 8)
            shard_group = [s for s in range(PARTITIONS) if s % 8 == SHARD % 8]
            expected = "failed" if at_rest else "waiting"
            await until(lambda: all(standby.status()[p].state in (expected, "loading") for p in shard_group))
            await until(lambda: "offsets-" in standby.status()[SHARD].last_error)
            await until(
                lambda: all(
                    s.state == "following"
                    for s in standby.status()
                    if s.shard_group != standby.status()[SHARD].shard_group
                )
            )
            response = standby.fetch(FetchRequest("loop", [("orders", [0])]))
            assert response.error in (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
            )

    with caplog.at_level(logging.ERROR):
        scenario(work)
    event = "a shard group is not served: its log is damaged" if at_rest else "a shard group is no longer followed"
    assert logged(caplog, event)


def test_a_damaged_tail_after_an_unknown_outcome_ends_the_shard_groups_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Memory contains the acknowledged offsets, but the manager cannot compare them with the log."""
    log = DamagedLog(PARTITIONS)

    async def work() -> None:
        async with manager(log, config=replace(QUICK, standby=False)) as runtime:
            await written([runtime.commit(committing("loop", 1))])
            log.at_rest = True
            log.fail_next_append(SHARD % 8, Failure.UNKNOWN_WRITTEN)
            assert (await runtime.commit(committing("loop", 2))).error != 0
            await until(
                lambda: runtime.fetch(FetchRequest("loop", [("t", [0])])).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
            log.at_rest = False
            await until(lambda: runtime.status()[SHARD].state == "active")
            assert committed(runtime, "loop") == 2

    with caplog.at_level(logging.ERROR):
        scenario(work)
    assert logged(caplog, "a shard group is not served: its log is damaged")


def test_an_owner_that_waits_for_a_standbys_load_gets_the_shard_group_although_the_load_finds_damage() -> None:
    log = DamagedLog(PARTITIONS)
    appended(log, offset(0))
    log.at_rest = True
    log.go_on.clear()

    async def work() -> None:
        async with manager(log, shard_groups=()) as runtime:
            await asyncio.to_thread(log.reading.wait, 60)
            runtime.on_assigned(SHARD % 8)
            log.go_on.set()
            await until(lambda: runtime.status()[SHARD].state == "failed")
            log.at_rest = False
            await until(lambda: runtime.status()[SHARD].state == "active")

    scenario(work)
