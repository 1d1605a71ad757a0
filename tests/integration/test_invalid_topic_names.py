"""An offset with an invalid topic name does not hide the log ranges of other topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


def test_valid_topics_have_log_ranges_despite_an_invalid_one(
    kafka: KafkaBroker, make_topic: Callable[..., str], unique: str
) -> None:
    valid = TopicPartition(make_topic(unique, 1, bootstrap=kafka.bootstrap), 0)
    invalid = TopicPartition("a b/ü", 0)

    with KafkaStore(kafka.bootstrap) as store, KafkaCluster(kafka.bootstrap) as cluster:
        for logs in (cluster, store.logs()):
            found = logs.log_ranges([invalid, valid])
            assert found[valid] == LogRange(0, 0)
            assert isinstance(found[invalid], UnknownTopicOrPartition)
            assert logs.topics([invalid.topic, valid.topic]) == {valid.topic: 1}
