"""An offset of a topic that Kafka cannot have does not hide what the brokers know of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.kafka_logs import KafkaLogs

pytestmark = pytest.mark.servers


def test_the_others_have_their_ranges(kafka: KafkaBroker, make_topic: Callable[..., str], unique: str) -> None:
    there = TopicPartition(make_topic(unique, 1, bootstrap=kafka.bootstrap), 0)
    impossible = TopicPartition("a b/ü", 0)

    with KafkaStore(kafka.bootstrap) as store, KafkaCluster(kafka.bootstrap) as cluster:
        for logs in (cluster, KafkaLogs(store)):
            found = logs.log_ranges([impossible, there])
            assert found[there] == LogRange(0, 0)
            assert isinstance(found[impossible], UnknownTopicOrPartition)
            assert logs.topics([impossible.topic, there.topic]) == {there.topic: 1}
