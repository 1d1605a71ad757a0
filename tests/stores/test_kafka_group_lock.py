"""The group lock: its edits are atomic, it rejects others, and it does not disturb real consumers."""

import time
from dataclasses import replace
from typing import Any

import confluent_kafka as ck
import pytest
from committed_offsets import PARTITIONS, at, edit_of, offsets_of
from confluent_kafka.admin import AdminClient
from event_loop_thread import EventLoopThread
from polling_consumer import PollingConsumer
from processes import wait_for
from repeated import repeated

from offsetmgr.core.errors import GroupActive, PartialFailure
from offsetmgr.core.model import ABSENT, Committed, GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, Guard
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.kafka.groups.group_lock import acquire_lock
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


class ManualLock(EventLoopThread):
    """The lock of a single edit, which the test acquires and releases itself."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__()
        self.client = Client(bootstrap, Security())
        self._context = acquire_lock(self.client, group, self._deadline())

    async def _start(self) -> None:
        self.lock = await self._context.__aenter__()

    def _deadline(self) -> float:
        return time.monotonic() + 120

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Any]:
        return dict(self.run(self.lock.commit(offsets, self._deadline())))

    def leave(self) -> None:
        self.run(self._context.__aexit__(None, None, None))

    async def _stop(self) -> None:
        await self.client.close()


def state_of(cluster: KafkaCluster, group: str) -> str:
    described = cluster.describe_groups([group])[group]
    assert isinstance(described, GroupDescription)
    return described.state


def test_a_new_and_an_existing_idle_group_are_edited_under_the_lock(kafka_store, kafka_cluster, filled_topic, unique):
    """Clients without membership may commit to a new group at the same moment."""
    for offset, before in ((10, ABSENT), (20, Committed(10))):
        result = kafka_store.commit(unique, at(filled_topic, offset))
        assert result.atomic is True
        assert {o.before for o in result.outcomes.values()} == {before}
        assert offsets_of(kafka_store, unique) == dict.fromkeys(range(PARTITIONS), offset)
        assert state_of(kafka_cluster, unique) == "EMPTY"
    with pytest.raises(PartialFailure, match="4 of 4"):
        kafka_store.commit(unique, at(filled_topic, 9))


def test_a_group_of_old_consumers_is_compared_instead_of_locked(kafka_store, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    change = {TopicPartition(filled_topic, 0): Change(OffsetAndMetadata(20), Committed(10))}
    (result,) = kafka_store.edit([GroupEdit(unique, change, Guard.COMPARE)])
    assert (result.atomic, result.how) == (False, "read and compared just before the write, which was not conditional")
    assert offsets_of(kafka_store, unique)[0] == 20


def test_an_admin_commit_during_an_edit_is_rejected(kafka_store, bootstrap, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with ManualLock(bootstrap, unique) as manual:
        theirs = ck.ConsumerGroupTopicPartitions(unique, [ck.TopicPartition(filled_topic, 0, 77)])
        (answered,) = admin.alter_consumer_group_offsets([theirs]).values()
        (partition,) = answered.result(90).topic_partitions
        ours = manual.commit(at(filled_topic, 20))
        manual.leave()
    assert partition.error.name() == "UNKNOWN_MEMBER_ID"
    assert set(ours.values()) == {None}
    assert offsets_of(kafka_store, unique) == {0: 20, 1: 20, 2: 20, 3: 20}


def test_two_edits_of_one_group_at_the_same_time_never_interleave(kafka_store, bootstrap, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    with ManualLock(bootstrap, unique) as manual:
        (result,) = kafka_store.edit([edit_of(unique, filled_topic, 30)])
        manual.leave()
    for error in result.failures.values():
        assert isinstance(error, GroupActive)
        assert "offsetmgr at 127.0.0.1" in error.members[0]
    assert len(result.failures) == PARTITIONS
    assert offsets_of(kafka_store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_an_active_group_is_rejected_with_its_members_named_and_is_not_disturbed(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")
        (locked_edit,) = kafka_store.edit([edit_of(unique, filled_topic, 50)])
        (compared,) = kafka_store.edit([replace(edit_of(unique, filled_topic, 50), guard=Guard.COMPARE)])
        for result in (locked_edit, compared):
            for outcome in result.outcomes.values():
                assert outcome.status is EditStatus.FAILED
                assert isinstance(outcome.error, GroupActive)
                (name,) = outcome.error.members
                assert name.startswith("the-app at 127.0.0.1 (the-app-")
        with pytest.raises(GroupActive) as caught:
            kafka_store.delete_group(unique)
        assert caught.value.members[0].startswith("the-app at 127.0.0.1")
        assert offsets_of(kafka_store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}
        assert consumer.revocations == 0


@pytest.mark.parametrize(("committed", "read"), [(60, 60), (None, 10)])
def test_a_consumer_that_joins_during_an_edit_reads_all_of_it_or_nothing_and_continues(
    kafka_store, kafka_cluster, bootstrap, filled_topic, unique, committed, read
):
    kafka_store.commit(unique, at(filled_topic, 10))
    with ManualLock(bootstrap, unique) as manual, PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: state_of(kafka_cluster, unique) == "PREPARING_REBALANCE", "the consumer to join")
        if committed is not None:
            assert set(manual.commit(at(filled_topic, committed)).values()) == {None}
            assert consumer.assigned == []
        manual.leave()
        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
        assert consumer.first == dict.fromkeys(range(PARTITIONS), read)
        assert consumer.errors == []


def test_consumers_that_start_during_many_edits_read_the_offsets_of_one_edit(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    """Each edit moves all partitions together, so mixed offsets would come from the middle of an edit."""
    kafka_store.commit(unique, at(filled_topic, 1))
    offsets = iter(range(2, 95))
    refused: list[str] = []

    def edit_once() -> None:
        (result,) = kafka_store.edit([edit_of(unique, filled_topic, next(offsets, 94))])
        refused.extend(type(e).__name__ for e in result.failures.values())

    with repeated(edit_once):
        for _ in range(3):
            with PollingConsumer(bootstrap, unique, filled_topic) as consumer:
                wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
                assert len(set(consumer.first.values())) == 1, consumer.first
                assert consumer.errors == []
    assert set(refused) <= {"GroupActive"}


def test_groups_of_the_new_protocol_are_rejected_while_active_and_edited_when_idle(kraft, make_topic, unique):
    topic = make_topic(unique, PARTITIONS, bootstrap=kraft.bootstrap)
    with KafkaStore(kraft.bootstrap) as store, KafkaCluster(kraft.bootstrap) as cluster:
        with PollingConsumer(kraft.bootstrap, unique, topic, **{"group.protocol": "consumer"}) as consumer:
            wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")
            described = cluster.describe_groups([unique])[unique]
            assert isinstance(described, GroupDescription)
            (member,) = described.members
            (refused,) = store.edit([edit_of(unique, topic, 5)])
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
