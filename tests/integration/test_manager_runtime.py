"""The manager runtime on a real topic: failover, loads, and a manager that is killed or frozen during commits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from claim_writer import ClaimWriter
from conftest import MakeTopic

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, FetchRequest
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime, Role
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

PARTITIONS = 8
PROCESS = Path(__file__).with_name("committing_manager.py")


class Lease:
    def __init__(self) -> None:
        self.losses: list[int] = []

    def valid(self) -> bool:
        return True

    def on_fenced(self, shard_group: int, why: str) -> None:
        self.losses.append(shard_group)


def scenario(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 300))


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def topic_of(kafka: KafkaBroker, name: str) -> str:
    ensure_topic(kafka.bootstrap, {}, name, partitions=PARTITIONS)
    return name


@asynccontextmanager
async def manager(
    kafka: KafkaBroker, topic: str, *, shard_groups: Sequence[int] = range(PARTITIONS), standby: bool = False
) -> AsyncIterator[tuple[ManagerRuntime, Lease]]:
    log, lease = KafkaLog(kafka.bootstrap, topic, PARTITIONS), Lease()
    runtime = ManagerRuntime(log, AvroRecordFormat(), lease, ManagerConfig(standby=standby, lag_interval_s=0.2))
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
    assert response.error == ErrorCode.NONE
    return [entry[1] for _, entries in response.topics for entry in entries]


@contextmanager
def committing(kafka: KafkaBroker, topic: str, file: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(PROCESS), kafka.bootstrap, topic, str(file)])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


async def wait_for_lines(process: subprocess.Popen[bytes], file: Path, count: int) -> None:
    """Waits until the process has written this many lines."""
    async with asyncio.timeout(120):
        while not file.exists() or file.read_bytes().count(b"\n") < count:
            assert process.poll() is None, "the other manager has ended"
            await asyncio.sleep(0.01)


def acknowledged(file: Path) -> dict[str, int]:
    """The newest acknowledged offset of each group."""
    newest: dict[str, int] = {}
    for line in file.read_text().splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and words[0] != "rejected":
            newest[words[0]] = int(words[1])
    return newest


def test_a_standby_takes_over_and_the_predecessor_is_fenced(kafka: KafkaBroker, unique: str) -> None:
    topic = topic_of(kafka, unique)

    async def work() -> None:
        async with (
            manager(kafka, topic) as (old, lease),
            manager(kafka, topic, shard_groups=(), standby=True) as (new, _),
        ):
            answers = [old.commit(commit(f"g{number}", number)) for number in range(200)]
            assert set(map(str, await asyncio.gather(*answers))) == {str(CommitResponse())}
            await until(lambda: sum(status.offsets for status in new.status()) == 1000)
            assert {status.role for status in new.status()} == {Role.STANDBY}
            await acquire(new, [shard_for("g7", PARTITIONS)])
            assert offsets(new, "g7") == [7] * 5
            # The old manager has not noticed yet, but the log rejects its writes.
            assert await old.commit(commit("g7", 8)) == CommitResponse(ErrorCode.NOT_COORDINATOR)
            await until(lambda: lease.losses == [shard_for("g7", PARTITIONS)])
            assert old.ownership_error("g7") == ErrorCode.NOT_COORDINATOR
            assert await new.commit(commit("g7", 9)) == CommitResponse()
            await acquire(new, range(PARTITIONS))
            assert [offsets(new, f"g{number}") for number in range(200) if number != 7] == [
                [number] * 5 for number in range(200) if number != 7
            ]
            assert offsets(new, "g7") == [9] * 5

    scenario(work)


def test_a_shard_group_moves_back_and_forth_during_commits(kafka: KafkaBroker, unique: str) -> None:
    """No commit before an orderly handover fails, and the new owner serves all successful commits."""
    topic = topic_of(kafka, unique)

    async def work() -> None:
        async with (
            manager(kafka, topic, standby=True) as (one, _),
            manager(kafka, topic, shard_groups=(), standby=True) as (
                two,
                _,
            ),
        ):
            group, last, refused = "g", 0, 0
            shard_group = shard_for(group, PARTITIONS)
            owner, other = one, two
            for turn in range(6):
                answers = [owner.commit(commit(group, last + number)) for number in range(1, 21)]
                leaving = asyncio.create_task(owner.on_revoked(shard_group))
                results = await asyncio.gather(*answers)
                await leaving
                last += sum(result.error == ErrorCode.NONE for result in results)
                refused += sum(result.error == ErrorCode.NOT_COORDINATOR for result in results)
                await acquire(other, [shard_group])
                assert offsets(other, group) == [last] * 5, turn
                owner, other = other, owner
            assert refused == 0
            assert last == 120

    scenario(work)


def test_a_load_returns_the_newest_value_of_every_offset(kafka: KafkaBroker, unique: str) -> None:
    topic = topic_of(kafka, unique)
    groups, partitions, rounds = 400, 50, 5

    async def work() -> None:
        async with manager(kafka, topic) as (runtime, _):
            for turn in range(rounds):
                answers = [runtime.commit(commit(f"g{number}", turn, partitions)) for number in range(groups)]
                assert {answer.error for answer in await asyncio.gather(*answers)} == {ErrorCode.NONE}
            assert await runtime.delete_group("g0") == ErrorCode.NONE
        async with manager(kafka, topic) as (runtime, _):
            assert offsets(runtime, "g0") == []
            assert all(offsets(runtime, f"g{number}") == [rounds - 1] * partitions for number in range(1, groups))
            assert sum(status.offsets for status in runtime.status()) == (groups - 1) * partitions

    scenario(work)


def test_after_sigkill_during_commits_every_acknowledged_commit_exists(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    topic, file = topic_of(kafka, unique), tmp_path / "acknowledged"
    with committing(kafka, topic, file) as process:
        asyncio.run(wait_for_lines(process, file, 500))
        process.kill()
        process.wait()
    expected = acknowledged(file)

    async def work() -> None:
        async with manager(kafka, topic) as (runtime, _):
            found = {group: offsets(runtime, group) for group in expected}
            assert {group for group, at in expected.items() if min(found[group]) < at} == set()
            # A commit is atomic: one in flight was written for all partitions or for none.
            assert {group for group, values in found.items() if len(set(values)) > 1} == set()

    scenario(work)


def test_a_manager_frozen_during_commits_acknowledges_nothing_when_it_wakes(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    topic, file = topic_of(kafka, unique), tmp_path / "acknowledged"

    async def work() -> None:
        with committing(kafka, topic, file) as process:
            await wait_for_lines(process, file, 200)
            os.kill(process.pid, signal.SIGSTOP)
            expected = acknowledged(file)
            async with manager(kafka, topic) as (runtime, lease):
                found = {group: offsets(runtime, group) for group in expected}
                assert {group for group, at in expected.items() if min(found[group]) < at} == set()
                os.kill(process.pid, signal.SIGCONT)
                await until(lambda: file.read_text().count("rejected") >= len(expected))
                # Acknowledgements printed after the thaw date from before the freeze: the new owner has them.
                assert {group for group, at in acknowledged(file).items() if min(found[group]) < at} == set()
                answers = [runtime.commit(commit(group, 1_000_000, 10)) for group in expected]
                assert {answer.error for answer in await asyncio.gather(*answers)} == {ErrorCode.NONE}
                assert lease.losses == []

    scenario(work)


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
