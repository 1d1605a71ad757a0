"""Fixtures: a store, a cluster and a topic with messages, on a broker of each generation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from committed_offsets import PARTITIONS
from conftest import MakeTopic
from processes import fill

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.stores.kafka import KafkaStore


@pytest.fixture
def kafka_store(bootstrap: str) -> Iterator[KafkaStore]:
    with KafkaStore(bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def kafka_cluster(bootstrap: str) -> Iterator[KafkaCluster]:
    with KafkaCluster(bootstrap, ConnectionConfig(timeout_ms=20_000)) as cluster:
        yield cluster


@pytest.fixture
def filled_topic(unique: str, bootstrap: str, make_topic: MakeTopic) -> str:
    """A topic with 100 messages in each partition."""
    name = make_topic(unique, PARTITIONS, bootstrap=bootstrap)
    fill(bootstrap, name, *[100] * PARTITIONS)
    return name
