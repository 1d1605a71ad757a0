"""The memory of a committed offset, in groups of 50 partitions: far below the limit of 120 bytes.

The interpreter's own allocator counts the bytes, so the result is the same on every machine.
"""

import tracemalloc
from typing import Any

import pytest
from shards import committing

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.shard import Shard
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import RecordFormat
from offsetmgr.records.kafka import KafkaRecordFormat

GROUPS, PARTITIONS = 400, 50
LIMIT = 50


@pytest.fixture(params=[AvroRecordFormat, KafkaRecordFormat])
def record_format(request: pytest.FixtureRequest) -> RecordFormat:
    found: RecordFormat = request.param()
    shard = Shard(0, found, ManagerSettings())
    shard.acknowledged(shard.commit(request_of(0), 0), 0)  # fills the caches of the format
    return found


def request_of(number: int) -> Any:
    offsets = {f"p{partition}": 1_000_000 + 7919 * number + partition for partition in range(PARTITIONS)}
    return committing(f"group-{number:08d}", topic="orders", **offsets)


def allocated() -> int:
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("how", ["commits", "load"])
def test_bytes_per_offset(record_format: RecordFormat, how: str) -> None:
    tracemalloc.start()
    try:
        before = allocated()
        shard = Shard(0, record_format, ManagerSettings())
        for number in range(GROUPS):
            prepared = shard.commit(request_of(number), 1_800_000_000_000 + number)
            if how == "commits":
                shard.acknowledged(prepared, shard.position)
            else:
                shard.on_discarded(prepared)
                shard.replay_newest(dict(prepared.records), shard.position)
        del prepared
        assert shard.offset_count == GROUPS * PARTITIONS
        assert (allocated() - before) / shard.offset_count <= LIMIT
    finally:
        tracemalloc.stop()


def test_deleted_offsets_occupy_no_memory(record_format: RecordFormat) -> None:
    shard = Shard(0, record_format, ManagerSettings())

    def commit_and_delete() -> None:
        for number in range(100):
            shard.acknowledged(shard.commit(request_of(number), 1_800_000_000_000), shard.position)
        for number in range(100):
            shard.acknowledged(shard.delete_group(f"group-{number:08d}"), shard.position)

    commit_and_delete()
    tracemalloc.start()
    try:
        before = allocated()
        commit_and_delete()
        assert allocated() - before < 20_000
    finally:
        tracemalloc.stop()
