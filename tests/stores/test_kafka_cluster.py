"""`KafkaCluster` on real brokers: releases, log ranges next to an invalid topic name, and very many groups."""

import subprocess
import sys

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
