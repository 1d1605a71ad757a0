"""The logs of a store have the topics and ranges of `KafkaCluster`, also next to an invalid topic name."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from processes import fill

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("version", ["3.9", "4.4"])
def test_the_logs_of_a_store_and_the_cluster_agree(version, request, make_topic, unique):
    server: KafkaBroker | KraftBroker = request.getfixturevalue("kafka" if version == "3.9" else "kraft")
    topic = make_topic(unique, 2, bootstrap=server.bootstrap)
    fill(server.bootstrap, topic, 5)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})  # kept alive, because its futures end with it
    deletions = admin.delete_records([Position(topic, 0, 3)])
    assert [done.result(90).low_watermark for done in deletions.values()] == [3]
    names = [topic, f"{unique}-gone", "a b/ü"]
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1), *(TopicPartition(n, 0) for n in names[1:])]
    with KafkaStore(server.bootstrap) as store, KafkaCluster(server.bootstrap) as cluster:
        logs = store.logs()
        assert logs.cluster_id() == cluster.cluster_id()
        assert logs.topics(names) == cluster.topics(names) == {topic: 2}
        for found in (logs.log_ranges(partitions), cluster.log_ranges(partitions)):
            assert [found[tp] for tp in partitions[:2]] == [LogRange(3, 5), LogRange(0, 0)]
            assert all(isinstance(found[tp], UnknownTopicOrPartition) for tp in partitions[2:])
