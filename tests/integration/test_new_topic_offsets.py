"""A partition that its leader does not know yet, because it is new."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from offsetmgr.manager.log.kafka.offsets import PartitionOffsets
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers


def test_the_end_of_a_partition_that_appears_during_the_request(
    kafka: KafkaBroker, make_topic: Callable[..., str], unique: str
) -> None:
    make_topic(unique, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    offsets = PartitionOffsets(kafka.bootstrap, {}, unique)

    def add_partition() -> None:
        (added,) = admin.create_partitions([NewPartitions(unique, 2)]).values()
        added.result(90)

    addition = threading.Timer(0.5, add_partition)
    addition.start()
    try:
        assert offsets.ends([0, 1], 20, lambda _: 0) == {0: 0, 1: 0}
    finally:
        addition.join()
        offsets.close()
