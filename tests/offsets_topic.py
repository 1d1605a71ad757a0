"""The log of ``__consumer_offsets``, which tests use as an oracle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client, ClientThread, PartitionLeaders
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.records.base import OffsetKey, OffsetValue
from offsetmgr.records.kafka import KafkaRecordFormat

OFFSETS_TOPIC = "__consumer_offsets"
OFFSET_FOR_LEADER_EPOCH, VERSION = 23, 3


class CommitRecord(NamedTuple):
    """A commit, with the time of its record in seconds since 1970."""

    key: OffsetKey
    value: OffsetValue
    at: float


def commit_records(bootstrap: str) -> Iterator[CommitRecord]:
    """Yields all commits up to the present ends, those of each partition in the order of the log."""
    record_format = KafkaRecordFormat()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "oracle", "enable.auto.commit": False})
    try:
        numbers = consumer.list_topics(OFFSETS_TOPIC, 30).topics[OFFSETS_TOPIC].partitions
        assigned = [KafkaPartition(OFFSETS_TOPIC, n, 0) for n in numbers]
        ends = {p.partition: consumer.get_watermark_offsets(p, 30)[1] for p in assigned}
        consumer.assign(assigned)
        left = {n for n, end in ends.items() if end > 0}
        deadline = time.monotonic() + 120
        while left:
            assert time.monotonic() < deadline, f"not read to the end: {sorted(left)}"
            for message in consumer.consume(5000, 0.5):
                assert message.error() is None, message.error()
                raw_key, raw_value = message.key(), message.value()
                if not isinstance(raw_key, bytes) or not isinstance(raw_value, bytes):
                    continue
                key = record_format.decode_key(raw_key)
                if isinstance(key, OffsetKey):
                    yield CommitRecord(key, record_format.decode_value(raw_value), message.timestamp()[1] / 1000)
            at = consumer.position([KafkaPartition(OFFSETS_TOPIC, n) for n in left])
            left = {p.partition for p in at if p.offset < ends[p.partition]}
    finally:
        consumer.close()


GroupEpoch: TypeAlias = tuple[str, TopicPartition, int]
"""A group, a partition and a leader epoch that the group has committed for it."""


def committed_epochs(bootstrap: str, *groups: str) -> set[GroupEpoch]:
    """Returns each leader epoch that these groups have ever committed for a partition."""
    return {
        (one.key.group, TopicPartition(one.key.topic, one.key.partition), one.value.leader_epoch)
        for one in commit_records(bootstrap)
        if one.key.group in groups and one.value.leader_epoch is not None
    }


def assert_own_epochs(a: str, b: str, *groups: str) -> None:
    """Fails if these groups have committed leader epochs in one of two clusters that are those of the other one. The
    epochs of the topics in A must be higher than those in B."""
    in_a, in_b = committed_epochs(a, *groups), committed_epochs(b, *groups)
    assert _unknown_to_logs(a, in_a) == _unknown_to_logs(b, in_b) == set()
    assert min(one[2] for one in in_a) > max(one[2] for one in in_b)


def foreign_epochs(bootstrap: str, *groups: str) -> set[GroupEpoch]:
    """Returns each leader epoch that these groups have ever committed for a partition and that the partition's log
    never had. A Java consumer with such an epoch reads nothing, without an error. Deleted topics have no logs."""
    return _unknown_to_logs(bootstrap, committed_epochs(bootstrap, *groups))


def _unknown_to_logs(bootstrap: str, found: set[GroupEpoch]) -> set[GroupEpoch]:
    async def ask(connection: BrokerConnection, epochs: Any, timeout_s: float) -> dict[TopicPartition, int]:
        topics = [
            {"topic": tp.topic, "partitions": [{"partition": tp.partition, "leader_epoch": epoch}]}
            for tp, epoch in epochs.items()
        ]
        request = Request(OFFSET_FOR_LEADER_EPOCH, VERSION, {"replica_id": -1, "topics": topics})
        answer = await connection.call(request, timeout_s)
        return {
            TopicPartition(topic["topic"], one["partition"]): one["leader_epoch"]
            for topic in answer["topics"]
            for one in topic["partitions"]
        }

    thread = ClientThread(Client(bootstrap, Security()), 60)
    try:
        leaders = PartitionLeaders(thread.client)
        had = {
            (tp, epoch)
            for tp, epoch in {one[1:] for one in found}
            if thread.run(lambda until: leaders.per_partition({tp: epoch}, ask, until)) == {tp: epoch}  # noqa: B023
        }
    finally:
        thread.close()
    return {one for one in found if one[1:] not in had}
