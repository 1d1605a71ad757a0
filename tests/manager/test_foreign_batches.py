"""Batches that another program writes to the offsets topic: an alarm, and no offset."""

import logging

import pytest
from confluent_kafka import Producer
from processes import wait_for

from offsetmgr import Committed, OffsetAndMetadata, OffsetManager, TopicPartition
from offsetmgr.records.avro import AvroRecordFormat

pytestmark = pytest.mark.servers

ORDERS = TopicPartition("orders", 0)
CLICKS = TopicPartition("clicks", 0)
SHARD = 3
"""The partition of the group ``group``."""


def test_a_foreign_batch_is_an_alarm_and_the_owner_writes_the_valid_values_again(kafka, unique, caplog) -> None:
    with OffsetManager(kafka.bootstrap, topic=unique, partitions=4, timeout_s=90) as manager:
        manager.commit("group", {ORDERS: OffsetAndMetadata(5)})
    records = AvroRecordFormat()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for partition in (ORDERS, CLICKS):
        ((key, value),) = records.encode_commit("group", partition.topic, [(0, 99, -1, "foreign")], 1, None)
        producer.produce(unique, value, key, SHARD)
    assert producer.flush(20) == 0

    with OffsetManager(kafka.bootstrap, topic=unique, partitions=4, timeout_s=90) as manager:
        wait_for(lambda: manager.fetch("group") == {ORDERS: Committed(5)}, "the manager serves the valid offset")
    alarms = [r for r in caplog.records if r.levelno == logging.ERROR and "another program wrote" in r.message]
    assert len(alarms) >= 1
    again = [r for r in caplog.records if "their valid records were appended again" in r.message]
    assert [r.__dict__["keys"] for r in again] == [2]

    caplog.clear()
    with OffsetManager(kafka.bootstrap, topic=unique, partitions=4, timeout_s=90) as manager:
        assert manager.fetch("group") == {ORDERS: Committed(5)}
    assert not [r for r in caplog.records if "appended again" in r.message], "the valid records are the newest ones"
