"""Helpers for tests of the runtime: a runtime over an in-memory log, and a lease that the test controls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import KafkaError
from memory_log import MemoryLog

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest
from offsetmgr.manager.runtime import ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat

PARTITIONS = 16
QUICK = ManagerSettings(commit_timeout_s=20.0, retry_pause_s=0.01, standby_poll_s=0.01, lag_interval_s=0.02)
LOADING, UNAVAILABLE = (
    CommitResponse(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    CommitResponse(KafkaError.COORDINATOR_NOT_AVAILABLE),
)
NOT_COORDINATOR = CommitResponse(KafkaError.NOT_COORDINATOR)


class Lease:
    """An `Ownership` whose lease is valid while ``good`` is true."""

    def __init__(self) -> None:
        self.good = True
        self.losses: list[tuple[int, str]] = []

    def valid(self) -> bool:
        return self.good

    def on_fenced(self, shard_group: int, why: str) -> None:
        self.losses.append((shard_group, why))


class SlowLog(MemoryLog):
    """A log whose readers wait for ``loading_allowed`` before they load."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.loading_allowed = threading.Event()

    def reader(self) -> Any:
        reader = super().reader()
        load = reader.load

        def wait_and_load(*args: Any, **options: Any) -> Mapping[int, int]:
            assert self.loading_allowed.wait(60)
            return load(*args, **options)

        reader.load = wait_and_load  # type: ignore[method-assign]
        return reader


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def manager(
    log: MemoryLog,
    lease: Lease | None = None,
    config: ManagerSettings = QUICK,
    shard_groups: Sequence[int] | None = None,
    members: Any = None,
) -> AsyncIterator[ManagerRuntime]:
    """A runtime that serves these shard groups, or all of them."""
    runtime = ManagerRuntime(log, AvroRecordFormat(), lease or Lease(), config, members)
    await runtime.start()
    try:
        owned = range(runtime.shard_groups) if shard_groups is None else shard_groups
        for shard_group in owned:
            runtime.on_assigned(shard_group)
        await until(lambda: all(s.state == "active" for s in runtime.status() if s.shard_group in owned))
        yield runtime
    finally:
        log.hold = False
        log.advance_high_watermark()
        await runtime.close()


@asynccontextmanager
async def manager_of_new_log(*arguments: Any, **options: Any) -> AsyncIterator[tuple[MemoryLog, ManagerRuntime]]:
    log = MemoryLog(PARTITIONS)
    async with manager(log, *arguments, **options) as runtime:
        yield log, runtime


def commit(group: str, offset: int, *, partitions: int = 1, metadata: str = "") -> CommitRequest:
    return CommitRequest(group, [("t", [(partition, offset, -1, metadata) for partition in range(partitions)])])


def offset(runtime: ManagerRuntime, group: str) -> int:
    """The committed offset of the topic's first partition; -1 if there is none."""
    response = runtime.fetch(FetchRequest(group, [("t", [0])]))
    assert response.error == KafkaError.NO_ERROR
    return response.topics[0][1][0][1]


def fetch_error(runtime: ManagerRuntime, group: str) -> int:
    response = runtime.fetch(FetchRequest(group, [("t", [0])]))
    assert response.topics == ()
    return response.error


def shard_group_of(runtime: ManagerRuntime, group: str) -> int:
    return runtime.partition_of(group) % runtime.shard_groups


async def written(answers: Sequence[Awaitable[CommitResponse]]) -> None:
    assert set(map(str, await asyncio.gather(*answers))) == {str(CommitResponse())}
