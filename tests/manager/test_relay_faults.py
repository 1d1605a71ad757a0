"""The relay when brokers fail, and when brokers store offsets that belong to the manager."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from processes import fails, wait_for
from relay_clients import committed, consumer, produce, read
from running_relay import RunningRelay

from offsetmgr.core.errors import OffsetMgrError

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
