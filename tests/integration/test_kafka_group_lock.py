"""The group lock of a single edit: which edits are atomic, and the edits and commits that it rejects."""

from __future__ import annotations

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from manual_lock import ManualLock
from offsets_of_partitions import PARTITIONS, at, offsets_of, state_of

from offsetmgr.core.errors import GroupActive, PartialFailure
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, Guard
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.stores.kafka import KafkaStore

pytest_plugins = ["group_lock_fixtures"]

pytestmark = pytest.mark.servers


def test_an_existing_idle_group_is_edited_under_the_lock(
    kafka_store: KafkaStore, kafka_cluster: KafkaCluster, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))

    result = kafka_store.commit(unique, at(filled_topic, 20))

    assert result.atomic is True
    assert {o.before for o in result.outcomes.values()} == {Committed(10)}
    assert offsets_of(kafka_store, unique) == {0: 20, 1: 20, 2: 20, 3: 20}
    assert state_of(kafka_cluster, unique) == "EMPTY"


def test_a_new_group_is_edited_under_the_lock_too(
    kafka_store: KafkaStore, kafka_cluster: KafkaCluster, filled_topic: str, unique: str
) -> None:
    """Clients without membership may commit to it at the same moment."""
    assert kafka_store.commit(unique, at(filled_topic, 10)).atomic is True
    assert offsets_of(kafka_store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert state_of(kafka_cluster, unique) == "EMPTY"
    with pytest.raises(PartialFailure, match="4 of 4"):
        kafka_store.commit(unique, at(filled_topic, 9))


def test_a_group_of_old_consumers_is_compared_instead_of_locked(
    kafka_store: KafkaStore, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))

    (result,) = kafka_store.edit(
        [
            GroupEdit(
                unique, {TopicPartition(filled_topic, 0): Change(OffsetAndMetadata(20), Committed(10))}, Guard.COMPARE
            )
        ]
    )

    assert (result.atomic, result.how) == (
        False,
        "read and compared just before the write, which was not conditional",
    )
    assert offsets_of(kafka_store, unique)[0] == 20


def test_an_admin_commit_during_an_edit_is_rejected(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
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


def test_two_edits_of_one_group_at_the_same_time_never_interleave(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str
) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with ManualLock(bootstrap, unique) as manual:
        (result,) = kafka_store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(filled_topic, 30).items()})])
        manual.leave()

    for error in result.failures.values():
        assert isinstance(error, GroupActive)
        assert "offsetmgr at 127.0.0.1" in error.members[0]
    assert len(result.failures) == PARTITIONS
    assert offsets_of(kafka_store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_edits_of_one_group_in_one_stream_are_executed_in_order(
    kafka_store: KafkaStore, filled_topic: str, unique: str
) -> None:
    tp = TopicPartition(filled_topic, 0)
    edits = [GroupEdit(unique, {tp: Change(OffsetAndMetadata(n + 1), Committed(n) if n else ABSENT)}) for n in range(9)]

    results = list(kafka_store.edit(edits))

    assert [r.outcomes[tp].status for r in results] == [EditStatus.WRITTEN] * 9
    assert offsets_of(kafka_store, unique) == {0: 9}
