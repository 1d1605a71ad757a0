"""Partitions without records in a real Kafka cluster do not hold the barrier."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from conftest import MakeTopic

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.period.coordinator import CoordinatorOptions, PeriodCoordinator
from offsetmgr.period.idle_check import IdleCheck, find_idle, idle_partitions
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = pytest.mark.servers

HOURLY = PeriodSchedule(1_700_006_400_000, 3_600_000)
START = HOURLY.first_ms


def test_a_barrier_closes_without_the_partitions_that_have_no_records(
    kafka: KafkaBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str
) -> None:
    # Given partitions with a record within the period, one before it, one after it, one dated ahead of it, and none
    topic = make_topic(unique, 5, config={"retention.ms": "-1"})
    within, before, after, ahead, none = (TopicPartition(topic, n) for n in range(5))
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    times = {within: [START], before: [START - 1], after: [START + 3_600_000], ahead: [START + 10**9, START + 5]}
    for partition, stamps in times.items():
        for stamp in stamps:
            producer.produce(topic, b"x", partition=partition.partition, timestamp=stamp)
    assert producer.flush(30) == 0
    period = HOURLY.period(0)
    everything = [within, before, after, ahead, none]
    with KafkaCluster(kafka.bootstrap) as cluster:
        # When the cluster is queried, then only partitions without any record since the start are idle
        missing = TopicPartition(topic, 9)
        found = dict(find_idle(cluster, period, [*everything, missing]))
        assert isinstance(found.pop(missing), UnknownTopicOrPartition)
        assert found == {
            within: None,
            before: IdleCheck(before, period, 1),
            after: None,
            ahead: None,
            none: IdleCheck(none, period, 0),
        }
        # And a run advances once the partitions with records are finished
        mine = [within, after, ahead]
        member = PeriodCoordinator(
            zookeeper.connect,
            f"/{unique}",
            "m",
            HOURLY,
            lambda: everything,
            owned=mine,
            options=CoordinatorOptions(idle=idle_partitions(cluster)),
        )
        with member:
            assert member.current_period_complete(mine, timeout_s=90).number == 1
    with ZookeeperSession(zookeeper.connect) as session:
        assert BarrierStateStore(session, f"/{unique}").history()[0].idle == {before, none}
