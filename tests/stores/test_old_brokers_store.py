"""The store contract on brokers of older releases."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from processes import wait_for
from release_fixtures import ReleaseCluster

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.core.model import Absent, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, OffsetStore
from offsetmgr.kafka.client.producers import OpenTransactions
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.segments.offsets_partition import read_partition
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.testing.store_contract import StoreContract

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
IN_MATRIX = ("0.8.2.2", "2.8.2")


class TestOldBrokers(StoreContract):
    release_cluster: ReleaseCluster

    @pytest.fixture
    def store(self, release_cluster: ReleaseCluster) -> Iterator[KafkaStore]:
        self.release_cluster = release_cluster
        with KafkaStore(release_cluster.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
            yield store

    def ensure_topic(self, topic: str, partitions: int) -> None:
        self.release_cluster.make_topic(topic, partitions)

    def test_the_leader_epoch_is_kept_exactly_if_it_is_a_capability(self, store, group, topic):
        """Brokers store the leader epoch from 2.1 on. For older ones a change of the epoch alone is not written."""
        tp = self.tp(topic, 0)
        kept = self.release_cluster.release == "2.8.2"
        store.commit(group, {tp: OffsetAndMetadata(5, leader_epoch=0)})
        (committed,) = store.fetch(group).values()
        assert isinstance(committed, Committed)
        assert committed.leader_epoch == (0 if kept else None)
        (result,) = store.edit([GroupEdit(group, {tp: Change(OffsetAndMetadata(5, leader_epoch=1))})])
        assert result.outcomes[tp].status is (EditStatus.WRITTEN if kept else EditStatus.UNCHANGED)

    def test_a_deleted_offset_is_absent_at_once_and_removed_from_the_log(self, store, group, topic):
        """Brokers 0.8.2 remove expired offsets every 10 minutes, regardless of ``offsets.retention.check.interval.ms``.
        Until then the deleted offset is in the log with commit timestamp 0."""
        gone, stays = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {gone: OffsetAndMetadata(5), stays: OffsetAndMetadata(6)})
        store.delete(group, [gone])
        assert isinstance(store.fetch(group, [gone])[gone], Absent)
        if self.release_cluster.release == "0.8.2.2":
            began = self.in_the_log(group)
            assert began[gone] == 0
            assert began[stays] > 0
        else:
            wait_for(lambda: self.in_the_log(group).keys() == {stays}, "the broker has deleted the offset")

    def test_a_deleted_offset_can_be_committed_again(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self.tp(topic, 0)
        store.commit(group, {tp: OffsetAndMetadata(5)})
        store.delete(group, [tp])
        (result,) = store.edit([GroupEdit(group, {tp: Change(OffsetAndMetadata(5))})])
        assert result.outcomes[tp].status is EditStatus.WRITTEN
        assert self.in_the_log(group)[tp] > 0

    def in_the_log(self, group: str) -> dict[TopicPartition, int]:
        """The commit timestamp of each offset of the group, from the newest records in the offsets topic."""
        began: dict[TopicPartition, int] = {}
        for directory in (self.release_cluster.broker.directory / "data").glob("__consumer_offsets-*"):
            for saved in read_partition(directory).decoded.groups:
                if saved.name == group:
                    began |= {tp: offset.commit_timestamp for tp, offset in saved.offsets.items()}
        return began


def test_open_transactions_and_removed_members(release_cluster: ReleaseCluster, unique: str) -> None:
    """Brokers of 0.11 and later have transactions, and name their producers from 2.8 on. They remove members from 2.4
    on."""
    names_producers = release_cluster.release == "2.8.2"
    tp = TopicPartition(release_cluster.make_topic(unique), 0)
    with KafkaCluster(release_cluster.bootstrap) as cluster:
        assert cluster.open_transactions([tp]) == {tp: OpenTransactions(0, 0)}
        if names_producers:
            assert cluster.remove_static_members(unique, ["gone"]) == {"gone": None}
        else:
            with pytest.raises(UnsupportedOperation, match=r"removes members of a group.*came with Kafka 2.4"):
                cluster.remove_static_members(unique, ["gone"])
        if release_cluster.release < "1":
            return
        producer = Producer({"bootstrap.servers": release_cluster.bootstrap, "transactional.id": unique})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(unique, b"open", partition=0)
        assert producer.flush(60) == 0
        found = cluster.open_transactions([tp])[tp]
        assert isinstance(found, OpenTransactions)
        assert found[:2] == (0, 1)
        assert [one.transactional_id for one in found.transactions] == ([None] if names_producers else [])
        producer.abort_transaction(60)
