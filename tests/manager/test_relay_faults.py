"""The relay when brokers fail, and when brokers store offsets that belong to the manager."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from memory_listener import WireClient
from processes import fails, wait_for
from relay_clients import committed, consumer, produce, read
from running_relay import RunningRelay

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.segments.batch_builder import batch as encode_batch
from offsetmgr.segments.batch_reader import Record

pytestmark = pytest.mark.servers


def test_a_broken_upstream_connection_disconnects_the_client_which_reconnects(relay, make_topic, unique) -> None:
    make_topic(unique, 1)
    produce(relay, unique, 1, 10)
    client = consumer(relay, unique)
    client.subscribe([unique])
    read(client, 10)

    def break_all() -> int:
        links = [c.state["relay"] for c in relay.service.connections if c.state.get("relay") is not None]
        upstreams = [upstream for link in links for upstream in link._upstreams.values()]
        for upstream in upstreams:
            if upstream._transport is not None:
                upstream._transport.abort()
        return len(upstreams)

    assert relay.call(break_all) >= 2, "one connection for data and one for the membership"
    produce(relay, unique, 1, 5)
    assert len(read(client, 5)) == 5
    wait_for(lambda: commits(client), "the client commits again as a member")
    assert committed(relay, unique) == {(unique, 0): 15}
    client.close()


def commits(client: Consumer) -> bool:
    client.poll(0.05)
    return not fails(KafkaException, lambda: client.commit(asynchronous=False))


def test_an_unreachable_cluster_is_an_error_at_startup(unique: str) -> None:
    with pytest.raises(OffsetMgrError), RunningRelay("127.0.0.1:1"):
        pass


def test_status_lists_groups_whose_offsets_the_brokers_also_store(relay, make_topic, unique) -> None:
    make_topic(unique, 1)
    direct = Consumer({"bootstrap.servers": relay.real, "group.id": unique})
    admin = AdminClient({"bootstrap.servers": relay.real})
    direct.commit(offsets=[TopicPartition(unique, 0, 3)], asynchronous=False)
    assert relay.bypassed() == {}, "a group without offsets in the manager is not listed"
    via_relay = consumer(relay, unique)
    via_relay.commit(offsets=[TopicPartition(unique, 0, 5)], asynchronous=False)
    try:
        assert relay.bypassed() == {unique: 1}
    finally:
        admin.delete_consumer_groups([unique])[unique].result(90)
    assert relay.bypassed() == {}
    direct.close()
    via_relay.close()


@contextmanager
def connecting_slowly(relay: RunningRelay) -> Iterator[Callable[[], None]]:
    """The relay's new connections to brokers wait until the function is called."""
    may_connect = relay.run(event())
    connect = BrokerConnection.open

    async def later(*args: Any) -> BrokerConnection:
        await may_connect.wait()
        return await connect(*args)

    with patch.object(BrokerConnection, "open", later):
        try:
            yield lambda: relay.call(may_connect.set)
        finally:
            relay.call(may_connect.set)


def producers(relay: RunningRelay) -> list[Any]:
    """The connections of clients whose records wait for the relay's connection to the broker."""
    return [c for c in relay.service.connections if c._bytes > 400_000]


async def event() -> asyncio.Event:
    return asyncio.Event()


def unacknowledged(topic: str) -> dict[str, Any]:
    """A Produce request of 500 KB to which the broker does not respond."""
    records = encode_batch([Record(0, 1, None, bytes(500_000))])
    return {
        "transactional_id": None,
        "acks": 0,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
    }


def end_of(relay: RunningRelay, topic: str) -> int:
    reader = Consumer({"bootstrap.servers": relay.real, "group.id": topic})
    try:
        return int(reader.get_watermark_offsets(TopicPartition(topic, 0), 30, cached=False)[1])
    finally:
        reader.close()


def test_unacknowledged_records_are_held_back_while_the_relay_connects_and_none_is_lost(relay, make_topic, unique):
    make_topic(unique, 1)
    (port,) = relay.relay.brokers.ports().values()
    with connecting_slowly(relay) as connect, WireClient(port) as client:
        message = unacknowledged(unique)
        writer = threading.Thread(target=lambda: [client.send(0, 9, message) for _ in range(100)])
        writer.start()
        wait_for(lambda: relay.service.held_bytes >= 16 << 20, "the relay has stopped reading")
        (held,) = relay.call(lambda: producers(relay))
        assert sum(map(len, next(iter(held.state["relay"]._upstreams.values()))._unsent)) < 17 << 20
        connect()
        writer.join()
        wait_for(lambda: end_of(relay, unique) == 100, "all records are stored")
        assert relay.service.held_bytes < 1 << 20


def test_records_of_producers_that_have_left_count_as_memory_until_they_are_sent(relay, make_topic, unique):
    make_topic(unique, 1)
    (port,) = relay.relay.brokers.ports().values()
    with connecting_slowly(relay) as connect:
        for number in range(1, 9):
            with WireClient(port) as client:
                client.send(0, 9, unacknowledged(unique))
                wait_for(lambda: relay.call(lambda: producers(relay)), "the request arrived")
            wait_for(lambda: not relay.call(lambda: producers(relay)), "the producer has left")
            assert number * 500_000 < relay.service.held_bytes < number * 510_000
        connect()
        wait_for(lambda: end_of(relay, unique) == 8, "the records are stored")
        wait_for(lambda: relay.service.held_bytes < 100_000, "the memory is free")
