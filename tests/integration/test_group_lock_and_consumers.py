"""The group lock and real consumers: a running consumer is not disturbed, and one that starts reads whole edits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from manual_lock import ManualLock
from offsets_of_partitions import PARTITIONS, at, offsets_of, state_of
from polling_consumer import PollingConsumer
from processes import wait_for

from offsetmgr.core.errors import GroupActive
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, Guard
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.stores.kafka import KafkaStore

if TYPE_CHECKING:
    from conftest import MakeTopic

pytest_plugins = ["group_lock_fixtures"]

pytestmark = pytest.mark.servers


def test_an_active_group_is_rejected_with_its_members_named_and_is_not_disturbed(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")

        (locked_edit,) = kafka_store.edit(
            [GroupEdit(unique, {tp: Change(o) for tp, o in at(filled_topic, 50).items()})]
        )
        (compared,) = kafka_store.edit(
            [GroupEdit(unique, {TopicPartition(filled_topic, 0): Change(OffsetAndMetadata(50))}, Guard.COMPARE)]
        )

        for result in (locked_edit, compared):
            for outcome in result.outcomes.values():
                assert outcome.status is EditStatus.FAILED
                assert isinstance(outcome.error, GroupActive)
                (name,) = outcome.error.members
                assert name.startswith("the-app at 127.0.0.1 (the-app-")
        assert offsets_of(kafka_store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}
        assert consumer.revocations == 0


def test_a_consumer_that_joins_during_an_edit_reads_all_of_it_and_continues(
    kafka_store: KafkaStore, kafka_cluster: KafkaCluster, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with ManualLock(bootstrap, unique) as manual, PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: state_of(kafka_cluster, unique) == "PREPARING_REBALANCE", "the consumer to join")

        outcomes = manual.commit(at(filled_topic, 60))
        assert consumer.assigned == []
        manual.leave()

        assert set(outcomes.values()) == {None}
        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
        assert consumer.first == {0: 60, 1: 60, 2: 60, 3: 60}
        assert consumer.errors == []


def test_a_consumer_that_joins_during_an_abandoned_edit_reads_the_old_offsets(
    kafka_store: KafkaStore, kafka_cluster: KafkaCluster, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with ManualLock(bootstrap, unique) as manual, PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: state_of(kafka_cluster, unique) == "PREPARING_REBALANCE", "the consumer to join")

        manual.leave()

        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
        assert consumer.first == {0: 10, 1: 10, 2: 10, 3: 10}
        assert consumer.errors == []


def test_consumers_that_start_during_many_edits_read_the_offsets_of_one_edit(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    """Each edit moves all partitions together, so mixed offsets would come from the middle of an edit."""
    kafka_store.commit(unique, at(filled_topic, 1))
    stop = threading.Event()
    refused: list[str] = []

    def edit_repeatedly() -> None:
        for offset in range(2, 95):
            (result,) = kafka_store.edit(
                [GroupEdit(unique, {tp: Change(o) for tp, o in at(filled_topic, offset).items()})]
            )
            refused.extend(type(e).__name__ for e in result.failures.values())
            if stop.is_set():
                return

    thread = threading.Thread(target=edit_repeatedly)
    thread.start()
    try:
        for _ in range(3):
            with PollingConsumer(bootstrap, unique, filled_topic) as consumer:
                wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
                assert len(set(consumer.first.values())) == 1, consumer.first
                assert consumer.errors == []
    finally:
        stop.set()
        thread.join()
    assert set(refused) <= {"GroupActive"}


def test_an_active_group_is_not_deleted(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")

        with pytest.raises(GroupActive) as caught:
            kafka_store.delete_group(unique)

        assert caught.value.members[0].startswith("the-app at 127.0.0.1")
    assert offsets_of(kafka_store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_groups_of_the_new_protocol_are_rejected_while_active_and_edited_when_idle(
    kraft: Any, make_topic: MakeTopic, unique: str
) -> None:
    topic = make_topic(unique, PARTITIONS, bootstrap=kraft.bootstrap)
    with KafkaStore(kraft.bootstrap) as store, KafkaCluster(kraft.bootstrap) as cluster:
        with PollingConsumer(kraft.bootstrap, unique, topic, **{"group.protocol": "consumer"}) as consumer:
            wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")
            described = cluster.describe_groups([unique])[unique]
            assert isinstance(described, GroupDescription)
            (member,) = described.members

            (refused,) = store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(topic, 5).items()})])

            assert member.client_id == "the-app"
            assert {type(e) for e in refused.failures.values()} == {GroupActive}
            (error, *_) = refused.failures.values()
            assert isinstance(error, GroupActive)
            assert error.members[0].startswith("the-app at 127.0.0.1")
        wait_for(lambda: state_of(cluster, unique) == "EMPTY", "the consumer to be gone")

        first = store.commit(unique, at(topic, 5))
        second = store.commit(unique, at(topic, 6))

        assert (first.atomic, second.atomic) == (True, True)
        assert offsets_of(store, unique) == {0: 6, 1: 6, 2: 6, 3: 6}
