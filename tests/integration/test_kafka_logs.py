"""`KafkaLogs` returns the same topics and log ranges as librdkafka's Admin client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("version", ["3.9", "4.4"])
def test_kafka_logs_and_the_admin_client_agree(
    version: str, request: pytest.FixtureRequest, make_topic: Callable[..., str], unique: str
) -> None:
    server: KafkaBroker | KraftBroker = request.getfixturevalue("kafka" if version == "3.9" else "kraft")
    topic = make_topic(unique, 2, bootstrap=server.bootstrap)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for _ in range(5):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": server.bootstrap})  # kept alive, because its futures end with it
    deletions = admin.delete_records([Position(topic, 0, 3)])
    assert [done.result(90).low_watermark for done in deletions.values()] == [3]
    names = [topic, f"{unique}-gone"]
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(f"{unique}-gone", 0)]
    with KafkaStore(server.bootstrap) as store, KafkaCluster(server.bootstrap) as cluster:
        logs = store.logs()
        assert logs.cluster_id() == cluster.cluster_id()
        assert logs.topics(names) == cluster.topics(names) == {topic: 2}
        found = logs.log_ranges(partitions)
        assert [found[tp] for tp in partitions[:2]] == [LogRange(3, 5), LogRange(0, 0)]
        assert cluster.log_ranges(partitions[:2]) == {tp: found[tp] for tp in partitions[:2]}
        assert isinstance(found[partitions[2]], UnknownTopicOrPartition)
