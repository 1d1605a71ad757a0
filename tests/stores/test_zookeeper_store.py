"""The store contract of `ZookeeperStore`, on servers with and without MultiRead, and in each of its layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.store_contract import StoreContract

CONFIG = ConnectionConfig(timeout_ms=20_000)


@pytest.mark.servers
class TestZookeeperStore(StoreContract):
    @pytest.fixture
    def store(self, zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
        with ZookeeperStore(zookeeper.connect, config=CONFIG) as store:
            yield store


@pytest.mark.servers
class TestZookeeperStoreOnAServerWithoutMultiRead(StoreContract):
    @pytest.fixture
    def store(self, zookeeper34: ZooKeeperServer) -> Iterator[ZookeeperStore]:
        with ZookeeperStore(zookeeper34.connect, config=CONFIG) as store:
            yield store


@pytest.mark.servers
class TestZookeeperStoreInTheLayoutOfKafka07(StoreContract):
    @pytest.fixture
    def store(self, zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
        # Under its own root, because other tests scan all groups of the server and cannot read this layout.
        with connected(zookeeper.connect) as client:
            client.ensure_path("/contract-07")
        with ZookeeperStore(f"{zookeeper.connect}/contract-07", layout="0.7", config=CONFIG) as store:
            yield store

    def tp(self, topic: str, number: int) -> TopicPartition:
        return TopicPartition(topic, BrokerPartition(number % 3, number // 3))


@pytest.mark.servers
class TestZookeeperStoreInTheLayoutOfStorm(StoreContract):
    @pytest.fixture
    def store(self, zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
        with ZookeeperStore(zookeeper.connect, layout="storm", config=CONFIG, root="/contract/spouts") as store:
            yield store
