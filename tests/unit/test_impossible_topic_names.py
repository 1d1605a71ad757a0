"""Topic names that Kafka does not allow are an error without a request. (`manager serve` accepts commits for them.)"""

from __future__ import annotations

import asyncio

import pytest

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition, is_valid_topic_name
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.log_ranges import log_ranges, partition_counts
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster

UNUSED_ADDRESS = "127.0.0.1:1"
IMPOSSIBLE = ["", ".", "..", "a b", "a/b", "ü", "a\n", "a\udc80", "x" * 250]
PARTITIONS = [TopicPartition(name, 0) for name in IMPOSSIBLE]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_invalid_topic_names(name: str) -> None:
    assert not is_valid_topic_name(name)


@pytest.mark.parametrize("name", ["a", "...", "A.b_c-9", "__consumer_offsets", "x" * 249])
def test_valid_topic_names(name: str) -> None:
    assert is_valid_topic_name(name)


def test_an_invalid_topic_name_is_an_error_without_a_request() -> None:
    with KafkaCluster(UNUSED_ADDRESS) as cluster:
        found = cluster.log_ranges(PARTITIONS)
        at_times = cluster.offsets_for_time(PARTITIONS, 0)
        assert cluster.topics(IMPOSSIBLE) == {}

    assert list(found) == PARTITIONS
    assert {type(outcome) for outcome in (*found.values(), *at_times.values())} == {UnknownTopicOrPartition}
    assert str(found[TopicPartition("a b", 0)]) == "a b-0: no topic of Kafka can have this name"


def test_offsetmgrs_own_client_sends_no_request_about_invalid_names() -> None:
    async def run() -> None:
        client = Client(UNUSED_ADDRESS, Security.of({}))
        deadline = asyncio.get_running_loop().time() + 120
        try:
            assert await partition_counts(client, IMPOSSIBLE, deadline) == {}
            found = await log_ranges(client, PARTITIONS, deadline)
        finally:
            await client.close()
        assert {type(outcome) for outcome in found.values()} == {UnknownTopicOrPartition}
        assert list(found) == PARTITIONS

    asyncio.run(run())
