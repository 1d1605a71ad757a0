"""A manager that is frozen (SIGSTOP) until it has lost its shards and resumed acknowledges no commit, serves no fetch
and changes nothing.

Its clients get NOT_COORDINATOR or a closed connection, find the new owner of the shards, and continue.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_client import PARTITIONS, consumer
from history import violations
from manager_cluster import (
    Manager,
    clients_of,
    commit_until_acknowledged,
    fetch_until_answered,
    history_of,
    managers_of,
    owned_by,
    served,
)
from processes import wait_for

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.sandbox import KafkaBroker

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

TP = TopicPartition("t", 0)


@pytest.fixture
def two(kafka: KafkaBroker, tmp_path: Path, unique: str) -> Iterator[list[Manager]]:
    with managers_of(tmp_path, [kafka], 2, "--offsets-topic", unique) as managers:
        yield managers


def addresses(managers: list[Manager]) -> str:
    return ",".join(manager.address for manager in managers)


async def request_while_frozen(frozen: Manager, other: Manager, group: str) -> tuple[str, str]:
    """Sends a commit and a fetch to a frozen manager, waits until the other one has taken over, and resumes it. Returns
    the outcomes of the commit and the fetch."""

    async def fetch_outcome(connection: BrokerConnection, fetching: bool) -> str:
        try:
            if fetching:
                found = await connection.call(requests.offset_fetch({group: [TP]}), 120)
                code = found["groups"][0]["error_code"]
            else:
                request = requests.offset_commit(group, {TP: OffsetAndMetadata(666)})
                answer = await connection.call(request, 120)
                code = answer["topics"][0]["partitions"][0]["error_code"]
        except OffsetMgrError as error:
            return str(error)
        return f"error {code}"

    address = Address.parse(frozen.address)
    connections = [await BrokerConnection.open(address, Security(), 60) for _ in range(2)]
    frozen.freeze()
    pending = [
        asyncio.create_task(fetch_outcome(c, fetching)) for c, fetching in zip(connections, (False, True), strict=True)
    ]
    await asyncio.to_thread(wait_for, lambda: served(other.address, 1), "the other manager serves everything")
    await asyncio.to_thread(commit_at, other, group)
    assert not any(task.done() for task in pending)
    frozen.thaw()
    outcomes = await asyncio.gather(*pending)
    for connection in connections:
        await connection.close()
    return outcomes[0], outcomes[1]


def commit_at(manager: Manager, group: str) -> None:
    client = consumer(manager.address, group)
    commit_until_acknowledged(client, 200)
    client.close()


def test_a_manager_resumed_after_losing_ownership_serves_no_request(two: list[Manager]) -> None:
    all_addresses = addresses(two)
    group = owned_by(two[0], all_addresses)
    client = consumer(all_addresses, group)
    commit_until_acknowledged(client, 100)

    commit_outcome, fetch_outcome = asyncio.run(request_while_frozen(two[0], two[1], group))

    allowed = (f"error {int(ErrorCode.NOT_COORDINATOR)}", f"broker {two[0].address}: the connection broke")
    assert commit_outcome in allowed
    assert fetch_outcome in allowed
    # The client that was connected to the frozen manager finds the other one and continues.
    assert fetch_until_answered(client) == dict.fromkeys(range(PARTITIONS), 200)
    commit_until_acknowledged(client, 300)
    assert fetch_until_answered(client) == dict.fromkeys(range(PARTITIONS), 300)
    client.close()
    wait_for(lambda: served(all_addresses, 2), "both managers share the shards again")


def test_a_manager_frozen_between_its_assignment_and_its_claim_changes_nothing(
    kafka: KafkaBroker, tmp_path: Path, unique: str
) -> None:
    with managers_of(tmp_path, [kafka], 1, "--offsets-topic", unique) as managers:
        late = Manager(tmp_path, "late", kafka.bootstrap, "--offsets-topic", unique, program=FROZEN_MANAGER)
        all_addresses = addresses([*managers, late])
        try:
            with clients_of(tmp_path, all_addresses, 1, 4) as files:
                late.start()
                wait_for(late.is_frozen, "the late manager is assigned shard groups and frozen before its claim")
                wait_for(lambda: served(managers[0].address, 1), "the first manager serves all shards again")
                late.thaw()
                wait_for(lambda: served(all_addresses, 2), "both managers share the shards")
            assert not violations(history_of(files))
        finally:
            late.kill()


FROZEN_MANAGER = [sys.executable, str(Path(__file__).with_name("frozen_manager.py"))]
