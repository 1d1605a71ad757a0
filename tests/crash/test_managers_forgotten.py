"""A manager that is frozen (SIGSTOP) in the middle of a commit, while a successor claims its shards, commits and stops,
until the brokers have dropped the state of both producers.

When it resumes, it acknowledges nothing under its old claim, and no fetch returns an older offset than the successor
has acknowledged.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import late_manager
import pytest
from committing_client import PARTITIONS, consumer, fetch
from late_manager import IGNORE_LEASE, TRIGGER
from manager_cluster import SHARDS, Manager, commit_at, commit_until_acknowledged, fetch_until_answered, served
from processes import wait_for
from raw_log import PartitionHistory, RawLogReader

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.client.producers import describe_producers
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.sandbox import KraftBroker

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

LATE_MANAGER = [sys.executable, late_manager.__file__]
GROUP = "g"
TP = TopicPartition("t", 0)
TIMEOUT_S = 60.0
SETTINGS = {
    "producer.id.expiration.ms": 16_000,
    "producer.id.expiration.check.interval.ms": 500,
    "transactional.id.expiration.ms": 16_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "connections.max.idle.ms": 7_000,
    "group.min.session.timeout.ms": 1_000,
}


def answers(broker: KraftBroker) -> bool:
    with KafkaCluster(broker.bootstrap) as cluster, suppress(OffsetMgrError):
        return bool(cluster.brokers())
    return False


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    with KraftBroker(tmp_path_factory.mktemp("forgetful"), config=SETTINGS) as broker:
        # The first response of a new broker may take longer than its connections may be idle, and then it closes them.
        wait_for(lambda: answers(broker), "the broker answers")
        yield broker


def manager(directory: Path, name: str, broker: KraftBroker, topic: str) -> Manager:
    options = ("--offsets-topic", topic, "--session-timeout", "3000")
    return Manager(directory, name, broker.bootstrap, *options, program=LATE_MANAGER)


async def known_producers(broker: KraftBroker, topic: str) -> set[int]:
    """The producer ids of which the leader has a state in any partition."""
    client = Client(broker.bootstrap, Security.of({}))
    try:
        connection = await client.any_connection(asyncio.get_running_loop().time() + TIMEOUT_S)
        found = await describe_producers(connection, topic, range(SHARDS), TIMEOUT_S)
    finally:
        await client.close()
    ids: set[int] = set()
    for epochs in found.values():
        assert not isinstance(epochs, OffsetMgrError)
        ids |= epochs.keys()
    return ids


async def outcomes_of_a_frozen_manager(
    frozen: Manager, successor: Manager, broker: KraftBroker, topic: str
) -> tuple[int | None, int | None]:
    """Lets a manager freeze in the middle of a commit of 666, lets the successor commit 200 and stop, and resumes the
    frozen one once the brokers have forgotten both. Returns the error code of the commit, and the offset that a fetch
    from that time has returned; None after an error."""

    async def commit(connection: BrokerConnection) -> int | None:
        request = requests.offset_commit(GROUP, {TP: OffsetAndMetadata(666, TRIGGER)})
        try:
            answer = await connection.call(request, 120)
        except OffsetMgrError:
            return None
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    async def fetch_offset(connection: BrokerConnection) -> int | None:
        try:
            answer = await connection.call(requests.offset_fetch({GROUP: [TP]}), 120)
        except OffsetMgrError:
            return None
        found = answer["groups"][0]
        offset: int = found["topics"][0]["partitions"][0]["committed_offset"] if not found["error_code"] else -1
        return None if offset < 0 else offset

    connections = [await BrokerConnection.open(Address.parse(frozen.address), Security(), 60) for _ in range(2)]
    committing = asyncio.create_task(commit(connections[0]))
    await asyncio.to_thread(wait_for, frozen.is_frozen, "the manager is frozen before it sends the batch")
    fetching = asyncio.create_task(fetch_offset(connections[1]))
    await asyncio.to_thread(wait_for, lambda: served(successor.address, 1), "the successor serves all shards")
    await asyncio.to_thread(commit_at, successor.address, GROUP, 200)
    assert await asyncio.to_thread(successor.stop) == 0
    for _ in range(600):
        if not await known_producers(broker, topic):
            break
        await asyncio.sleep(0.2)
    assert await known_producers(broker, topic) == set()
    assert not committing.done()
    frozen.thaw()
    outcomes = await committing, await fetching
    for connection in connections:
        await connection.close()
    return outcomes


@pytest.mark.parametrize("ignores_lease", [False, True])
def test_a_manager_that_wakes_after_the_brokers_forgot_its_successor_acknowledges_nothing(
    broker: KraftBroker, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch, ignores_lease: bool
) -> None:
    frozen, successor = (manager(tmp_path, name, broker, unique) for name in ("frozen", "successor"))
    history = PartitionHistory(shard_for(GROUP, SHARDS))
    try:
        with monkeypatch.context() as environment:
            if ignores_lease:
                environment.setenv(IGNORE_LEASE, "1")
            frozen.start()
            # On a busy machine the broker may close the first connection before it answers, and then the manager ends.
            wait_for(
                lambda: served(frozen.address, 1) or frozen.start_if_ended(), "the first manager serves all shards"
            )
        commit_at(frozen.address, GROUP, 100)
        successor.start()
        with RawLogReader(broker.bootstrap, unique, [shard_for(GROUP, SHARDS)], history.add):
            outcomes = asyncio.run(outcomes_of_a_frozen_manager(frozen, successor, broker, unique))

            assert outcomes[0] != 0
            if not ignores_lease:
                assert outcomes[1] in (None, 200)
                client = consumer(frozen.address, GROUP)
                assert fetch_until_answered(client) == dict.fromkeys(range(PARTITIONS), 200)
                commit_until_acknowledged(client, 300)
                assert fetch(client, "t") == dict.fromkeys(range(PARTITIONS), 300)
                client.close()
            else:
                wait_for(lambda: served(frozen.address, 1), "the manager serves all shards again")
                commit_at(frozen.address, GROUP, 300)
    finally:
        frozen.kill()
        successor.kill()
    assert not history.violations
    assert not any(TRIGGER.encode() in (value or b"") for value in history.values)
