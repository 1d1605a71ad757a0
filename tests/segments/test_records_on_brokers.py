"""``log dump`` decodes the records of a broker of 4.4, and brokers read ours."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from broker_written_logs import dumped
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import fill

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.base import EncodedRecord, GroupValue
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.broker import DEFAULT_VERSION, KRAFT_JARS
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

OFFSETS_TOPIC = "__consumer_offsets"
NOW = 1_700_000_000_000
record_format = KafkaRecordFormat()


def test_records_of_the_new_consumer_protocol_are_skipped_by_name_and_its_offsets_are_read(kraft, make_topic, unique):
    """The consumer protocol of KIP-848 has its own record types for groups."""
    topic = make_topic(unique, 3, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, topic, 5, 5, 5)
    settings = {"bootstrap.servers": kraft.bootstrap, "group.id": unique, "group.protocol": "consumer"}
    consumer = ck.Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    read, deadline = 0, time.monotonic() + 120
    while read < 15:
        assert time.monotonic() < deadline, f"{read} of 15 records after 120 s"
        read += sum(message.error() is None for message in consumer.consume(15, 0.2))
    consumer.commit(asynchronous=False)
    consumer.close()

    found = [row for row in dumped(kraft.directory / "data", "--topic", OFFSETS_TOPIC) if isinstance(row["key"], dict)]

    offsets = [row for row in found if row["key"]["type"] == "offset" and row["key"]["group"] == unique]
    assert {row["key"]["partition"]: row["value"]["offset"] for row in offsets} == dict.fromkeys(range(3), 5)
    assert {row["key"]["type"] for row in found} >= {"ConsumerGroupMetadata", "ConsumerGroupMemberMetadata"}


def written(group: str, topic: str) -> list[EncodedRecord]:
    """Every kind of record that `KafkaRecordFormat` writes."""
    return [
        *record_format.encode_commit(group, topic, [(0, 5, 3, "by hand, ü"), (1, 6, -1, "")], NOW, None),
        *record_format.encode_commit(group, topic, [(2, 7, 4, "m")], NOW, NOW + (1 << 40)),
        (record_format.offset_prefix(group, topic) + record_format.partition_suffix(9), None),
        record_format.encode_group(group, GroupValue(NOW)),
        (record_format.encode_group_key("gone"), None),
    ]


def produce(bootstrap: str, topic: str, partition: int, records: list[EncodedRecord]) -> None:
    # Only a client of this name may write into the brokers' own topics.
    producer = ck.Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client", "log_level": 0})
    failed: list[Any] = []
    for key, value in records:
        producer.produce(
            topic, key=key, value=value, partition=partition, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(60) == 0
    assert failed == []


@pytest.mark.parametrize(
    "version", [DEFAULT_VERSION, *(pytest.param(one, marks=pytest.mark.soak) for one in KRAFT_JARS)]
)
def test_a_broker_loads_and_serves_the_records_that_we_wrote(version: str, tmp_path: Path, request: Any) -> None:
    """The broker's own offsets topic contains our records and a key of an unknown version."""
    group = "group ü"
    with ExitStack() as stack:
        broker: KafkaBroker | KraftBroker
        config = {"offsets.topic.num.partitions": 3}
        if version == DEFAULT_VERSION:
            zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper")
            connect = f"{zookeeper.connect}/{tmp_path.name}"
            broker = stack.enter_context(KafkaBroker(tmp_path / "kafka", zookeeper=connect, config=config))
        else:
            broker = stack.enter_context(KraftBroker(tmp_path / "kafka", config=config, version=version))
        make_topic: MakeTopic = request.getfixturevalue("make_topic")
        topic = make_topic("orders", 3, bootstrap=broker.bootstrap)
        with KafkaStore(broker.bootstrap) as store:
            store.commit("first", {TopicPartition(topic, 0): OffsetAndMetadata(1)})  # makes the broker create its topic
        produce(broker.bootstrap, OFFSETS_TOPIC, shard_for(group, 3), [(b"\x4f\x00?", b"?"), *written(group, topic)])

        broker.stop()
        broker.start()

        with KafkaStore(broker.bootstrap) as store:
            assert store.fetch(group) == {
                TopicPartition(topic, 0): Committed(5, "by hand, ü", 3),
                TopicPartition(topic, 1): Committed(6),
                TopicPartition(topic, 2): Committed(7, "m"),
            }
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})  # it ends its requests when it is deleted
        assert admin.describe_consumer_groups([group])[group].result(60).state.name == "EMPTY"
