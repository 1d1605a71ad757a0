"""Outcomes of edits, fetches and deletions on a broker: unknown topics, long metadata, transactions."""

from __future__ import annotations

import threading

import confluent_kafka as ck
import pytest
from offsets_of_partitions import at, offsets_of

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import GroupNotFound, PartialFailure, UnknownTopicOrPartition
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.stores.kafka import KafkaStore

pytest_plugins = ["group_lock_fixtures"]

pytestmark = pytest.mark.servers


def test_an_unknown_topic_fails_alone(kafka_store: KafkaStore, filled_topic: str, unique: str) -> None:
    good, unknown, beyond = (
        TopicPartition(filled_topic, 0),
        TopicPartition("no-such-topic", 0),
        TopicPartition(filled_topic, 99),
    )

    with pytest.raises(PartialFailure) as caught:
        kafka_store.commit(unique, {tp: OffsetAndMetadata(5) for tp in (good, unknown, beyond)})

    assert set(caught.value.successes) == {good}
    assert {tp: type(e) for tp, e in caught.value.failures.items()} == {
        unknown: UnknownTopicOrPartition,
        beyond: UnknownTopicOrPartition,
    }
    assert offsets_of(kafka_store, unique) == {0: 5}


def test_metadata_that_is_too_long_fails_alone(kafka_store: KafkaStore, filled_topic: str, unique: str) -> None:
    fits, too_long, far_too_long = (TopicPartition(filled_topic, p) for p in range(3))

    (result,) = kafka_store.edit(
        [
            GroupEdit(
                unique,
                {
                    fits: Change(OffsetAndMetadata(5, "x" * 4096)),
                    too_long: Change(OffsetAndMetadata(5, "x" * 4097)),
                    far_too_long: Change(OffsetAndMetadata(5, "x" * 40_000)),
                },
            )
        ]
    )

    assert {tp: e.name for tp, e in result.failures.items()} == {
        too_long: "OFFSET_METADATA_TOO_LARGE",
        far_too_long: "OFFSET_METADATA_TOO_LARGE",
    }
    assert result.outcomes[fits].status is EditStatus.WRITTEN


def test_partitions_with_an_open_transaction_are_unreadable_not_stale(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with KafkaStore(bootstrap, ConnectionConfig(timeout_ms=3000)) as impatient:
        producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
        producer.init_transactions(20)
        producer.begin_transaction()
        consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": unique})
        producer.send_offsets_to_transaction(
            [ck.TopicPartition(filled_topic, 0, 70)], consumer.consumer_group_metadata(), 20
        )

        with pytest.raises(PartialFailure) as caught:
            impatient.fetch(unique)
        (scanned,) = impatient.scan([unique])
        producer.abort_transaction(20)
        consumer.close()

        assert set(caught.value.failures) == {TopicPartition(filled_topic, 0)}
        assert set(scanned.errors) == {TopicPartition(filled_topic, 0)}
        assert "UNSTABLE_OFFSET_COMMIT" in str(scanned.errors[TopicPartition(filled_topic, 0)])
        assert TopicPartition(filled_topic, 0) not in scanned.offsets


def test_a_fetch_waits_for_a_transaction_that_ends_soon(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
    producer.init_transactions(20)
    producer.begin_transaction()
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": unique})
    producer.send_offsets_to_transaction(
        [ck.TopicPartition(filled_topic, 0, 70)], consumer.consumer_group_metadata(), 20
    )
    ending = threading.Timer(0.2, producer.commit_transaction, [20])
    ending.start()

    found = offsets_of(kafka_store, unique)

    ending.join()
    consumer.close()
    assert found == {0: 70, 1: 10, 2: 10, 3: 10}


def test_a_group_is_deleted_whole(
    kafka_store: KafkaStore, kafka_cluster: KafkaCluster, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))

    kafka_store.delete_group(unique)

    assert dict(kafka_store.fetch(unique)) == {}
    assert unique not in set(kafka_store.groups())
    with pytest.raises(GroupNotFound):
        kafka_store.delete_group(unique)
