"""The log of ``__consumer_offsets``, which tests use as an oracle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.records.base import OffsetKey, OffsetValue
from offsetmgr.records.kafka import KafkaRecordFormat

OFFSETS_TOPIC = "__consumer_offsets"


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
