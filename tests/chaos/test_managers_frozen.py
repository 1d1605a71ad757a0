"""A manager frozen (SIGSTOP) past its ownership and woken: it acknowledges nothing, answers no fetch, changes nothing.

Its clients get NOT_COORDINATOR or a broken connection, find the manager that has the shards now, and go on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_client import PARTITIONS, consumer
from fleet import (
    SHARDS,
    Manager,
    answer_to,
    clients_of,
    commits,
    history_of,
    managers_of,
    reports,
    served,
    wait_for,
)
from history import violations
from kio.schema.offset_commit.v7.response import OffsetCommitResponse
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.sandbox import KafkaBroker

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

NOT_COORDINATOR = 16
TP = TopicPartition("t", 0)


@pytest.fixture
def two(kafka: KafkaBroker, tmp_path: Path, unique: str) -> Iterator[list[Manager]]:
    with managers_of(tmp_path, [kafka], 2, "--offsets-topic", unique) as managers:
        yield managers


def addresses(managers: list[Manager]) -> str:
    return ",".join(manager.address for manager in managers)


def group_of(manager: Manager, all_of_them: str) -> str:
    """A group whose shard this manager owns."""
    owned = {
        shard["partition"]
        for report in reports(all_of_them)
        if str(report.address) == manager.address and report.status
        for shard in report.status["shards"]
        if shard["role"] == "owner"
    }
    return next(name for name in (f"group{n}" for n in range(1000)) if shard_for(name, SHARDS) in owned)


async def ask_while_frozen(frozen: Manager, other: Manager, group: str) -> tuple[str, str]:
    """Sends a commit and a fetch to a frozen manager, lets the other one take over, wakes it: what the two became."""

    async def told(connection: BrokerConnection, fetching: bool) -> str:
        try:
            if fetching:
                found = await connection.call(requests.offset_fetch({group: [TP]}), OffsetFetchResponse, 120)
                code = int(found.groups[0].error_code)
            else:
                request = requests.offset_commit(group, {TP: OffsetAndMetadata(666)})
                answer = await connection.call(request, OffsetCommitResponse, 120)
                code = int(answer.topics[0].partitions[0].error_code)
        except OffsetMgrError as error:
            return str(error)
        return f"error {code}"

    address = Address.parse(frozen.address)
    connections = [await BrokerConnection.open(address, Security(), 10) for _ in range(2)]
    frozen.freeze()
    asked = [asyncio.create_task(told(c, fetching)) for c, fetching in zip(connections, (False, True), strict=True)]
    await asyncio.to_thread(wait_for, lambda: served(other.address, 1), "the other manager serves everything", 60)
    await asyncio.to_thread(move_on, other, group)
    assert not any(task.done() for task in asked)
    frozen.thaw()
    outcomes = await asyncio.gather(*asked)
    for connection in connections:
        await connection.close()
    return outcomes[0], outcomes[1]


def move_on(manager: Manager, group: str) -> None:
    client = consumer(manager.address, group)
    commits(client, 200)
    client.close()


def test_a_frozen_manager_that_wakes_tells_no_client_anything(two: list[Manager]) -> None:
    everybody = addresses(two)
    group = group_of(two[0], everybody)
    client = consumer(everybody, group)
    commits(client, 100)

    committed, fetched = asyncio.run(ask_while_frozen(two[0], two[1], group))

    allowed = (f"error {NOT_COORDINATOR}", f"broker {two[0].address}: the connection broke")
    assert committed in allowed
    assert fetched in allowed
    # The client that had spoken with the frozen one is told NOT_COORDINATOR at most, finds the other one, and goes on.
    assert answer_to(client) == dict.fromkeys(range(PARTITIONS), 200)
    commits(client, 300)
    assert answer_to(client) == dict.fromkeys(range(PARTITIONS), 300)
    client.close()
    wait_for(lambda: served(everybody, 2), "both managers share the shards again")


def test_a_manager_frozen_between_its_assignment_and_its_claim_changes_nothing(
    kafka: KafkaBroker, tmp_path: Path, unique: str
) -> None:
    with managers_of(tmp_path, [kafka], 1, "--offsets-topic", unique) as managers:
        late = Manager(tmp_path, "late", kafka.bootstrap, "--offsets-topic", unique, program=FROZEN)
        everybody = addresses([*managers, late])
        try:
            with clients_of(tmp_path, everybody, 1, 4) as files:
                late.start()
                wait_for(late.is_frozen, "the late one has been assigned shard groups, and is frozen before its claim")
                wait_for(lambda: served(managers[0].address, 1), "the first one has everything again", 60)
                late.thaw()
                wait_for(lambda: served(everybody, 2), "both share the shards in the end", 90)
            assert not violations(history_of(files))
        finally:
            late.kill()


FROZEN = [sys.executable, str(Path(__file__).with_name("frozen_manager.py"))]
