"""Outcomes of edits, fetches and deletions on a broker: unknown topics, long metadata, transactions."""

import threading

import pytest
from committed_offsets import at, offsets_of, pending_commit

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import PartialFailure, UnknownTopicOrPartition
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


def test_an_unknown_topic_fails_alone(kafka_store: KafkaStore, filled_topic: str, unique: str) -> None:
    good, beyond = TopicPartition(filled_topic, 0), TopicPartition(filled_topic, 99)
    unknown = TopicPartition("no-such-topic", 0)
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
    lengths = {fits: 4096, too_long: 4097, far_too_long: 40_000}
    changes = {tp: Change(OffsetAndMetadata(5, "x" * length)) for tp, length in lengths.items()}
    (result,) = kafka_store.edit([GroupEdit(unique, changes)])
    assert {tp: e.name for tp, e in result.failures.items()} == {
        too_long: "OFFSET_METADATA_TOO_LARGE",
        far_too_long: "OFFSET_METADATA_TOO_LARGE",
    }
    assert result.outcomes[fits].status is EditStatus.WRITTEN


def test_partitions_with_an_open_transaction_are_unreadable_not_stale(kafka_store, bootstrap, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    tp, impatient = TopicPartition(filled_topic, 0), ConnectionConfig(timeout_ms=3000)
    with KafkaStore(bootstrap, impatient) as store, pending_commit(bootstrap, unique, filled_topic, 0) as producer:
        with pytest.raises(PartialFailure) as caught:
            store.fetch(unique)
        (scanned,) = store.scan([unique])
        (edited,) = store.edit([GroupEdit(unique, {tp: Change(OffsetAndMetadata(80))})])
        producer.abort_transaction(20)
    assert set(caught.value.failures) == set(scanned.errors) == set(edited.failures) == {tp}
    assert "UNSTABLE_OFFSET_COMMIT" in str(scanned.errors[tp])
    assert tp not in scanned.offsets


def test_a_fetch_waits_for_a_transaction_that_ends_soon(kafka_store, bootstrap, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    with pending_commit(bootstrap, unique, filled_topic, 0) as producer:
        ending = threading.Timer(0.2, producer.commit_transaction, [20])
        ending.start()
        found = offsets_of(kafka_store, unique)
        ending.join()
    assert found == {0: 70, 1: 10, 2: 10, 3: 10}
