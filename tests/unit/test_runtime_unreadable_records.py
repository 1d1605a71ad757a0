"""Records that a manager cannot read (a newer manager's, somebody else's): told, counted, and never passed over."""

from __future__ import annotations

import logging

import pytest
from runtimes import PARTITIONS, manager, scenario, slot_of, written
from runtimes import commit as committing

from offsetmgr.log.memory import MemoryLog
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.manager.requests import FetchRequest
from offsetmgr.manager.runtime.reporting import totals
from offsetmgr.records.avro import AvroFormat
from offsetmgr.records.base import Record

SHARD = shard_for("loop", PARTITIONS)
LOAD, FETCH = "a shard has records that this version cannot read", "committed offsets cannot be read"


def offset(partition: int) -> Record:
    [(key, value)] = AvroFormat().encode_commit("loop", "orders", [(partition, 5, -1, "")], 1_700_000_000_000, None)
    return key, value


def newer(data: bytes | None) -> bytes:
    assert data is not None
    return b"O\x01" + data[2:]


def appended(log: MemoryLog, *records: Record) -> None:
    writer = log.writer(SHARD % 8)
    writer.claim(1)
    writer.append({SHARD: list(records)}, 1)


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [record.__dict__ for record in caplog.records if record.message == event]


def test_a_load_tells_them_once_a_shard_with_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
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

    [line] = told(caplog, LOAD)
    assert (line["shard"], line["unreadable"]) == (SHARD, 2)
    assert line["keys_of_unknown_versions"] == {"0x4f01": 1, "0x666f": 1}
    assert [text.split(": ")[0] for text in line["first"]] == ["key ", "loop/orders-3"]  # type: ignore[attr-defined]
    assert "version 20225" in line["first"][1]  # type: ignore[index]
    assert told(caplog, FETCH) == []


def test_a_sound_log_is_loaded_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(PARTITIONS)
    appended(log, offset(0), offset(1))

    async def work() -> None:
        async with manager(log) as runtime:
            assert totals(runtime.status())["unreadable_records"] == 0

    with caplog.at_level(logging.WARNING):
        scenario(work)

    assert told(caplog, LOAD) == []


def test_a_value_that_comes_to_be_unreadable_is_told_at_its_first_fetch_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(committing("loop", 7))])
            shard = next(slot.shards[SHARD] for slot in runtime._slots if slot.number == slot_of(runtime, "loop"))
            shard.replay(shard.position, offset(3)[0], newer(offset(3)[1]))
            for _ in range(2):
                answer = runtime.fetch(FetchRequest("loop", [("orders", [3])]))
                assert answer.topics == [("orders", [(3, -1, -1, "", -1)])]

    with caplog.at_level(logging.WARNING):
        scenario(work)

    [line] = told(caplog, FETCH)
    assert line["shard"] == SHARD
    assert line["which"] == ["loop/orders-3: offset value: version 20225; known are 20224 to 20224"]
