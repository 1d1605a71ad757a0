"""The fences of the manager's log on a broker that forgets producers and transactional ids within seconds."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from blocking_writer import LOOP, claimed
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import wait_for

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.producers import describe_producers
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.manager.log.base import Fenced, OutcomeUnknown
from offsetmgr.manager.log.kafka import KafkaLog, transactional_id_prefix
from offsetmgr.sandbox import KraftBroker

pytestmark = pytest.mark.servers

TIMEOUT_S = 60.0
SETTINGS = {
    "producer.id.expiration.ms": 6_000,
    "producer.id.expiration.check.interval.ms": 500,
    "transactional.id.expiration.ms": 3_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "connections.max.idle.ms": 2_000,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    with KraftBroker(tmp_path_factory.mktemp("forgetful"), config=SETTINGS) as broker:
        yield broker


@pytest.fixture
def log(broker: KraftBroker, make_topic: MakeTopic, unique: str) -> Iterator[KafkaLog]:
    settings = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    log = KafkaLog(broker.bootstrap, make_topic(unique, bootstrap=broker.bootstrap, config=settings), 1)
    yield log
    log.close()


def producers(log: KafkaLog) -> dict[int, int]:
    """The producer ids of which the leader has a state, and their epochs."""

    async def ask() -> dict[int, int]:
        client = Client(log.bootstrap, Security.of({}))
        try:
            connection = await client.any_connection(deadline())
            found = (await describe_producers(connection, log.topic, [0], TIMEOUT_S))[0]
        finally:
            await client.close()
        assert not isinstance(found, OffsetMgrError)
        return found

    return LOOP.run(ask())


def deadline() -> float:
    return asyncio.get_running_loop().time() + TIMEOUT_S


def forgets_transactional_id(log: KafkaLog) -> bool:
    """Whether the coordinator has forgotten the partition's transactional id. A request for a new epoch would renew
    it."""

    async def ask() -> bool:
        client = Client(log.bootstrap, Security.of({}))
        message = {"state_filters": (), "producer_id_filters": ()}
        try:
            connection = await client.any_connection(deadline())
            answer = await connection.call(Request(ApiKey.LIST_TRANSACTIONS, 0, message), TIMEOUT_S)
        finally:
            await client.close()
        assert not answer["error_code"]
        name = f"{transactional_id_prefix(log.topic)}0"
        return name not in {state["transactional_id"] for state in answer["transaction_states"]}

    return LOOP.run(ask())


def test_after_the_transactional_id_expired_a_claim_fences_the_former_producer_id(log: KafkaLog) -> None:
    former = claimed(log, 0)
    former.append({0: [(b"k", b"1")]}, TIMEOUT_S)
    (id_before,) = producers(log)
    wait_for(lambda: forgets_transactional_id(log), "the coordinator has forgotten the transactional id")
    assert id_before in producers(log), "the leader has not forgotten the producer"

    successor = claimed(log, 0)

    with pytest.raises(Fenced):
        former.append({0: [(b"k", b"zombie")]}, TIMEOUT_S)
    successor.append({0: [(b"k", b"2")]}, TIMEOUT_S)
    assert producers(log)[id_before] == 32_767


def test_a_writer_that_wakes_after_the_broker_has_forgotten_its_successor_appends_nothing(log: KafkaLog) -> None:
    """The writer's connection was closed because it was idle. On a new one the leader shows no producer at all."""
    frozen = claimed(log, 0)
    frozen.append({0: [(b"k", b"1")]}, TIMEOUT_S)
    successor = claimed(log, 0)
    last = successor.append({0: [(b"k", b"2")]}, TIMEOUT_S)
    successor.close()
    wait_for(lambda: not producers(log), "the leader has forgotten every producer")

    with pytest.raises((OutcomeUnknown, Fenced)):
        frozen.append({0: [(b"k", b"zombie")]}, TIMEOUT_S)
    with pytest.raises(Fenced):
        frozen.claim(TIMEOUT_S)

    newest: dict[int, dict[bytes, bytes | None]] = {0: {}}
    log.reader().load({0: 0}, {0: last[0] + 1}, newest)
    assert newest == {0: {b"k": b"2"}}
    assert log.end_offsets([0], TIMEOUT_S) == {0: last[0] + 1}


def test_an_owner_whose_transactional_id_expired_loses_the_partition_at_its_next_claim(log: KafkaLog) -> None:
    owner = claimed(log, 0)
    wait_for(lambda: forgets_transactional_id(log), "the coordinator has forgotten the transactional id")

    with pytest.raises(Fenced):
        owner.claim(TIMEOUT_S)

    claimed(log, 0).append({0: [(b"k", b"v")]}, TIMEOUT_S)


def test_no_administrator_can_delete_the_records_of_the_topic(log: KafkaLog) -> None:
    """The deletion of a claim would end the fence."""
    last = claimed(log, 0).append({0: [(b"k", b"v")]}, TIMEOUT_S)
    assert isinstance(last[0], int)
    up_to = TopicPartition(log.topic, 0, last[0] + 1)
    admin = AdminClient({"bootstrap.servers": log.bootstrap})
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        admin.delete_records([up_to])[up_to].result(TIMEOUT_S)


def test_a_refresh_keeps_the_producer_and_the_transactional_id(log: KafkaLog) -> None:
    owner = claimed(log, 0)
    (id_before,) = producers(log)
    for _ in range(9):  # longer than both expiries
        time.sleep(1)
        owner.claim(TIMEOUT_S)
    owner.append({0: [(b"k", b"v")]}, TIMEOUT_S)
    assert producers(log).keys() == {id_before}
