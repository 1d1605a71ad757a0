"""Committed offsets without versions and times, and offsets of transactions that have not ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import confluent_kafka as ck

from offsetmgr.core.model import Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, OffsetStore
from offsetmgr.stores.uri import open_store

PARTITIONS = 4


def offsets(found: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, int]:
    return {tp: one.offset for tp, one in found.items() if isinstance(one, Committed)}


def offsets_of(store: OffsetStore, group: str) -> dict[int, int]:
    """The offsets of a group by the numbers of the partitions."""
    return {tp.partition: offset for tp, offset in offsets(store.fetch(group)).items()}


def committed(uri: str, group: str) -> dict[int, int]:
    with open_store(uri) as store:
        return offsets_of(store, group)


def commit(uri: str, group: str, topic: str, positions: Mapping[int, int], *, allow_rewind: bool = False) -> None:
    """Commits offsets of a topic by the numbers of its partitions."""
    values = {TopicPartition(topic, p): OffsetAndMetadata(offset) for p, offset in positions.items()}
    with open_store(uri) as store:
        store.commit(group, values, allow_rewind=allow_rewind)


@contextmanager
def pending_commit(bootstrap: str, group: str, topic: str, partition: int) -> Iterator[ck.Producer]:
    """Commits offset 70 in a transaction, which the caller ends with the producer."""
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    position = ck.TopicPartition(topic, partition, 70)
    producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 60)
    yield producer
    consumer.close()


def at(topic: str, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """The same offset for each of `PARTITIONS` partitions."""
    return {TopicPartition(topic, p): OffsetAndMetadata(offset) for p in range(PARTITIONS)}


def edit_of(group: str, topic: str, offset: int) -> GroupEdit:
    """An edit that sets each partition to the same offset."""
    return GroupEdit(group, {tp: Change(after) for tp, after in at(topic, offset).items()})
