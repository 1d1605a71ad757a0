"""`Guard.OVERWRITE`: commits go to Kafka without a read, as the listener in front of a store sends them."""

from collections.abc import Iterator

import confluent_kafka as ck
import pytest
from conftest import MakeTopic

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import GroupActive, OffsetMetadataTooLarge, UnknownTopicOrPartition
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult, Guard
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


@pytest.fixture
def store(kafka: KafkaBroker) -> Iterator[KafkaStore]:
    with KafkaStore(kafka.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def topic(unique: str, make_topic: MakeTopic) -> str:
    return make_topic(unique, 4)


def overwrite(
    store: KafkaStore, group: str, offsets: dict[TopicPartition, OffsetAndMetadata | None]
) -> GroupEditResult:
    changes = {tp: Change(after, allow_rewind=True) for tp, after in offsets.items()}
    (result,) = store.edit([GroupEdit(group, changes, Guard.OVERWRITE)])
    return result


def test_the_last_commit_wins_and_only_an_expected_offset_is_read(store: KafkaStore, topic: str, unique: str) -> None:
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    overwrite(store, unique, {tp: OffsetAndMetadata(50)})
    result = overwrite(store, unique, {tp: OffsetAndMetadata(10, "back")})
    assert (result.outcomes[tp].status, result.outcomes[tp].before) == (EditStatus.WRITTEN, None)
    assert (result.atomic, result.how) == (False, "nothing was compared: the last commit wins, as among consumers")
    assert store.fetch(unique) == {tp: Committed(10, "back")}
    edit = GroupEdit(unique, {tp: Change(OffsetAndMetadata(9), Committed(4), True)}, Guard.OVERWRITE)
    (compared,) = store.edit([edit])
    assert compared.outcomes[tp].status is EditStatus.FAILED
    assert store.fetch(unique) == {tp: Committed(10, "back")}
    both = overwrite(store, unique, {tp: None, other: OffsetAndMetadata(6)})
    assert {outcome.status for outcome in both.outcomes.values()} == {EditStatus.WRITTEN}
    assert store.fetch(unique, [tp, other]) == {tp: ABSENT, other: Committed(6)}


def test_a_partition_that_the_broker_rejects_fails_alone(store: KafkaStore, topic: str, unique: str) -> None:
    good, long, unknown = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition("no-such-topic", 0)
    five = OffsetAndMetadata(5)
    result = overwrite(store, unique, {good: five, long: OffsetAndMetadata(5, "x" * 5000), unknown: five})
    assert {tp: type(error) for tp, error in result.failures.items()} == {
        long: OffsetMetadataTooLarge,
        unknown: UnknownTopicOrPartition,
    }
    assert store.fetch(unique) == {good: Committed(5)}


def test_a_group_with_members_is_rejected(store: KafkaStore, kafka: KafkaBroker, topic: str, unique: str) -> None:
    consumer = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique, "client.id": "the-app"})
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        result = overwrite(store, unique, {TopicPartition(topic, 0): OffsetAndMetadata(5)})
        (error,) = result.failures.values()
        assert isinstance(error, GroupActive)
        assert "the-app" in str(error)
    finally:
        consumer.close()


def test_an_invalid_group_among_many_fails_alone(store: KafkaStore, topic: str, unique: str) -> None:
    tp = TopicPartition(topic, 0)
    names = [*(f"{unique}-{n}" for n in range(60)), invalid := 40_000 * "g"]
    edits = (GroupEdit(g, {tp: Change(OffsetAndMetadata(7), None, True)}, Guard.OVERWRITE) for g in names)
    results = {result.group: result for result in store.edit(edits)}
    assert len(results) == 61
    assert list(results[invalid].failures) == [tp]
    assert {len(results[g].failures) for g in names[:-1]} == {0}
