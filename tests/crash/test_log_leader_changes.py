"""The manager's log while the leader of a partition changes in the middle of an append.

A leader that waits for its followers answers NOT_LEADER_OR_FOLLOWER when another broker becomes the leader. That broker
may have the batch.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from blocking_writer import claimed
from processes import create_topic, wait_for
from raw_log import RawBatch, RawLogReader
from stalling_proxy import StallingProxy
from three_kraft_brokers import ThreeBrokers, three_kraft_brokers

from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.log.base import OutcomeUnknown
from offsetmgr.manager.log.kafka import KafkaLog

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

TIMEOUT_S = 30.0
APPEND_TIMEOUT_S = 6.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_kraft_brokers(tmp_path_factory.mktemp("leaders"), {"replica.lag.time.max.ms": 30_000}) as brokers:
        yield brokers


@pytest.fixture
def unreachable(brokers: ThreeBrokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[StallingProxy]:
    """A proxy in front of broker 2 that the connections of this process go through."""
    address = brokers.bootstrap.split(",")[1]
    proxy = StallingProxy(address)
    connect = BrokerConnection._connect

    async def connect_to_proxy(to: Address, security: Security) -> BrokerConnection:
        return await connect(Address.parse(proxy.address) if str(to) == address else to, security)

    monkeypatch.setattr(BrokerConnection, "_connect", staticmethod(connect_to_proxy))
    yield proxy
    proxy.close()


def stored(bootstrap: str, topic: str) -> list[bytes | None]:
    """The values of the records that are no claims."""
    found: list[bytes | None] = []

    def on_batch(batch: RawBatch) -> None:
        found.extend(record.value for record in batch.records if record.key == b"k")

    with RawLogReader(bootstrap, topic, [0], on_batch):
        pass
    return found


def test_the_outcome_is_unknown_if_the_leader_changes_before_its_followers_have_the_batch(brokers, unreachable, unique):
    """Broker 3 is frozen, so broker 1 waits for it. Broker 2 has the batch and becomes the leader, but the writer
    cannot reach it. Another batch with the same sequence numbers would be acknowledged, but would not be stored."""
    create_topic(brokers.bootstrap, unique, 1, replicas=3)
    brokers.move_leaders(unique, {0: 1})
    log = KafkaLog(brokers.bootstrap, unique, 1)
    writer = claimed(log, 0)
    writer.append({0: [(b"k", b"first")]}, TIMEOUT_S)
    unreachable.stall()
    brokers.freeze(3)
    try:
        with ThreadPoolExecutor() as pool:
            appending = pool.submit(writer.outcomes, {0: [(b"k", b"second")]}, APPEND_TIMEOUT_S)
            wait_for(lambda: brokers.has_on_disk(2, unique, b"second"), "broker 2 has the batch")
            brokers.move_leaders(unique, {0: 2})
            outcome = appending.result()[0]
    finally:
        brokers.thaw(3)
        unreachable.resume()
    brokers.await_restart()

    assert isinstance(outcome, OutcomeUnknown)
    writer.claim(TIMEOUT_S)
    writer.append({0: [(b"k", b"third")]}, TIMEOUT_S)
    assert stored(brokers.bootstrap, unique) == [b"first", b"second", b"third"]
