"""`KafkaCluster` on real brokers: releases, log ranges next to an invalid topic name, and very many groups."""

import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from offsets_topic import foreign_epochs
from processes import fill, until

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import GroupDescription, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.producers import OpenTransactions
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers

DESCRIBE = """
import sys
from offsetmgr.kafka.cluster import KafkaCluster
with KafkaCluster(sys.argv[1]) as cluster:
    found = cluster.describe_groups(f"{sys.argv[2]}-{n}" for n in range(20_000))
print(len(found), {getattr(group, "state", group) for group in found.values()})
"""


def test_a_broker_is_recognised_by_its_release(current_broker: KafkaBroker | KraftBroker) -> None:
    with KafkaCluster(current_broker.bootstrap) as cluster:
        (broker,) = cluster.describe_brokers()
    assert broker.release == current_broker.version.rpartition(".")[0]


def test_the_logs_of_a_store_and_the_cluster_agree(bootstrap, make_topic, unique):
    topic = make_topic(unique, 2, bootstrap=bootstrap)
    fill(bootstrap, topic, 5)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept alive, because its futures end with it
    deletions = admin.delete_records([Position(topic, 0, 3)])
    assert [done.result(90).low_watermark for done in deletions.values()] == [3]
    names = [topic, f"{unique}-gone", "a b/ü"]
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1), *(TopicPartition(n, 0) for n in names[1:])]
    with KafkaStore(bootstrap) as store, KafkaCluster(bootstrap) as cluster:
        logs = store.logs()
        assert logs.cluster_id() == cluster.cluster_id()
        assert logs.topics(names) == cluster.topics(names) == {topic: 2}
        for found in (logs.log_ranges(partitions), cluster.log_ranges(partitions)):
            assert [found[tp] for tp in partitions[:2]] == [LogRange(3, 5), LogRange(0, 0)]
            assert all(isinstance(found[tp], UnknownTopicOrPartition) for tp in partitions[2:])


def test_twenty_thousand_groups_can_be_described(kafka, unique):
    # In a separate process, because librdkafka aborts the process if one request names all groups.
    command = [sys.executable, "-c", DESCRIBE, kafka.bootstrap, unique]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "20000 {'DEAD'}\n", "")


def test_open_transactions_of_partitions(
    current_broker: KafkaBroker | KraftBroker, make_topic: MakeTopic, unique: str
) -> None:
    # Given a partition with an open transaction behind two records, and an idle one
    bootstrap = current_broker.bootstrap
    topic = make_topic(unique, 2, bootstrap=bootstrap)
    fill(bootstrap, topic, 2)
    idle, busy, gone = TopicPartition(topic, 1), TopicPartition(topic, 0), TopicPartition(f"{unique}-gone", 0)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
    producer.init_transactions(60)
    producer.begin_transaction()
    before_ms = time.time() * 1000
    for _ in range(3):
        producer.produce(topic, b"open", partition=0)
    assert producer.flush(60) == 0
    with KafkaCluster(bootstrap) as cluster:
        # When the cluster is asked, then it names the producer
        found = cluster.open_transactions([idle, busy, gone])
        assert isinstance(found[gone], UnknownTopicOrPartition)
        assert found[idle] == OpenTransactions(0, 0)
        named = found[busy]
        assert isinstance(named, OpenTransactions)
        assert (named.is_open, named.stable_end, named.end) == (True, 2, 5)
        (one,) = named.transactions
        assert (one.transactional_id, one.first_offset) == (unique, 2)
        assert one.started_ms is not None
        assert abs(one.started_ms - before_ms) < 60_000
        assert str(one).startswith(f"transactional id {unique} (producer {one.producer_id}, epoch {one.epoch}), open ")
        # And when the transaction ends, none is open
        producer.abort_transaction(60)
        until(lambda: cluster.open_transactions([busy]) == {busy: OpenTransactions(6, 6)})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_static_members_are_removed(kraft: KraftBroker, make_topic: MakeTopic, unique: str, protocol: str) -> None:
    # Given a stopped static consumer, which stays a member until its session ends, and a running one
    topic, stays = make_topic(unique, 2, bootstrap=kraft.bootstrap), f"{unique}-stays"
    config = {"bootstrap.servers": kraft.bootstrap, "group.id": unique, "group.protocol": protocol}
    consumers = [Consumer({**config, "group.instance.id": name}) for name in (unique, stays)]
    for consumer in consumers:
        consumer.subscribe([topic])

    def members() -> dict[str | None, int]:
        for consumer in consumers:
            consumer.poll(0.05)
        described = cluster.describe_groups([unique])[unique]
        assert isinstance(described, GroupDescription)
        return {one.instance_id: len(one.partitions) for one in described.members}

    with KafkaCluster(kraft.bootstrap) as cluster:
        until(lambda: members() == {unique: 1, stays: 1})
        consumers.pop(0).close()
        assert members().keys() == {unique, stays}
        # When its instance id is removed, and one that no member has
        removed = cluster.remove_static_members(unique, [unique, f"{unique}-unknown"])
        # Then the running member has its partition at the next rebalance
        assert removed == {unique: None, f"{unique}-unknown": None}
        until(lambda: members() == {stays: 2})
    consumers[0].close()


def test_foreign_epochs_are_found(
    current_broker: KafkaBroker | KraftBroker, make_topic: MakeTopic, unique: str
) -> None:
    """The oracle of the moves between clusters."""
    bootstrap = current_broker.bootstrap
    tp = TopicPartition(make_topic(unique, bootstrap=bootstrap), 0)
    fill(bootstrap, unique, 1)
    with KafkaStore(bootstrap) as store:
        store.commit(unique, {tp: OffsetAndMetadata(1, leader_epoch=0)})
        store.commit(unique, {tp: OffsetAndMetadata(1)})
        assert foreign_epochs(bootstrap, unique) == set()
        store.commit(unique, {tp: OffsetAndMetadata(1, leader_epoch=37)})
        store.commit(unique, {tp: OffsetAndMetadata(1, leader_epoch=0)})
    assert foreign_epochs(bootstrap, unique) == {(unique, tp, 37)}
    assert foreign_epochs(bootstrap, f"{unique}-other") == set()
