"""The manager runtime on a real topic: failover and loads."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from async_tests import async_test
from claim_writer import ClaimWriter
from confluent_kafka import KafkaError
from conftest import MakeTopic
from runtimes import Lease, until, written

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest
from offsetmgr.manager.runtime import ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

PARTITIONS = 8


@asynccontextmanager
async def manager(
    kafka: KafkaBroker, topic: str, *, shard_groups: Sequence[int] = range(PARTITIONS), standby: bool = False
) -> AsyncIterator[tuple[ManagerRuntime, Lease]]:
    log, lease = KafkaLog(kafka.bootstrap, topic, PARTITIONS), Lease()
    runtime = ManagerRuntime(log, AvroRecordFormat(), lease, ManagerSettings(standby=standby, lag_interval_s=0.2))
    await runtime.start()
    try:
        await acquire(runtime, shard_groups)
        yield runtime, lease
    finally:
        await runtime.close()
        log.close()


async def acquire(runtime: ManagerRuntime, shard_groups: Sequence[int]) -> None:
    for shard_group in shard_groups:
        runtime.on_assigned(shard_group)
    await until(
        lambda: all(status.state == "active" for status in runtime.status() if status.shard_group in shard_groups)
    )


def commit(group: str, offset: int, partitions: int = 5) -> CommitRequest:
    return CommitRequest(group, [("t", [(partition, offset, -1, "") for partition in range(partitions)])])


def offsets(runtime: ManagerRuntime, group: str) -> list[int]:
    response = runtime.fetch(FetchRequest(group))
    assert response.error == KafkaError.NO_ERROR
    return [entry[1] for _, entries in response.topics for entry in entries]


@async_test
async def test_a_standby_takes_over_and_the_predecessor_is_fenced(kafka: KafkaBroker, unique: str) -> None:
    topic = unique
    ensure_topic(kafka.bootstrap, {}, topic, partitions=PARTITIONS)
    async with manager(kafka, topic) as (old, lease), manager(kafka, topic, shard_groups=(), standby=True) as (new, _):
        await written([old.commit(commit(f"g{number}", number)) for number in range(200)])
        await until(lambda: sum(status.offsets for status in new.status()) == 1000)
        assert {status.role.value for status in new.status()} == {"standby"}
        shard_group = new.partition_of("g7")
        await acquire(new, [shard_group])
        assert offsets(new, "g7") == [7] * 5
        # The old manager has not noticed yet, but the log rejects its writes.
        assert await old.commit(commit("g7", 8)) == CommitResponse(KafkaError.NOT_COORDINATOR)
        await until(lambda: [lost for lost, _ in lease.losses] == [shard_group])
        assert old.ownership_error("g7") == KafkaError.NOT_COORDINATOR
        assert await new.commit(commit("g7", 9)) == CommitResponse()
        await acquire(new, range(PARTITIONS))
        assert [offsets(new, f"g{number}") for number in range(200) if number != 7] == [
            [number] * 5 for number in range(200) if number != 7
        ]
        assert offsets(new, "g7") == [9] * 5


def test_a_record_without_a_key_has_an_empty_one(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> None:
    """A compacted topic rejects such records, but a topic that became compacted later may contain some. No record
    format has an empty key."""
    make_topic(unique, 1)
    with ClaimWriter(kafka.bootstrap, unique) as writer:
        owner = writer.producer(unique)
        writer.claim(0, owner)
        writer.append(0, [(None, b"without a key")], owner)  # type: ignore[list-item]
    log = KafkaLog(kafka.bootstrap, unique, 1)
    reader = log.reader()
    newest: dict[int, dict[bytes, bytes | None]] = {0: {}}

    reader.load({0: 0}, {0: 2}, newest)
    reader.follow({0: 1})

    assert newest == {0: {b"": b"without a key"}}
    assert [(record.key, record.value) for record in reader.poll(10, 10)] == [(b"", b"without a key")]
    reader.close()
    log.close()
