"""A manager that is frozen (SIGSTOP) until it has lost its shards and resumed acknowledges no commit and serves no
fetch. No manager answers a fetch while the coordinator of their group is frozen.

Its clients get NOT_COORDINATOR or a closed connection, find the new owner of the shards, and continue.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_client import PARTITIONS, consumer, fetch
from confluent_kafka import Consumer
from manager_cluster import (
    Manager,
    addresses_of,
    commit_at,
    commit_until_acknowledged,
    fetch_until_answered,
    managers_of,
    owned_by,
    served,
)
from processes import Commands, wait_for

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

TP = TopicPartition("t", 0)


@pytest.fixture
def two(kafka: KafkaBroker, tmp_path: Path, unique: str) -> Iterator[list[Manager]]:
    with managers_of(tmp_path, [kafka], 2, "--offsets-topic", unique) as managers:
        yield managers


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
    await asyncio.to_thread(commit_at, other.address, group, 200)
    assert not any(task.done() for task in pending)
    frozen.thaw()
    outcomes = await asyncio.gather(*pending)
    for connection in connections:
        await connection.close()
    return outcomes[0], outcomes[1]


def test_a_manager_resumed_after_losing_ownership_serves_no_request(two: list[Manager]) -> None:
    all_addresses = addresses_of(two)
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


def test_without_a_coordinator_no_manager_answers_a_fetch(tmp_path: Path, unique: str) -> None:
    with (
        KraftBroker(tmp_path / "kraft") as broker,
        managers_of(tmp_path, [broker], 2, "--offsets-topic", unique) as two,  # type: ignore[list-item]
    ):
        client = consumer(addresses_of(two), unique)
        commit_until_acknowledged(client, 100)
        broker.freeze()
        wait_for(lambda: fetch(client, "t") is None, "the leases have run out")
        assert fetch(client, "t") is None
        broker.thaw()
        assert fetch_until_answered(client) == dict.fromkeys(range(PARTITIONS), 100)
        client.close()


def test_errors_that_only_an_administrator_can_fix_end_the_start(kafka, make_topic, tmp_path, unique) -> None:
    serve = ["manager", "serve", "--bootstrap-server", kafka.bootstrap, "--listen", "127.0.0.1:0"]
    serve += ["--offsets-topic", f"{unique}-offsets", "--partitions", "8"]
    foreign = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"{unique}-offsets.managers"})
    foreign.subscribe([make_topic(unique)])
    wait_for(lambda: foreign.poll(0.1) is None and foreign.assignment(), "the consumer has joined the managers' group")
    try:
        refused = Commands(tmp_path).run(*serve, code=1)
    finally:
        foreign.close()
    assert "the group's members use another protocol (INCONSISTENT_GROUP_PROTOCOL)" in refused.stderr
    short = Commands(tmp_path).run(*serve, "--session-timeout", "1000", code=1)
    assert "exclude our session timeout (INVALID_SESSION_TIMEOUT)" in short.stderr
